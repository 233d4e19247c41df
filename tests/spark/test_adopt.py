"""Coming from plain Spark: its checkpoint becomes a pipeline's first; a query that has changed since is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import slackwater as sw
from demo.oracle import compare, expected_totals
from demo.payments_stream import totals
from slackwater.ops.pipelines import read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, PER_BATCH = 2_000, 250


def payments(spark: SparkSession, rows: int) -> DataFrame:
    return totals(spark, rows=rows, rows_per_batch=PER_BATCH)


def run_plain(frame: DataFrame, folder: Path, micro_batches: int) -> None:
    """Run a query as its owner did before, with a checkpointLocation, into Parquet; stop it on its way."""

    def write(rows: DataFrame, micro_batch: int) -> None:
        rows.write.mode("append").parquet(str(folder / "plain"))

    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()
    while query.isActive and not (folder / "checkpoint" / "commits" / str(micro_batches - 1)).exists():
        query.awaitTermination(0.1)  # type: ignore[arg-type]
    query.stop()


def run(frame: DataFrame, folder: Path, **options: Any) -> None:
    writer = sw.writeStream(frame).queryName("orders").trigger(availableNow=True)
    writer.options(store=str(folder / "store"), workdir=str(folder / "work"), **options)
    writer.to("rows", sw.FileSink(folder / "ours")).start().awaitTermination()


def test_a_pipeline_goes_on_where_plain_spark_stood(spark: SparkSession, tmp_path: Path) -> None:
    run_plain(payments(spark, ROWS), tmp_path, 3)
    entry = sw.adopt(tmp_path / "checkpoint", store=str(tmp_path / "store"), pipeline="orders")
    assert entry.epoch == 1
    opened = read_pipeline(str(tmp_path / "store" / "orders"))
    assert opened.state.settled_epoch == 1 and opened.state.release_append_id is not None
    run(payments(spark, ROWS), tmp_path)
    files = [*sw.read_committed(tmp_path / "ours"), *map(str, (tmp_path / "plain").glob("*.parquet"))]
    rows = (
        (round(row["window_start"].timestamp() * 1000), row["merchant"], row["amount_cents"], row["payments"])
        for file in files
        for row in pq.read_table(file).to_pylist()
    )
    comparison = compare(expected_totals(ROWS), rows)
    assert comparison.exact, comparison


def test_what_cannot_be_adopted_is_refused_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for wrong, code in ((tmp_path / "nowhere", "checkpoint.none"), ("s3://bucket/x", "folder.unusable")):
        with pytest.raises(sw.SlackwaterError) as raised:
            sw.adopt(wrong, store=store, pipeline="orders")
        assert raised.value.code == code
    old = spark.newSession()
    old.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    frame = old.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().groupBy().count()
    plain = frame.writeStream.format("noop").outputMode("complete").option("checkpointLocation", str(tmp_path / "old"))
    query = plain.start()
    while not query.lastProgress or query.lastProgress["batchId"] < 1:
        query.awaitTermination(1)
    query.stop()
    with pytest.raises(sw.Unsupported, match=r"\[spark.unsupported\]"):
        sw.adopt(tmp_path / "old", store=store, pipeline="orders")
    assert not (tmp_path / "store").exists()
    run(payments(spark, PER_BATCH), tmp_path)
    run_plain(payments(spark, PER_BATCH), tmp_path, 1)
    with pytest.raises(sw.Conflict, match=r"\[pipeline.not_new\]"):
        sw.adopt(tmp_path / "checkpoint", store=store, pipeline="orders")


def test_a_changed_query_is_refused_with_what_differs_before_anything_is_claimed(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(payments(spark, PER_BATCH), tmp_path)
    before = read_pipeline(str(tmp_path / "store" / "orders")).state.generation
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().select("value")
    with pytest.raises(sw.Unsupported, match=r"\[query.changed\]") as raised:
        run(rows, tmp_path)
    assert any("source" in line for line in raised.value.details["differences"])
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with pytest.raises(sw.Unsupported, match=r"shuffle.partitions was 2, is 3"):
            run(payments(spark, PER_BATCH), tmp_path)
        assert read_pipeline(str(tmp_path / "store" / "orders")).state.generation == before
        # Told otherwise, Spark keeps to the number that its state has.
        run(payments(spark, 2 * PER_BATCH), tmp_path, accept_changes=True)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_a_changed_filter_is_no_reason_to_refuse(spark: SparkSession, tmp_path: Path) -> None:
    run(payments(spark, PER_BATCH), tmp_path)
    run(payments(spark, 2 * PER_BATCH).where(F.col("payments") > 0), tmp_path)
    assert read_pipeline(str(tmp_path / "store" / "orders")).state.epoch > 2
