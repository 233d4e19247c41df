"""The three programs that wrote ``stores/`` with release 0.1.0, and go on with those stores in the tests.

``PYTHONPATH=RELEASE/src:RELEASE python tests/golden/old_stores.py FOLDER`` wrote them. They are never written again:
stores of a later release belong beside them.

Each is in a folder of its own, ``store/`` with its sink beside it, and can be copied anywhere. The program's sink has a
relative address; the keyed state has no sink; the query's file sink has an absolute one, and may move all the same,
because it had committed everything when the last run ended. A program runs in its folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slackwater as sw
from tests.pipelines import FolderSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORES = Path(__file__).parent / "stores"
# The savepoint that each store has, at epoch 2.
LABEL = "before-upgrade"

# So small that a little state shows all three placements: inline, in a batch, in an object.
SMALL = {"inline_max_bytes": 100, "inline_budget_bytes": 400, "object_min_bytes": 4096}

# --- a program: epochs 1 to 10. Epoch 8 is a rollback to 6, and the sink does not have epoch 10 yet


def orders_sink() -> FolderSink:
    """Make the sink below the current folder, under an address that is the same wherever the store is."""
    return FolderSink(Path("lake"))


def open_orders(sink: FolderSink) -> Any:
    return sw.open_pipeline("store", "orders", sinks={"totals": sink}, settings=sw.Settings(keep_last=4, **SMALL))


def orders_state(row: int) -> dict[str, dict[int, bytes]]:
    """Make the state at a row: some of it changes with each row, some with every other one, some never."""
    return {
        "counts": {0: b"%d rows" % row, 1: b"%d even rows; " % (row // 2) * 30},
        "ports": {0: b"%d, Dover, Ostend; " % row * 300, 1: b"Dover, Ostend; " * 300},
    }


def take_row(pipeline: Any, sink: FolderSink) -> None:
    """Checkpoint the next row."""
    row = int(pipeline.offsets.get("rows", {}).get("row", 0)) + 1
    staged = {"totals": sink.stage(pipeline.attempt, f"row {row}").descriptors}
    pipeline.checkpoint(offsets={"rows": {"row": row}}, state=orders_state(row), staged=staged)


class AwaySink(FolderSink):
    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if epoch == 10:
            raise OSError("it is away")
        super().commit(descriptors, epoch)


def write_orders() -> None:
    sink = orders_sink()
    with open_orders(sink) as pipeline:
        for row in range(1, 8):
            take_row(pipeline, sink)
            if row == 2:
                pipeline.savepoint(LABEL)
    sw.rollback("store/orders", 6)
    with open_orders(sink) as pipeline:
        take_row(pipeline, sink)
    # This run does not end. It leaves what a program leaves that is killed before its sink commits.
    away = AwaySink(Path("lake"))
    try:
        take_row(open_orders(away), away)
    except sw.SlackwaterError as error:
        assert "did not commit epoch 10" in str(error)


# --- a keyed state: epochs 1 to 5, and in the local folder a sixth batch


def open_counts() -> Any:
    return sw.open_keyed(sw.CheckpointConfig("store/counts", max_retained=2))


def counts_changes(batch: int) -> list[tuple[bytes, bytes | None]]:
    """Make a batch of changes: every seventh key gets a value, every eleventh is deleted."""
    written = [(b"key-%03d" % key, b"of batch %d" % batch) for key in range(batch, 100, 7)]
    return [*written, *((b"key-%03d" % key, None) for key in range(batch, 100, 11))]


def counts_after(batches: int) -> dict[bytes, bytes]:
    content = dict(change for batch in range(1, batches + 1) for change in counts_changes(batch))
    return {key: value for key, value in content.items() if value is not None}


def write_batch(counts: Any) -> None:
    """Write the next batch; it is durable in the local folder then."""
    batch = int(counts.offsets.get("batches", {}).get("batch", 0)) + 1
    counts.write(counts_changes(batch), offsets={"batches": {"batch": str(batch)}}, watermark_ms=1000 * batch)


def write_counts() -> None:
    with open_counts() as counts:
        for batch in range(1, 6):
            write_batch(counts)
            counts.create_checkpoint(b"state from outside, batch %d" % batch)
            if batch == 2:
                counts.savepoint(LABEL)
        write_batch(counts)
    Path("store/counts.wal/state/LOG").unlink()  # RocksDB's messages: long, and never read


# --- a Spark query: epochs 1 to 6, one a run, into a folder and a function

# In each run. Most runs begin in the middle of a week, and only the state knows that it was told before.
DAYS = 10


def weeks(spark: SparkSession) -> DataFrame:
    """Tell each week once. Spark makes the days up by their numbers: no input has to be kept beside the store."""
    days = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", DAYS).option("startTimestamp", 0).load()
    return days.selectExpr("value div 7 AS week").dropDuplicates(["week"])


def weeks_after(runs: int) -> list[int]:
    return sorted({day // 7 for day in range(DAYS * runs)})


def take_days(spark: SparkSession, tell: Callable[[DataFrame, int], object], label: str | None = None) -> None:
    """Run the query over the next days, in the current folder."""
    writer = sw.writeStream(weeks(spark)).queryName("weeks").to("lake", sw.FileSink("lake")).to("told", tell)
    writer.options(store="store", workdir="work", keep_last=3, **SMALL)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if label is not None:
        query.savepoint(label)


def write_weeks() -> None:
    conf: dict[str, str | int | bool] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": 2,
        "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
        "spark.ui.enabled": False,
    }
    spark = sw.session(master="local[2]", conf=conf)
    for run in range(1, 7):
        take_days(spark, lambda frame, micro_batch: frame.collect(), LABEL if run == 2 else None)
    spark.stop()
    shutil.rmtree("work")


if __name__ == "__main__":
    for name, write in {"orders": write_orders, "counts": write_counts, "weeks": write_weeks}.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        os.chdir(folder)
        write()
