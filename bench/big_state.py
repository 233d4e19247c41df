"""Pipelines with much state: one stateful operator that forgets nothing, filled at once, then changed a little."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import slackwater as sw

from .lines import say
from .puts import settlements
from .workload import OURS, START_MS, Ours, Shape, commits, unload_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROW_BYTES = 230  # of state, about, with what RocksDB adds
PARTITIONS = 4
CHANGED_ROWS = 2_000
_FILL_ROWS = 200_000
_SETTLE = 10  # micro-batches, twice, until state lies as it would after a longer life
_STREAMING = "spark.sql.streaming."


def distinct(spark: SparkSession, rows: int) -> DataFrame:
    """Deduplicate rows of random text, which does not compress; a few of them are passed on."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - after JAVA_HOME is settled

    source = spark.readStream.format("rate-micro-batch")
    options = {"rowsPerBatch": rows, "numPartitions": 2, "startTimestamp": START_MS, "advanceMillisPerBatch": 1000}
    text = [F.sha2((F.col("value") * 3 + part).cast("string"), 256) for part in range(3)]
    return (
        source.options(**options)
        .load()
        .select("value", F.concat(*text).alias("text"))
        .dropDuplicates(["value", "text"])
        .where("value % 100 = 0")
    )


class BigState(Ours):
    """Such a pipeline, with one sink."""

    def __init__(
        self, spark: SparkSession, folder: Path, rows: int = CHANGED_ROWS, conf: Mapping[str, str] = OURS
    ) -> None:
        super().__init__(spark, Shape(partitions=PARTITIONS, rows=rows), folder, conf)

    def start(self) -> StreamingQuery:
        return (
            sw.writeStream(distinct(self.spark, self.shape.rows))
            .queryName("bench")
            .outputMode("append")
            .options(store=str(self.folder / "store"), workdir=str(self.folder / "work"))
            .to("one", sw.FileSink(self.folder / "one"))
            .start()
        )


def fill(spark: SparkSession, folder: Path, state_bytes: int) -> int:
    """Make the pipeline in ``folder`` with about so much state, most of it in snapshots; return how much it is."""
    rows = state_bytes // ROW_BYTES - 2 * _SETTLE * CHANGED_ROWS
    steps = -(-rows // _FILL_ROWS)
    # Snapshots come at once, as they would have over a longer life.
    eager = {
        **OURS,
        _STREAMING + "stateStore.minDeltasForSnapshot": "1",
        _STREAMING + "stateStore.maintenanceInterval": "500ms",
    }
    _run(BigState(spark, folder, rows // steps, conf=eager), steps)
    _run(BigState(spark, folder, conf=eager), _SETTLE)
    _run(BigState(spark, folder), _SETTLE)
    size = settlements(folder)[-1].full_bytes
    say(f"filled {folder.name} with {size / 1e6:.0f} MB of state")
    return size


def _run(side: BigState, micro_batches: int) -> None:
    running = side.start()
    try:
        ends = commits(running, side.checkpoint)
        for _ in range(micro_batches):
            next(ends)
    finally:
        running.stop()
        unload_state(side.spark)


class Cost(msgspec.Struct, frozen=True):
    """What one checkpoint took."""

    total_ms: int
    new_bytes: int


def costs(folder: Path, micro_batches: int) -> list[Cost]:
    """Read what the newest checkpoints cost, from the log: capture to ``_latest``."""
    newest = settlements(folder)[-micro_batches:]
    return [Cost(sum(settled.durations_ms.values()), settled.new_bytes) for settled in newest]
