"""Epochs that span several micro-batches: when they close, what they hold, and what a failure leaves of them."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.formats.manifest import Manifest
from slackwater.protocol.verified_reads import load_manifest
from slackwater.store import open_store
from slackwater.streaming.coordinator import Coordinator
from tests.spark.trickle import Failing, Trickle, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_S = 3600


@pytest.fixture
def trickle(spark: SparkSession, tmp_path: Path) -> Trickle:
    return Trickle(spark, tmp_path)


def manifests(trickle: Trickle) -> list[Manifest]:
    state = trickle.log().read()
    assert state is not None
    store = open_store(str(trickle.folder / "store" / "ids"))
    return [load_manifest(store, entry) for entry in state.live]


def staged_rows(manifest: Manifest) -> list[int]:
    """How many rows each micro-batch of the epoch has staged."""
    return [sum(file["rows"] for file in d["files"]) for d in manifest.sinks["files"].descriptors]


def finish(trickle: Trickle, **options: Any) -> None:
    trickle.to_files(**options).trigger(availableNow=True).start().awaitTermination()


def test_the_end_of_available_now_closes_the_epoch_of_all_its_micro_batches(
    trickle: Trickle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slackwater")
    trickle.drop(range(10), range(5, 20), range(20, 30))
    finish(trickle, interval_s=HOUR_S)
    (manifest,) = manifests(trickle)
    assert (manifest.epoch, manifest.micro_batch) == (1, 2)
    assert staged_rows(manifest) == [10, 10, 10]
    assert {d["attempt"] for d in manifest.sinks["files"].descriptors} == {manifest.checkpoint_id}
    assert "epoch 1, micro-batches 0 to 2: " in caplog.text
    trickle.drop(range(25, 40))
    finish(trickle, interval_s=HOUR_S)
    assert trickle.out() == list(range(40))


class Ahead(SystemClock):
    """A clock that a test puts forward. It runs on: a wait for Spark's commit has to end."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def test_an_epoch_closes_in_time_though_the_source_is_quiet_and_shows_nothing_before(trickle: Trickle) -> None:
    query = trickle.to_files(interval_s=HOUR_S).start()
    query._coordinator._clock = clock = Ahead()
    try:
        trickle.drop(range(10))
        eventually(lambda: query._coordinator._epochs.newest == 0)
        trickle.drop(range(10, 20))
        eventually(lambda: query._coordinator._epochs.newest == 1)
        assert query.checkpoints() == []
        assert trickle.out() == []
        clock.ahead_s += HOUR_S
        eventually(lambda: query._coordinator._epochs.settled == 1)
        assert trickle.out() == list(range(20))
        assert [staged_rows(manifest) for manifest in manifests(trickle)] == [[10, 10]]
        trickle.drop(range(15, 30))
        # Staged is not enough: what Spark has not committed is dropped with the stop, and done again by the next start.
        # Its progress does not tell: an idle Spark names the next micro-batch, too.
        eventually((query._coordinator._workspace.directory.checkpoint / "commits" / "2").exists)
        query.stop()
    finally:
        query.stop()
    # Stopping did not wait for the time to be over, nor lose what was open.
    assert [staged_rows(manifest) for manifest in manifests(trickle)] == [[10, 10], [10]]
    assert trickle.out() == list(range(30))


def test_process_all_available_closes_the_open_epoch_and_lets_the_query_go_on(trickle: Trickle) -> None:
    query = trickle.to_files(interval_s=HOUR_S).start()
    try:
        trickle.drop(range(10), range(10, 20))
        query.processAllAvailable()
        assert trickle.out() == list(range(20))
        trickle.drop(range(20, 30), range(30, 40))
        query.processAllAvailable()
        assert trickle.out() == list(range(40))
        assert [entry.epoch for entry in query.checkpoints()] == [1, 2]
    finally:
        query.stop()


def test_a_sink_that_fails_later_loses_nothing_that_spark_had_committed(trickle: Trickle) -> None:
    trickle.drop(range(10), range(10, 20), range(20, 30))
    failing = Failing(sw.FileSink(trickle.folder / "second"), "stage", OSError("disk"))
    failing.failing = False
    writer = trickle.to_files(interval_s=HOUR_S).to("second", failing)

    def arm(_: DataFrame, micro_batch: int) -> None:
        failing.failing = micro_batch == 1

    query = writer.foreachBatch(arm).start()
    with pytest.raises(OSError, match="disk"):
        query.awaitTermination(60)
    (manifest,) = manifests(trickle)
    assert (manifest.micro_batch, staged_rows(manifest)) == (1, [10, 10])
    failing.failing = False
    writer = trickle.to_files(interval_s=HOUR_S).to("second", failing).foreachBatch(lambda frame, n: None)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert trickle.out() == list(range(30))


def test_what_was_staged_and_never_committed_by_spark_is_cut_off_and_done_again(
    trickle: Trickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Coordinator.stage

    def stage_and_fail(self: Coordinator, frame: DataFrame, micro_batch: int) -> None:
        stage(self, frame, micro_batch)
        if micro_batch == 2:
            raise OSError("after the sinks, before Spark's commit")

    trickle.drop(range(10), range(10, 20), range(20, 30), range(30, 40))
    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "stage", stage_and_fail)
        query = trickle.to_files(interval_s=HOUR_S).start()
        with pytest.raises(Exception, match="before Spark's commit"):
            query.awaitTermination(60)
    assert query._coordinator._epochs.newest == 2
    (manifest,) = manifests(trickle)
    assert (manifest.micro_batch, staged_rows(manifest)) == (1, [10, 10])
    assert trickle.out() == list(range(20))
    finish(trickle, interval_s=HOUR_S)
    assert trickle.out() == list(range(40))


def test_spark_gets_only_so_far_that_it_keeps_the_files_of_an_epoch_that_is_not_stored_yet(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.minBatchesToRetain", "6")
    trickle, gate = Trickle(own, tmp_path), threading.Event()

    class Slow(Failing):
        def __getattr__(self, name: str) -> Any:
            if name == "commit":
                gate.wait(60)
            return getattr(self._sink, name)

    trickle.drop([0])
    slow = Slow(sw.FileSink(tmp_path / "out"), "commit", OSError())
    query = trickle.writer(interval_s=HOUR_S).to("files", slow).start()
    epochs = query._coordinator._epochs
    closer = threading.Thread(target=query.processAllAvailable, daemon=True)
    closer.start()
    eventually(lambda: len(epochs.closed) == 1)
    trickle.drop(*([n] for n in range(1, 8)))
    eventually(lambda: epochs.newest == 2)
    time.sleep(2)
    assert epochs.newest == 2
    stopper = threading.Thread(target=query.stop, daemon=True)
    stopper.start()
    time.sleep(0.5)
    gate.set()
    for thread in (stopper, closer):
        thread.join(60)
    assert not query.isActive
    assert trickle.out() == [0, 1, 2]
    finish(trickle)
    assert trickle.out() == list(range(8))
