"""What every test may use: one Spark session for the whole run, and a small S3 server for each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import slackwater as sw
from demo.jvm import JVM_OPTIONS, SHORT_LIVED_JVM
from tests.services import tiny_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shell starts what runs in its background with SIGINT ignored, and every process of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The inodes of all that this process has synced by itself: RocksDB does it below Python."""
    inodes: set[int] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        inodes.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    yield inodes


@pytest.fixture
def tiny() -> Iterator[tiny_s3.TinyS3]:
    with tiny_s3.running() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once, as a user of Slackwater would; snapshots come early, so that tests meet them."""
    os.environ.setdefault(JVM_OPTIONS, SHORT_LIVED_JVM)
    session = sw.session(
        "tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": False,
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": 2,
            "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
