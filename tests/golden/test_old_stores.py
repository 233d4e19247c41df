"""Stores that release 0.1.0 wrote: today's code verifies them, goes on with them, rolls them back and restores them.

``tests/spark/test_old_store.py`` goes on with that of a Spark query.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from rocksdict import AccessType, Options, Rdict

import slackwater as sw
from tests.commands import answer, refusal
from tests.golden.old_stores import (
    LABEL,
    STORES,
    counts_after,
    open_counts,
    open_orders,
    orders_sink,
    orders_state,
    take_row,
    write_batch,
)

# The other checkpoints were retired, and their bytes deleted, except what one of these needs.
LIVE = {"orders": [2, 6, 7, 8, 9, 10], "counts": [2, 4, 5], "weeks": [2, 4, 5, 6]}


@pytest.fixture(params=LIVE)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Copy a store into a folder of its own, and go there."""
    shutil.copytree(STORES / request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name], indirect=True)


def live(name: str) -> list[int]:
    return [checkpoint["epoch"] for checkpoint in answer("list", f"store/{name}")["checkpoints"]]


def is_sound(name: str) -> bool:
    found = answer("verify", f"store/{name}", "--read-data")
    return bool(found["sound"]) and found["epochs"] == live(name)


def roll_back(name: str, to: object) -> None:
    assert answer("rollback", f"store/{name}", "--to", to, "--yes")["acted"]


def test_it_is_listed_and_verified_to_the_last_byte(name):
    assert live(name) == LIVE[name]
    savepoints = answer("savepoint", "list", f"store/{name}")["savepoints"]
    assert [(savepoint["label"], savepoint["epoch"]) for savepoint in savepoints] == [(LABEL, 2)]
    assert is_sound(name)


def orders_and_rows() -> tuple[int, dict[str, dict[str, str]], dict[str, dict[int, bytes]], list[str]]:
    sink = orders_sink()
    with open_orders(sink) as pipeline:
        return pipeline.epoch, pipeline.offsets, pipeline.state, sink.rows()


def as_of_row(row: int, *, epoch: int) -> object:
    """Say what must be there after a row: each row before it came to the sink once."""
    return epoch, {"rows": {"row": str(row)}}, orders_state(row), [f"row {n}" for n in range(1, row + 1)]


def take_one() -> None:
    sink = orders_sink()
    with open_orders(sink) as pipeline:
        take_row(pipeline, sink)


@of("orders")
def test_a_program_that_was_killed_goes_on_and_its_sink_gets_what_counted(name):
    assert orders_and_rows() == as_of_row(8, epoch=10)
    take_one()
    assert orders_and_rows() == as_of_row(9, epoch=11)
    # Two of the older release's are retired by now, one of them undone.
    assert live(name) == [2, 8, 9, 10, 11] and is_sound(name)


@of("orders")
@pytest.mark.parametrize(("to", "row"), [(LABEL, 2), (6, 6), (8, 6), (9, 7)])
def test_a_program_is_rolled_back_and_goes_on_from_there(name, to, row):
    roll_back(name, to)
    assert orders_and_rows() == as_of_row(row, epoch=11)
    take_one()
    assert orders_and_rows() == as_of_row(row + 1, epoch=12)
    assert is_sound(name)


@of("orders")
def test_what_the_older_release_has_undone_stays_undone(name):
    checkpoints = answer("list", f"store/{name}")["checkpoints"]
    assert [checkpoint["epoch"] for checkpoint in checkpoints if checkpoint["undone"]] == [7]
    refusal("rollback", f"store/{name}", "--to", 7, "--yes", code=11)


@of("orders")
def test_a_savepoint_of_a_program_is_restored_as_its_files(name):
    assert answer("restore", f"store/{name}", "--at", LABEL, "--to", "restored")["epoch"] == 2
    for operator, partitions in orders_state(2).items():
        for partition, data in partitions.items():
            files = list(Path("restored", "state", operator, str(partition)).iterdir())
            assert data in [file.read_bytes() for file in files]


def counts_and_batch() -> tuple[int, dict[bytes, bytes], dict[str, dict[str, str]], int]:
    with open_counts() as counts:
        return counts.epoch, dict(counts.scan()), counts.offsets, counts.watermark_ms


def as_of_batch(batch: int, *, epoch: int) -> object:
    return epoch, counts_after(batch), {"batches": {"batch": str(batch)}}, 1000 * batch


def checkpoint_one() -> None:
    with open_counts() as counts:
        write_batch(counts)
        counts.create_checkpoint()


@of("counts")
@pytest.mark.parametrize(("elsewhere", "batch"), [(False, 6), (True, 5)])
def test_a_keyed_state_goes_on_from_its_folder_and_elsewhere_from_its_newest_checkpoint(name, elsewhere, batch):
    if elsewhere:
        shutil.rmtree("store/counts.wal")
    assert counts_and_batch() == as_of_batch(batch, epoch=5)
    checkpoint_one()
    assert counts_and_batch() == as_of_batch(batch + 1, epoch=6)
    shutil.rmtree("store/counts.wal")
    assert counts_and_batch() == as_of_batch(batch + 1, epoch=6)
    assert live(name) == [2, 5, 6] and is_sound(name)


@of("counts")
@pytest.mark.parametrize(("to", "batch"), [(LABEL, 2), (4, 4)])
def test_a_keyed_state_is_rolled_back_and_goes_on_from_there(name, to, batch):
    roll_back(name, to)
    assert counts_and_batch() == as_of_batch(batch, epoch=6)
    checkpoint_one()
    assert counts_and_batch() == as_of_batch(batch + 1, epoch=7)
    assert is_sound(name)


@of("counts")
def test_a_savepoint_of_a_keyed_state_is_restored_as_its_database(name):
    assert answer("restore", f"store/{name}", "--at", LABEL, "--to", "restored")["epoch"] == 2
    database = Rdict("restored/keyed/state", Options(raw_mode=True), access_type=AccessType.read_only())
    stored = dict(cast(Iterable[tuple[bytes, bytes]], database.items()))
    # As docs/spec/keyed.md says: a virtual node, then the key. What the database says of itself is under ffff.
    assert {key[2:]: value for key, value in stored.items() if key[:2] != b"\xff\xff"} == counts_after(2)
    database.close()
    with open_counts() as counts:
        assert sw.outside_state(counts.url, LABEL) == b"state from outside, batch 2"
