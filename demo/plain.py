"""Plain Spark over a flipped bit: totals by merchant and window, stopped on Monday, gone on with on Tuesday."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from demo.flipping import flip
from demo.jvm import SHORT_LIVED_CONF
from demo.oracle import Key, Total, compare, total_up
from demo.payments import STEP_MS, WINDOW_MS, payment
from demo.payments_stream import SCHEMA, record_batch, total_by_window
from demo.unnoticed import Outcome
from slackwater.spark.java import ensure_java

DAY_MS = 86_400_000
TUESDAY = DAY_MS // STEP_MS  # the sequence number of its first payment
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# In an SST file the data blocks come first, and none is smaller than this.
IN_FIRST_BLOCK = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for the payments, the checkpoints and the totals")
    parser.add_argument("--payments", type=int, default=20_000, help="how many a day")
    args = parser.parse_args()
    sys.stdout.buffer.write(msgspec.json.encode(play(args.folder, args.payments)))


def play(folder: Path, payments: int) -> Outcome:
    """Run Monday, flip the bit, run Tuesday; and Tuesday once more from a copy without the flip."""
    spark, inbox, damaged, sound = session(), folder / "payments", folder / "damaged", folder / "sound"
    put_day(inbox / "monday.parquet", 0, payments)
    before = run(spark, inbox, damaged)
    shutil.copytree(damaged, sound)
    file = damage(damaged / "checkpoint")
    put_day(inbox / "tuesday.parquet", TUESDAY, payments)
    after = error = None
    try:
        after = run(spark, inbox, damaged)
    except Exception as raised:
        error = str(raised).splitlines()[0]
    after_without_flip = run(spark, inbox, sound)
    expected = closed_totals(payments)
    written = read(spark, damaged / "totals")
    found, control = compare(expected, written), compare(expected, read(spark, sound / "totals"))
    return Outcome(
        spark=spark.version,
        payments=payments,
        file=str(file.relative_to(damaged)),
        state_rows_before=before,
        state_rows_after=after,
        state_rows_without_flip=after_without_flip,
        error=error,
        expected=len(expected),
        written=len(written),
        lost=len(found.lost),
        surplus=found.surplus,
        lost_without_flip=len(control.lost),
        surplus_without_flip=control.surplus,
    )


def session() -> SparkSession:
    """Make a session that is Spark's own in all that touches state, but for the RocksDB provider."""
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf: dict[str, bool | float | int | str | None] = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **SHORT_LIVED_CONF,
    }
    spark = SparkSession.builder.appName("plain").master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def put_day(file: Path, first: int, rows: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([record_batch(first, first + rows)]), file)


def totals(spark: SparkSession, inbox: Path) -> DataFrame:
    """Total by merchant and ten-minute window; a payment may come a day late."""
    paid = spark.readStream.schema(SCHEMA).parquet(str(inbox))
    return total_by_window(paid.withWatermark("at", f"{DAY_MS} milliseconds"))


def run(spark: SparkSession, inbox: Path, place: Path) -> int:
    """Run the query over all files that are new to it, and stop it; return how many rows it says its state has."""
    query = (
        totals(spark, inbox)
        .writeStream.format("parquet")
        .option("path", str(place / "totals"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    return int(progress["stateOperators"][0]["numRowsTotal"])


def damage(checkpoint: Path) -> Path:
    """Flip one bit in the first data block of the largest SST file."""
    file = max(checkpoint.glob("state/0/*/SSTs/*.sst"), key=lambda file: file.stat().st_size)
    flip(file, IN_FIRST_BLOCK)
    # Hadoop's local file system keeps a hidden checksum beside each file, and would notice. Object stores have none.
    file.with_name(f".{file.name}.crc").unlink()
    return file


def read(spark: SparkSession, path: Path) -> list[tuple[int, str, int, int]]:
    return [
        (round(row.window_start.timestamp() * 1000), row.merchant, row.amount_cents, row.payments)
        for row in spark.read.parquet(str(path)).collect()
    ]


def closed_totals(a_day: int) -> dict[Key, Total]:
    """Compute, apart from Spark, the totals of each window that Tuesday's newest payment closes."""
    paid = [payment(first + i) for first in (0, TUESDAY) for i in range(a_day)]
    watermark_ms = max(one.at_ms for one in paid) - DAY_MS
    return {key: total for key, total in total_up(paid).items() if key[0] + WINDOW_MS <= watermark_ms}


if __name__ == "__main__":
    main()
