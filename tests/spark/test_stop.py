"""Stopping with a savepoint: the last checkpoint of the run gets the label, or nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import slackwater as sw
from slackwater.ops.savepoint import create_label
from slackwater.streaming.query import PipelineQuery
from tests.spark.trickle import Failing, Trickle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def trickle(spark: SparkSession, tmp_path: Path) -> Trickle:
    return Trickle(spark, tmp_path)


def labels(trickle: Trickle) -> dict[str, int]:
    state = trickle.log().read()
    assert state is not None
    return {savepoint.label: savepoint.epoch for savepoint in state.labels}


def test_the_last_checkpoint_of_the_run_gets_the_label(trickle: Trickle) -> None:
    trickle.drop(range(3), range(3, 6))
    query = trickle.to_files().start()
    query.processAllAvailable()
    assert query.savepoint("while-running").epoch == 2
    create_label(trickle.log(), "old", "1")
    for label, code in (("old", "label.taken"), ("7", "name.invalid"), ("@x", "name.invalid")):
        with pytest.raises(sw.SlackwaterError) as raised:
            query.stop(savepoint=label)
        assert raised.value.code == code
        assert query.isActive, "a label that cannot be given must not stop the pipeline"
    trickle.drop(range(6, 9))
    query.processAllAvailable()
    query.stop(savepoint="upgrade")
    assert labels(trickle) == {"while-running": 2, "old": 1, "upgrade": 3}


def test_an_open_epoch_is_closed_first_and_a_later_driver_does_not_get_the_label(trickle: Trickle) -> None:
    trickle.drop(range(3))
    query = trickle.to_files(interval_s=3600).trigger(availableNow=True).start()
    query.awaitTermination()
    trickle.drop(range(3, 6))
    trickle.to_files().trigger(availableNow=True).start().awaitTermination()
    # The run has ended long since; its last checkpoint is not the newest.
    query.stop(savepoint="before")
    assert labels(trickle) == {"before": 1}


def test_a_run_that_failed_raises_and_gives_no_label(trickle: Trickle) -> None:
    trickle.drop(range(3))
    trickle.to_files().trigger(availableNow=True).start().awaitTermination()
    trickle.drop(range(3, 6))
    failing = Failing(sw.FileSink(trickle.folder / "out"), "stage", OSError("disk"))
    failing.failing = False
    writer = trickle.writer().to("files", failing)
    failing.failing = True
    query: PipelineQuery = writer.start()
    with pytest.raises(OSError, match="disk"):
        query.awaitTermination(60)
    with pytest.raises(OSError, match="disk"):
        query.stop(savepoint="never")
    bad = trickle.ids().selectExpr("if(id > 2, raise_error('bad row'), id) AS id")
    again = sw.writeStream(bad).queryName("ids").option("store", str(trickle.folder / "store"))
    query = again.option("accept_changes", True).to("files", sw.FileSink(trickle.folder / "out")).start()
    with pytest.raises(Exception, match="bad row"):
        query.awaitTermination(60)
    with pytest.raises(Exception, match="bad row"):
        query.stop(savepoint="never")
    assert labels(trickle) == {}


def test_without_a_checkpoint_there_is_nothing_to_label(trickle: Trickle) -> None:
    query = trickle.to_files().start()
    with pytest.raises(sw.NotFound, match=r"\[checkpoint.none\]"):
        query.stop(savepoint="empty")
    assert not query.isActive
