"""A pipeline whose store, a real S3 server, does not answer for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import slackwater as sw
from demo.payments_stream import totals
from slackwater.streaming.query import PipelineQuery
from tests.services.seaweed import Seaweed, running
from tests.spark.test_pipeline import PER_BATCH, ROWS, equals_the_oracle
from tests.spark.trickle import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    with running() as server:
        yield server


def start(spark: SparkSession, server: Seaweed, folder: Path, **options: float) -> PipelineQuery:
    writer = (
        sw.writeStream(totals(spark, rows=ROWS, rows_per_batch=PER_BATCH))
        .queryName("payments")
        .trigger(availableNow=True)
        .options(store=server.url(folder.name), workdir=str(folder / "work"), request_timeout_s=1, **options)
        .to("delta", sw.DeltaSink(folder / "totals-delta"))
        .to("files", sw.FileSink(folder / "totals-files"))
    )
    for name, value in server.options.items():
        writer = writer.option(f"store.{name}", value)
    return writer.start()


def test_a_store_that_comes_back_in_time_is_waited_for(spark: SparkSession, server: Seaweed, tmp_path: Path) -> None:
    query = start(spark, server, tmp_path, total_timeout_s=60)
    eventually(lambda: len(query.checkpoints()) >= 1)
    with server.stopped():
        time.sleep(4)
    query.awaitTermination()
    equals_the_oracle(tmp_path)


def test_a_store_that_stays_away_ends_the_query_with_the_typed_error_and_nothing_is_lost(
    spark: SparkSession, server: Seaweed, tmp_path: Path
) -> None:
    query = start(spark, server, tmp_path, total_timeout_s=3)
    eventually(lambda: len(query.checkpoints()) >= 1)
    with server.stopped(), pytest.raises(sw.Unavailable) as raised:
        query.awaitTermination(90)
    assert raised.value.exit_code == 12
    assert "test-secret" not in str(raised.value)
    assert not any(thread.name == "slackwater-checkpoints" for thread in threading.enumerate())
    start(spark, server, tmp_path, total_timeout_s=60).awaitTermination()
    equals_the_oracle(tmp_path)
