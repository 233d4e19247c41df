"""Ids joined with a reference table that changes all the time, as a program for `slackwater run`."""

from __future__ import annotations

import argparse
from pathlib import Path

import slackwater as sw
from demo.jvm import SHORT_LIVED_CONF

CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", **SHORT_LIVED_CONF}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    folder = args.folder
    spark = sw.session("scores", master=args.master, conf=CONF)
    merchants = sw.table(
        "merchants",
        key="merchant",
        schema="merchant bigint, change bigint, risk string",
        feed=sw.FileFeed(folder / "feed"),
    )
    ids = spark.readStream.schema("id bigint, merchant bigint").option("maxFilesPerTrigger", 1)
    query = (
        sw.writeStream(merchants.join(ids.json(str(folder / "input")), "merchant", "left"))
        .queryName("scores")
        .trigger(availableNow=True)
        .options(store=str(folder / "store"), workdir=str(folder / "work"), keep_last=100)
        .to("out", sw.FileSink(folder / "out"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
