"""A pipeline over an inbox, as a program for `slackwater run`: every message with its position into a file sink."""

from __future__ import annotations

import sys
from pathlib import Path

import slackwater as sw
from demo.jvm import SHORT_LIVED_CONF


def main(inbox: Path, folder: Path, *, once: bool) -> None:
    conf: dict[str, str | int | bool] = {**SHORT_LIVED_CONF, "spark.ui.enabled": False}
    spark = sw.session("inbox", master="local[2]", conf=conf)
    frame = sw.inbox(spark, inbox, partitions=2)
    writer = sw.writeStream(frame.select("position", "message")).queryName("clicks").option("store", folder / "store")
    writer = writer.option("workdir", folder / "work").option("keep_last", 2).to("files", sw.FileSink(folder / "sink"))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), once="--once" in sys.argv)
