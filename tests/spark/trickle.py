"""A stream that a test feeds by hand: every file that is dropped into a folder is one micro-batch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.protocol.log import Log
from slackwater.settings import Settings
from slackwater.sinks.files.reader import read_committed
from slackwater.store import open_store
from slackwater.streaming.writer import PipelineWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Trickle:
    """Ids, each of which the query ``ids`` lets through once, however often it was dropped in."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.folder = spark, folder
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._dropped, self._began = 0, int(time.time()) - 10_000

    def drop(self, *files: Iterable[int]) -> None:
        """Give the source more to read: one file each."""
        for ids in files:
            self._dropped += 1
            hidden = self._input / f".{self._dropped:04d}.json"
            hidden.write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))
            # Spark reads the oldest first, and files of one moment in any order.
            os.utime(hidden, (self._began + self._dropped,) * 2)
            hidden.rename(self._input / hidden.name.removeprefix("."))

    def rows(self) -> DataFrame:
        source = self._spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
        return source.json(str(self._input))

    def ids(self) -> DataFrame:
        return self.rows().dropDuplicates(["id"])

    def writer(self, **options: Any) -> PipelineWriter:
        """Write through a pipeline that has no sink yet."""
        return (
            sw.writeStream(self.ids())
            .queryName("ids")
            .options(**{"store": str(self.folder / "store"), "workdir": str(self.folder / "work"), **options})
        )

    def to_files(self, **options: Any) -> PipelineWriter:
        return self.writer(**options).to("files", sw.FileSink(self.folder / "out"))

    def log(self) -> Log:
        return Log(open_store(str(self.folder / "store" / "ids")), SystemClock(), Settings())

    def out(self, name: str = "out") -> list[int]:
        """Read what is committed, sorted."""
        if not (self.folder / name).exists():
            return []
        files = read_committed(self.folder / name)
        return sorted(row.id for row in self._spark.read.parquet(*files).collect()) if files else []


class Failing:
    """A sink that does what it wraps, but for one verb while it is told to fail."""

    def __init__(self, sink: Any, verb: str, error: Exception) -> None:
        self._sink, self._verb, self._error = sink, verb, error
        self.failing = True

    def __getattr__(self, name: str) -> Any:
        if name == self._verb and self.failing:
            raise self._error
        return getattr(self._sink, name)


def eventually(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
