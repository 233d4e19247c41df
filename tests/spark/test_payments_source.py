"""The stream of payments on plain Spark, against its oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from demo import payments_stream
from demo.oracle import compare, counts, expected_totals

ROWS = 20_000


class Collected:
    """Rows by micro-batch, so that one that runs again replaces what it gave before, as an idempotent sink would."""

    def __init__(self, fail_in: int | None = None) -> None:
        self.by_batch: dict[int, list[tuple[int, str, int, int]]] = {}
        self.fail_in = fail_in

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        flat = frame.select(F.unix_millis("window_start"), "merchant", "amount_cents", "payments")
        self.by_batch[batch_id] = [tuple(row) for row in flat.collect()]
        if batch_id == self.fail_in:
            raise RuntimeError("failed after the output was taken")

    def rows(self) -> list[tuple[int, str, int, int]]:
        return [row for rows in self.by_batch.values() for row in rows]


def start(
    spark: SparkSession, sink: Collected, checkpoint: Path, rows_per_batch: int = 2_000, **trigger: Any
) -> StreamingQuery:
    frame = payments_stream.totals(spark, rows=ROWS, rows_per_batch=rows_per_batch)
    writer = frame.writeStream.outputMode("append").foreachBatch(sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of every micro-batch, and print how long each took."""
    done: dict[int, dict[str, Any]] = {
        each["batchId"]: each for each in query.recentProgress if each["durationMs"].get("addBatch")
    }
    print("\n" + " ".join(f"{batch}:{each['durationMs']['triggerExecution']}" for batch, each in done.items()), "ms")
    return list(done.values())


def seq_ends(batches: list[dict[str, Any]]) -> list[int]:
    return [json.loads(each["sources"][0]["endOffset"])["seq"] for each in batches]


def test_totals_equal_the_oracle_and_every_late_and_duplicate_row_is_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Collected()
    query = start(spark, sink, tmp_path, availableNow=True)
    query.awaitTermination()
    batches = progress(query)

    assert compare(expected_totals(ROWS), sink.rows()).exact
    assert seq_ends(batches) == [*range(2_000, ROWS + 1, 2_000), ROWS]
    operators = [operator for each in batches for operator in each["stateOperators"]]
    duplicates, late = counts(ROWS)
    assert min(duplicates, late) > 0
    assert sum(each["numRowsDroppedByWatermark"] for each in operators) == late
    assert sum(each["customMetrics"].get("numDroppedDuplicateRows", 0) for each in operators) == duplicates


def test_other_micro_batches_give_the_same_totals(spark: SparkSession, tmp_path: Path) -> None:
    sink = Collected()
    query = start(spark, sink, tmp_path, rows_per_batch=700, availableNow=True)
    query.awaitTermination()
    progress(query)
    assert compare(expected_totals(ROWS), sink.rows()).exact


def test_a_run_that_failed_and_was_resumed_gives_the_same_totals(spark: SparkSession, tmp_path: Path) -> None:
    sink = Collected(fail_in=5)
    with pytest.raises(StreamingQueryException, match="failed after the output was taken"):
        start(spark, sink, tmp_path, availableNow=True).awaitTermination()
    assert list(sink.by_batch) == [0, 1, 2, 3, 4, 5]
    assert compare(expected_totals(ROWS), sink.rows()).lost

    sink.fail_in = None
    resumed = start(spark, sink, tmp_path, availableNow=True)
    resumed.awaitTermination()
    assert seq_ends(progress(resumed)) == [*range(12_000, ROWS + 1, 2_000), ROWS]
    assert compare(expected_totals(ROWS), sink.rows()).exact


def test_with_a_trigger_that_never_ends_the_source_is_idle_after_its_last_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Collected()
    query = start(spark, sink, tmp_path, processingTime="0 seconds")
    try:
        query.processAllAvailable()
        assert compare(expected_totals(ROWS), sink.rows()).exact
        assert query.isActive
        assert not query.status["isDataAvailable"]
    finally:
        query.stop()
