"""Both sinks on a real S3 server: requests that are spoilt, and a server that does not answer."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from slackwater.errors import InvalidInput, Unavailable
from slackwater.sinks.delta.sink import DeltaSink
from slackwater.sinks.files.reader import read_committed
from slackwater.sinks.files.sink import FileSink
from tests.services.proxy import CUT, LOST_ANSWER, RESET, SLOW_DOWN, TOO_MANY, in_front_of
from tests.services.seaweed import SECRET_KEY, Seaweed, running

from .conftest import UID, new_attempt

KINDS = ["delta", "files"]
COLUMN = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    with running() as server:
        yield server


def open_sink(kind: str, url: str, options: Mapping[str, str]) -> Any:
    sink: Any = (DeltaSink if kind == "delta" else FileSink)(url, storage_options=options)
    sink.bind("orders", "totals", UID)
    return sink


def commit(sink: Any, epoch: int) -> None:
    """Stage the epoch's number as one row, where Spark would, and commit it."""
    attempt, file = new_attempt(), io.BytesIO()
    pq.write_table(pa.table({"id": [epoch]}), file)
    sink._staging.tick(attempt)
    path = f"{sink._staging.folder(attempt)}part-0.parquet"
    sink._staging._store.put(path, file.getvalue())
    files = [{"path": path, "size_bytes": len(file.getvalue()), "rows": 1}]
    sink.commit([{"attempt": attempt, "files": files, "schema": {"type": "struct", "fields": [COLUMN]}}], epoch)


def rows(kind: str, url: str, server: Seaweed) -> list[int]:
    if kind == "delta":
        table = DeltaTable(url, storage_options={**server.options, "allow_http": "true"}).to_pyarrow_table()
        return sorted(table["id"].to_pylist())
    names = [path.rpartition("/")[2] for path in read_committed(url, storage_options=server.options)]
    return sorted(int(name[:20]) for name in names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [RESET, LOST_ANSWER, CUT, SLOW_DOWN, TOO_MANY])
def test_every_epoch_is_committed_once_though_requests_are_spoilt(kind: str, fault: str, server: Seaweed) -> None:
    url = server.url(f"{kind}-{fault[:3].strip()}")
    with in_front_of(server, 5, {fault: 30}) as proxy:
        for epoch in (1, 2, 3):  # each by a sink that knows nothing yet, as after a start
            sink = open_sink(kind, url, {**proxy.options, "timeout": "5s", "retry_timeout": "60s"})
            commit(sink, epoch)
            assert sink.epoch() == epoch and sink.staged() == []
        assert proxy.befell[fault]
    assert rows(kind, url, server) == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_what_spark_writes_to_be_uploaded_is_not_left_on_the_disk(
    kind: str, server: Seaweed, spark: SparkSession
) -> None:
    url, hurried = server.url(f"{kind}-uploaded"), {**server.options, "timeout": "1s", "retry_timeout": "3s"}
    sink = open_sink(kind, url, hurried)
    sink.commit([sink.stage(spark.range(1), new_attempt(), 0)], 1)
    assert sink.epoch() == 1
    with server.stopped(), pytest.raises(Unavailable):
        sink._staging.write(spark.range(1), new_attempt(), 1)
    assert list(Path(SparkFiles.getRootDirectory()).glob("slackwater-*")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_is_done_once_though_requests_are_spoilt(kind: str, server: Seaweed) -> None:
    url = server.url(f"{kind}-undo")
    with in_front_of(server, 6, {LOST_ANSWER: 10, CUT: 10}) as proxy:
        sink = open_sink(kind, url, {**proxy.options, "timeout": "5s", "retry_timeout": "60s"})
        for epoch in (1, 2, 3):
            commit(sink, epoch)
        sink.undo(1, 4)
        commit(sink, 5)
    assert rows(kind, url, server) == [1, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_does_not_answer_is_unavailable_within_the_deadline(kind: str, server: Seaweed) -> None:
    url, hurried = server.url(f"{kind}-away"), {**server.options, "timeout": "1s", "retry_timeout": "3s"}
    sink = open_sink(kind, url, hurried)
    commit(sink, 1)
    began = time.monotonic()
    with server.stopped():
        for ask in (sink.epoch, lambda: commit(sink, 2), lambda: open_sink(kind, url, hurried)):
            with pytest.raises(Unavailable) as raised:
                ask()
            assert SECRET_KEY not in f"{raised.value} {raised.value.details}"
    assert time.monotonic() - began < 60  # without deadlines of the sinks' own it would be minutes for each
    assert sink.epoch() == 1
    commit(sink, 2)
    assert rows(kind, url, server) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials_are_refused_at_once_and_never_shown(kind: str, server: Seaweed) -> None:
    wrong = {**server.options, "secret_access_key": "wrong-but-secret-too"}
    with pytest.raises(Unavailable) as raised:
        open_sink(kind, server.url(f"{kind}-denied"), wrong)
    assert "wrong-but-secret-too" not in f"{raised.value} {raised.value.details}"
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", ["soon", "5", "-1s", "25h", "0s"])
def test_a_deadline_that_is_no_time_is_refused(kind: str, time: str, server: Seaweed) -> None:
    with pytest.raises(InvalidInput, match=r"\[store.invalid\].*retry_timeout"):
        open_sink(kind, server.url("never"), {**server.options, "retry_timeout": time})


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_options_are_taken_in_either_case(kind: str, server: Seaweed) -> None:
    options = {f"AWS_{name.upper()}": value for name, value in server.options.items()}
    sink = open_sink(kind, server.url(f"{kind}-upper"), options)
    commit(sink, 1)
    assert sink.epoch() == 1
