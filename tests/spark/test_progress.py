"""What a running pipeline tells about its checkpoints: in Spark's own progress, and to Prometheus."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import slackwater as sw
from tests.spark.trickle import Failing, Trickle, eventually
from tests.unit.test_metrics import scrape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def trickle(spark: SparkSession, tmp_path: Path) -> Trickle:
    return Trickle(spark, tmp_path)


def test_the_progress_of_spark_tells_of_the_newest_checkpoint(trickle: Trickle) -> None:
    trickle.drop(range(10), range(10, 20))
    query = trickle.to_files().start()
    try:
        query.processAllAvailable()
        eventually(lambda: query.lastProgress is not None)
        progress = query.lastProgress
        assert progress is not None
        told: dict[str, Any] = progress["slackwater"]
        newest = query.checkpoints()[-1]
        assert (
            (told["epoch"], told["checkpointId"]) == (newest.epoch, newest.checkpoint_id) == (2, told["checkpointId"])
        )
        assert 0 <= told["checkpointAgeMs"] < 30_000
        assert told["lastError"] is None
        assert told["epochsInFlight"] == 0
        assert told["newBytes"] > 0
        assert told["fullBytes"] > 0
        assert set(told["durationMs"]) == {"capture", "artifacts", "manifest", "append", "commit", "latest"}
        # The manifest, the record and the pointer; so little state has no object of its own.
        assert told["requests"] == {"put": 3, "get": 0, "list": 1, "delete": 0}
        # Spark's own fields stay, and its JSON has ours too.
        assert progress.name == "ids"
        assert json.loads(progress.json)["slackwater"] == told == json.loads(json.dumps(told))
        assert ["slackwater" in entry for entry in query.recentProgress[-2:]] == [False, True]
    finally:
        query.stop()
    after = query.lastProgress
    assert after is not None
    assert after["slackwater"]["epoch"] == 2
    assert after["slackwater"]["checkpointAgeMs"] >= told["checkpointAgeMs"]


def test_the_progress_tells_the_error_without_the_text_of_foreign_ones(trickle: Trickle) -> None:
    trickle.drop(range(10))
    failing = Failing(sw.FileSink(trickle.folder / "out"), "commit", OSError("password=hunter2"))
    query = trickle.writer().to("files", failing).start()
    with pytest.raises(sw.SlackwaterError, match=r"\[sink.commit_failed\]"):
        query.awaitTermination(60)
    assert query.lastProgress is not None
    told = query.lastProgress["slackwater"]
    assert told["lastError"] == "[sink.commit_failed] the sink 'files' did not commit epoch 1: OSError"
    assert (told["epoch"], told["checkpointAgeMs"], told["newBytes"], told["durationMs"]) == (None, None, None, {})


def test_metrics_are_served_while_the_query_runs(trickle: Trickle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="slackwater")
    trickle.drop(range(10), range(10, 20))
    query = trickle.to_files(metrics=0).start()
    try:
        assert query.metrics_address is not None
        assert f"http://{query.metrics_address}/metrics" in caplog.text
        query.processAllAvailable()
        found = scrape(query.metrics_address)
        assert found["slackwater_epoch", "ids"] == 2
        assert found["slackwater_checkpoints_total", "ids"] == 2
        assert found["slackwater_checkpoint_duration_seconds_count", "ids"] == 2
        assert found["slackwater_state_bytes", "ids"] > 0
        assert found["slackwater_requests_total", "ids", "put"] >= 6
        assert 0 <= found["slackwater_checkpoint_age_seconds", "ids"] < 30
    finally:
        query.stop()
    with pytest.raises(ConnectionRefusedError):
        scrape(query.metrics_address)


def test_a_port_that_is_taken_stops_the_start_before_it_claims(trickle: Trickle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(sw.InvalidInput, match=r"\[option.invalid\]"):
            trickle.to_files(metrics=f"127.0.0.1:{taken.getsockname()[1]}").start()
        port = taken.getsockname()[1]
    assert not (trickle.folder / "store").exists()
    # A start that fails gives the address back.
    with pytest.raises(sw.Unsupported, match=r"\[delivery.weaker\]"):
        trickle.to_files(metrics=port, delivery="exactly-once").foreachBatch(lambda frame, n: None).start()
    with pytest.raises(ConnectionRefusedError):
        scrape(f"127.0.0.1:{port}")
