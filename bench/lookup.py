"""A stream joined with a million rows that change: looked up, or read and broadcast in every micro-batch."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import slackwater as sw

from .turns import compare, take_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLE_ROWS, CHANGES, STREAM_ROWS = 1_000_000, 1_000, 10_000
SCHEMA = "id bigint, name string, risk double"
# A stream runs for days: the first micro-batches, in which the JVM compiles, are not what counts.
WARM_UP, COUNTED = 30, 30
GOAL = 5
CONF: dict[str, str | int | bool] = {
    "spark.driver.memory": "3g",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.shuffle.partitions": 2,
}


class Generated(sw.Feed):
    """The whole table first, then a thousand changes for every version."""

    kind = "generated"

    def __init__(self) -> None:
        self._given = False

    def read(self, position: Mapping[str, str], schema: pa.Schema) -> sw.Changes | None:
        if not position:
            return sw.Changes(rows_of(range(TABLE_ROWS)).to_batches(), "the whole", {"version": "0"})
        self._given = not self._given
        if not self._given:
            return None
        version = int(position["version"]) + 1
        chosen = random.Random(version).sample(range(TABLE_ROWS), CHANGES)
        return sw.Changes(rows_of(chosen).to_batches(), "some", {"version": str(version)})


def rows_of(ids: Any) -> pa.Table:
    numbers = list(ids)
    return pa.table(
        {"id": numbers, "name": [f"merchant {i:08d} of some length" for i in numbers], "risk": [i / 7 for i in numbers]}
    )


def measure(folder: Path, rounds: int) -> None:
    """Print the case. On the peer's side the table does not change: to take changes in would only cost it more."""
    spark = sw.session("bench", master="local[2]", conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    (folder / "table").mkdir(parents=True)
    pq.write_table(rows_of(range(TABLE_ROWS)), folder / "table" / "part-0.parquet")
    sides = {
        "ours": partial(_run, partial(_ours, spark, folder), folder),
        "broadcast": partial(_run, partial(_broadcast, spark, folder), folder),
    }
    what = "Spark reads the table's Parquet file and broadcasts it in each micro-batch; it does not change there"
    measured = take_turns(sides, min(rounds, 3))
    spark.stop()
    compare("lookup-join-1M", measured, peers={"broadcast": what}, goal=GOAL, suite="incremental")


def _run(start: Any, folder: Path) -> float:
    """Tell how long a micro-batch takes, when several follow each other, by the times at which Spark began them.

    Asked seldom: each question for its progress takes the query a part of a core.
    """
    query: StreamingQuery = start(folder / str(time.monotonic_ns()))
    try:
        while (progress := query.lastProgress) is None or progress["batchId"] < WARM_UP + COUNTED:
            if (failure := query.exception()) is not None:
                raise failure
            time.sleep(0.5)
        began = {each["batchId"]: datetime.fromisoformat(each["timestamp"]) for each in query.recentProgress}
        return (began[WARM_UP + COUNTED] - began[WARM_UP]).total_seconds() / COUNTED
    finally:
        query.stop()


def _stream(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", STREAM_ROWS).load()
    return source.selectExpr(f"pmod(value * 7919, {TABLE_ROWS}) AS id", "value")


def _ours(spark: SparkSession, folder: Path, room: Path) -> StreamingQuery:
    table = sw.table("merchants", key="id", schema=SCHEMA, feed=Generated())
    writer = sw.writeStream(table.join(_stream(spark), "id")).queryName("scored")
    writer = writer.options(store=str(room / "store"), workdir=str(room / "work"))
    return writer.to("out", sw.FileSink(room / "out")).start()


def _broadcast(spark: SparkSession, folder: Path, room: Path) -> StreamingQuery:
    from pyspark.sql import functions as F  # noqa: PLC0415

    table = spark.read.schema(SCHEMA).parquet(str(folder / "table"))
    joined = _stream(spark).join(F.broadcast(table), "id")

    def write(frame: DataFrame, micro_batch: int) -> None:
        frame.write.parquet(str(room / "out" / str(micro_batch)))

    return joined.writeStream.foreachBatch(write).option("checkpointLocation", str(room / "checkpoint")).start()
