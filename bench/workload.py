"""The query that the pipeline cases run, by plain Spark and by Slackwater, in one JVM.

Two stateful operators: rows are deduplicated, then summed by key and window. Each micro-batch brings as many rows as
the one before, closes one window and writes it twice, as Parquet.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import slackwater as sw
from slackwater.spark.java import ensure_java
from slackwater.spark.session import RECOMMENDED, REQUIRED

from .processes import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
WINDOW_S = 10
DELAY_WINDOWS = 6  # how many deduplication remembers
KEYS = 500
_POLL_S = 0.02
_PATIENCE_S = 300
_STREAMING = "spark.sql.streaming."
# All else of plain Spark is as Spark has it.
ROCKSDB = {
    key: REQUIRED[key]
    for key in (
        _STREAMING + "stateStore.providerClass",
        _STREAMING + "stateStore.rocksdb.changelogCheckpointing.enabled",
    )
}
FORMAT = _STREAMING + "stateStore.checkpointFormatVersion"
# What sw.session() sets, so far as a running session can still be told.
OURS = {key: value for key, value in {**REQUIRED, **RECOMMENDED}.items() if key.startswith("spark.sql.")}


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How much a query has to do."""

    partitions: int
    rows: int = 10_000

    @property
    def stores(self) -> int:
        return 2 * self.partitions


def start_spark() -> SparkSession:
    """Start Spark with its own defaults."""
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after JAVA_HOME is settled

    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, False)
    for key in ("spark.driver.extraJavaOptions", "spark.driver.bindAddress", "spark.driver.host"):
        builder = builder.config(key, RECOMMENDED[key])
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def query(spark: SparkSession, shape: Shape) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415 - after JAVA_HOME is settled

    source = spark.readStream.format("rate-micro-batch")
    options = {
        "rowsPerBatch": shape.rows,
        "numPartitions": 2,
        "startTimestamp": START_MS,
        "advanceMillisPerBatch": WINDOW_S * 1000,
    }
    return (
        source.options(**options)
        .load()
        .withWatermark("timestamp", f"{DELAY_WINDOWS * WINDOW_S} seconds")
        .dropDuplicates(["value", "timestamp"])
        .groupBy(F.window("timestamp", f"{WINDOW_S} seconds"), (F.col("value") % KEYS).alias("key"))
        .agg(F.sum("value").alias("total"), F.count("*").alias("rows"))
    )


class Side:
    """One way to run the query, and the folder that it keeps from block to block."""

    def __init__(self, name: str, spark: SparkSession, shape: Shape, folder: Path, conf: Mapping[str, str]) -> None:
        self.name, self.folder, self.shape = name, folder, shape
        self.spark = spark.newSession()
        for key, value in {**conf, "spark.sql.shuffle.partitions": str(shape.partitions)}.items():
            self.spark.conf.set(key, value)

    def start(self) -> StreamingQuery:
        raise NotImplementedError

    @property
    def checkpoint(self) -> Path:
        """Spark's own checkpoint directory, while the query runs."""
        raise NotImplementedError


class Plain(Side):
    """A foreachBatch that keeps the frame and makes two Parquet writes."""

    def __init__(self, spark: SparkSession, shape: Shape, folder: Path, format_version: int) -> None:
        conf = {**ROCKSDB, FORMAT: str(format_version)}
        super().__init__(f"plain Spark, format {format_version}", spark, shape, folder, conf)

    def start(self) -> StreamingQuery:
        writer = query(self.spark, self.shape).writeStream.outputMode("append").foreachBatch(self._write)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def _write(self, frame: DataFrame, micro_batch: int) -> None:
        frame.persist()
        for name in ("one", "two"):
            frame.write.mode("append").parquet(str(self.folder / name))
        frame.unpersist()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


class Ours(Side):
    """The same through ``sw.writeStream``, with the settings of ``sw.session()`` and every option at its default."""

    def __init__(self, spark: SparkSession, shape: Shape, folder: Path, conf: Mapping[str, str] = OURS) -> None:
        super().__init__("slackwater", spark, shape, folder, conf)

    def start(self) -> StreamingQuery:
        return (
            sw.writeStream(query(self.spark, self.shape))
            .queryName("bench")
            .outputMode("append")
            .options(store=str(self.folder / "store"), workdir=str(self.folder / "work"))
            .to("one", sw.FileSink(self.folder / "one"))
            .to("two", sw.FileSink(self.folder / "two"))
            .start()
        )

    @property
    def checkpoint(self) -> Path:
        (found,) = (self.folder / "work").glob("*/*/checkpoint")
        return found


class Block(msgspec.Struct, frozen=True):
    """What some micro-batches in a row cost."""

    walls_s: list[float]
    cpu_s: float

    @property
    def wall_s(self) -> float:
        return statistics.median(self.walls_s)


def run_block(side: Side, skip: int, count: int) -> Block:
    """Start the query where it was stopped, let it come into its stride, and measure ``count`` micro-batches."""
    running = side.start()
    try:
        ends = commits(running, side.checkpoint)
        for _ in range(skip - 1):
            next(ends)
        last, cpu_s, walls_s = next(ends), cpu_seconds(), []
        for _ in range(count):
            end = next(ends)
            walls_s.append(end - last)
            last = end
        return Block(walls_s, (cpu_seconds() - cpu_s) / count)
    finally:
        running.stop()
        unload_state(side.spark)


def commits(running: StreamingQuery, checkpoint: Path) -> Iterator[float]:
    """Yield the time at which each further micro-batch was committed."""
    folder = checkpoint / "commits"
    number = max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)
    while True:
        number += 1
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / str(number)).exists():
            if not running.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"micro-batch {number} did not come: {running.exception()}")
            time.sleep(_POLL_S)
        yield (folder / str(number)).stat().st_ctime


def unload_state(spark: SparkSession) -> None:
    """Close every state store and end their maintenance, whose interval would be that of the query that came first."""
    jvm: Any = spark._jvm
    getattr(getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$"), "MODULE$").stop()
