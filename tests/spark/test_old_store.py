"""The store of a Spark query that release 0.1.0 wrote: today's code goes on with it, rolls it back and restores it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import slackwater as sw
from tests.commands import answer
from tests.golden.old_stores import LABEL, STORES, take_days, weeks, weeks_after

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL = "store/weeks"


class Told:
    """A function as a sink, with the weeks that it was told since the last look."""

    def __init__(self) -> None:
        self._weeks: list[int] = []

    def __call__(self, frame: DataFrame, micro_batch: int) -> None:
        self._weeks += [row.week for row in frame.collect()]

    def look(self) -> list[int]:
        told, self._weeks = sorted(self._weeks), []
        return told


@pytest.fixture(autouse=True)
def _at_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STORES / "weeks", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def in_the_lake() -> list[int]:
    return sorted(week for file in sw.read_committed("lake") for week in pq.read_table(file)["week"].to_pylist())


def new_in(run: int) -> list[int]:
    return sorted(set(weeks_after(run)) - set(weeks_after(run - 1)))


def test_a_query_goes_on_and_is_rolled_back_with_its_moved_sink(spark: SparkSession) -> None:
    told = Told()
    assert in_the_lake() == weeks_after(6)
    # The folder has moved since. From the next checkpoint on, the store knows where it is, and so does the rollback.
    take_days(spark, told)
    assert (told.look(), in_the_lake()) == (new_in(7), weeks_after(7))
    plan = answer("rollback", URL, "--to", LABEL, "--yes")["plan"]
    assert {sink["name"]: sink["action"] for sink in plan["sinks"]} == {"lake": "undo", "told": "keep"}
    take_days(spark, told)
    assert (told.look(), in_the_lake()) == (new_in(3), weeks_after(3))
    checkpoints = answer("list", URL)["checkpoints"]
    assert [checkpoint["epoch"] for checkpoint in checkpoints if not checkpoint["undone"]][-2:] == [8, 9]
    assert answer("verify", URL, "--read-data")["sound"]


def test_plain_spark_goes_on_from_the_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    told = Told()
    assert answer("restore", URL, "--at", LABEL, "--to", "restored")["epoch"] == 2
    writer = weeks(spark).writeStream.foreachBatch(told).option("checkpointLocation", str(tmp_path / "restored"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert told.look() == new_in(3)
