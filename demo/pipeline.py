"""The demo's pipeline: payments, deduplicated, totalled by merchant and window, joined with a table, into two sinks."""

from __future__ import annotations

import argparse
from pathlib import Path

import slackwater as sw
from demo.jvm import SHORT_LIVED_CONF
from demo.payments_stream import totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the store, the working directory and both sinks go")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rows-per-batch", type=int, default=2_000)
    parser.add_argument("--keep-last", type=int, default=3)
    parser.add_argument("--epochs-in-flight", type=int, default=2)
    parser.add_argument(
        "--fallback", action="store_true", help="over a damaged head, go back to the newest that verifies"
    )
    parser.add_argument("--merchants", type=Path, help="join the totals with a table of merchants: its feed's folder")
    args = parser.parse_args()

    spark = sw.session(
        "payments",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": False,
            **SHORT_LIVED_CONF,
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": 4,
            "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    frame = totals(spark, rows=args.rows, rows_per_batch=args.rows_per_batch)
    if args.merchants:
        merchants = sw.table(
            "merchants",
            key="merchant",
            schema="merchant string, change bigint, risk string",
            feed=sw.FileFeed(args.merchants),
        )
        frame = merchants.join(frame, on="merchant", how="left")
    writer = (
        sw.writeStream(frame)
        .queryName("payments")
        .outputMode("append")
        .trigger(availableNow=True)
        .option("store", str(args.folder / "store"))
        .option("workdir", str(args.folder / "work"))
        .option("keep_last", args.keep_last)
        .option("epochs_in_flight", args.epochs_in_flight)
        .to("delta", sw.DeltaSink(args.folder / "totals-delta"))
        .to("files", sw.FileSink(args.folder / "totals-files"))
    )
    if args.fallback:
        writer = writer.option("fallback", "newest-verified")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
