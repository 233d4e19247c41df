"""A keyed pipeline whose store is a real S3 server: the local folder goes on, or all of it comes back from there."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import Conflict, InvalidInput, Unavailable
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.ops.keyed import keyed_checkpoints, outside_state
from slackwater.settings import Settings
from tests.services.proxy import LOST_ANSWER, RESET, SLOW_DOWN, in_front_of


def test_a_keyed_state_goes_on_and_comes_back_from_a_server(s3_server: Any, tmp_path: Path) -> None:
    url = s3_server.url(f"run-{uuid.uuid4()}/counts")
    with pytest.raises(InvalidInput, match="wal_path must be given"):
        open_keyed(CheckpointConfig(url), storage_options=s3_server.options)
    config = CheckpointConfig(url, wal_path=tmp_path / "wal", max_retained=2)
    with open_keyed(config, storage_options=s3_server.options) as counts:
        counts.write([(b"%06d" % n, os.urandom(100)) for n in range(20_000)], offsets={"rows": {"row": "20000"}})
        counts.create_checkpoint()
        for number in range(5):
            counts.put(b"n", b"%d" % number)
            made = counts.create_checkpoint()
        listed = keyed_checkpoints(url, storage_options=s3_server.options)
        assert made.is_incremental and [one.epoch for one in listed] == [6, 5]
        counts.create_checkpoint(b"outside")
        assert outside_state(url, storage_options=s3_server.options) == b"outside"
        counts.put(b"n", b"only here")
        before = dict(counts.scan())
    with open_keyed(config, storage_options=s3_server.options) as counts:
        assert counts.get(b"n") == b"only here"
    shutil.rmtree(tmp_path / "wal")
    with open_keyed(config, storage_options=s3_server.options) as counts:
        assert dict(counts.scan()) == {**before, b"n": b"4"} and counts.offsets == {"rows": {"row": "20000"}}
        with open_keyed(
            CheckpointConfig(url, wal_path=tmp_path / "elsewhere"), storage_options=s3_server.options
        ) as other:
            other.put(b"n", b"5")
            other.create_checkpoint()
        with pytest.raises(Conflict):
            counts.create_checkpoint()


def test_requests_that_are_lost_on_the_way_lose_nothing(s3_server: Any, tmp_path: Path) -> None:
    url = s3_server.url(f"run-{uuid.uuid4()}/counts")
    config = CheckpointConfig(url, wal_path=tmp_path / "wal")
    settings = Settings(request_timeout_s=2, total_timeout_s=10)
    row = failed = 0
    with in_front_of(s3_server, 7, {LOST_ANSWER: 8, RESET: 8, SLOW_DOWN: 4}) as proxy:
        while row < 20:
            try:
                with open_keyed(config, settings=settings, storage_options=proxy.options) as counts:
                    assert int(counts.offsets.get("rows", {}).get("row", 0)) == row
                    for _ in range(4):
                        counts.write([(b"%d" % row, b"x")], offsets={"rows": {"row": str(row + 1)}})
                        row += 1
                        counts.create_checkpoint()
            except Unavailable:
                failed += 1
                assert failed < 50
        assert sum(count for fault, count in proxy.befell.items() if fault) > 20
    with open_keyed(config, storage_options=s3_server.options) as counts:
        counts.create_checkpoint()
    shutil.rmtree(tmp_path / "wal")
    with open_keyed(config, storage_options=s3_server.options) as counts:
        assert dict(counts.scan()) == {b"%d" % n: b"x" for n in range(row)}
