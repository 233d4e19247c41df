"""Threads that write to a keyed pipeline at once: they share syncs, and each is told what became of its own write."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.opening import open_keyed
from slackwater.ops.pipelines import read_pipeline as look_at
from tests.keyed_pipelines import Disk, config_of, content, forget_local, plain_disk, slow_disk, sound


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    with open_keyed(config_of(tmp_path)) as counts:
        yield counts


def write(counts: KeyedCheckpoints, thread: int, **fields: Any) -> None:
    """Write what tells, key by key and in the offsets, whether it is there whole."""
    counts.write([(b"%d-%d" % (thread, n), b"x") for n in range(3)], offsets={str(thread): {"n": "1"}}, **fields)


def content_of(*threads: int) -> dict[bytes, bytes]:
    return {b"%d-%d" % (thread, n): b"x" for thread in threads for n in range(3)}


def at_once(counts: KeyedCheckpoints, disk: Disk, *writes: Callable[[], None]) -> list[Future[None]]:
    """Let the first thread come to its sync, and the others write while it is at it; return what became of each."""
    disk.hold()
    with ThreadPoolExecutor(len(writes)) as pool:
        futures = [pool.submit(writes[0])]
        assert disk.began.wait(30)
        for each in writes[1:]:
            before = counts.wal_position
            futures.append(pool.submit(each))
            while counts.wal_position == before and not futures[-1].done():
                pass
        disk.goes_on.set()
    return futures


def test_many_threads_write_while_checkpoints_are_made(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:

        def write(thread):
            for number in range(25):
                counts.write([(b"%d-%d" % (thread, number), b"x")], offsets={str(thread): {"n": str(number)}})

        with ThreadPoolExecutor(5) as pool:
            writers = [pool.submit(write, thread) for thread in range(4)]
            while not all(writer.done() for writer in writers):
                counts.create_checkpoint()
            for writer in writers:
                writer.result()
    expected = {b"%d-%d" % (thread, number): b"x" for thread in range(4) for number in range(25)}
    with open_keyed(config_of(tmp_path)) as counts:
        assert dict(counts.scan()) == expected and counts.key_count == 100
        assert counts.offsets == {str(thread): {"n": "24"} for thread in range(4)}
    assert sound(tmp_path)


def test_writes_go_on_while_a_checkpoint_is_stored(opened, monkeypatch):
    opened.put(b"before", b"1")
    real, wrote = opened._driver.checkpoint, threading.Event()

    def write() -> None:
        opened.put(b"meanwhile", b"1")
        wrote.set()

    def slowly(*args: Any, **fields: Any) -> Any:
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(10)
        return real(*args, **fields)

    monkeypatch.setattr(opened._driver, "checkpoint", slowly)
    made = opened.create_checkpoint()
    assert wrote.is_set() and made.key_count == 1 and opened.key_count == 2
    assert opened._is_changed()


def test_threads_that_write_at_once_share_a_sync_and_nothing_of_theirs_is_lost(opened, tmp_path):
    disk = slow_disk(opened._state)

    def run(thread: int) -> None:
        for number in range(10):
            opened.write([(b"%d-%d" % (thread, number), b"1"), (b"last", b"%d" % thread)], watermark_ms=thread)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert opened.key_count == 81 and opened.watermark_ms == 7
    assert {key for key, _ in opened.scan()} == {b"%d-%d" % (t, n) for t in range(8) for n in range(10)} | {b"last"}
    assert disk.syncs <= 60  # by itself each of the 80 writes would have one
    opened.close()
    assert len(content(tmp_path)) == 81


def test_a_thread_whose_changes_are_refused_is_told_so_and_the_writes_of_the_others_count(opened, tmp_path):
    disk = slow_disk(opened._state)
    written = at_once(
        opened,
        disk,
        lambda: write(opened, 0),
        lambda: write(opened, 1),
        lambda: write(opened, 2, watermark_ms=2**60),  # which is looked at only when it is encoded
        lambda: write(opened, 3),
        lambda: opened.write([(b"text", "1")]),
    )
    assert [future.exception() for future in written if written.index(future) in (0, 1, 3)] == [None] * 3
    assert [getattr(written[n].exception(), "code", None) for n in (2, 4)] == ["state.invalid", "state.invalid"]
    assert disk.syncs == 2
    write(opened, 5)
    opened.close()
    assert content(tmp_path) == content_of(0, 1, 3, 5)


@pytest.mark.parametrize(
    ("fails", "first"),
    [("IO error: While fdatasync: Input/output error", sw.Unavailable), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["failed", "interrupted"],
)
def test_a_sync_that_does_not_end_well_is_told_to_every_thread_whose_write_waits_for_one(
    opened, tmp_path, fails, first
):
    disk = slow_disk(opened._state, fails=fails)
    written = at_once(opened, disk, *(lambda thread=thread: write(opened, thread) for thread in range(4)))
    disk.fails = None
    assert [type(future.exception()) for future in written] == [first, *[sw.Unavailable] * 3]
    for call in (lambda: write(opened, 4), opened.create_checkpoint):
        with pytest.raises(sw.InvalidInput, match=r"pipeline\.ended"):
            call()
    assert disk.syncs == 1
    opened.close()
    with open_keyed(config_of(tmp_path)) as counts:
        assert dict(counts.scan()) == content_of(*map(int, counts.offsets)), "each write is there whole, or not at all"


def test_a_write_that_breaks_off_half_way_ends_the_pipeline_and_is_not_told_to_another_thread(opened, tmp_path):
    disk = slow_disk(opened._state)

    def breaks() -> None:
        disk.breaks = KeyboardInterrupt()
        write(opened, 2)

    writes = [lambda: write(opened, 0), lambda: write(opened, 1), breaks, lambda: write(opened, 3)]
    raised = [type(future.exception()) for future in at_once(opened, disk, *writes)]
    assert raised == [type(None), type(None), KeyboardInterrupt, sw.InvalidInput]
    with pytest.raises(sw.InvalidInput, match=r"pipeline\.ended"):
        opened.create_checkpoint()
    opened.close()
    assert content(tmp_path) == content_of(0, 1, 2), "as many keys as it says it has"


def test_a_write_that_was_applied_when_another_thread_ended_the_pipeline_is_not_told_that_nothing_was_written(
    opened, tmp_path
):
    disk, writing = slow_disk(opened._state), opened._writing

    class Writing:
        """The lock of the writers: as soon as one has let it go, another one breaks off half-way."""

        def __enter__(self) -> None:
            writing.__enter__()

        def __exit__(self, *given: Any) -> None:
            opened._writing = writing
            writing.__exit__(*given)
            disk.breaks = KeyboardInterrupt()
            with pytest.raises(KeyboardInterrupt):
                write(opened, 1)

    opened._writing = Writing()
    write(opened, 0)
    with pytest.raises(sw.InvalidInput, match=r"pipeline\.ended"):
        write(opened, 2)
    opened.close()
    assert content(tmp_path) == content_of(0, 1)


def test_a_checkpoint_has_what_another_thread_has_written_and_not_synced_yet(opened, tmp_path):
    write(opened, 0)
    disk = slow_disk(opened._state)
    disk.hold()
    local, as_after_a_power_loss = tmp_path / "store" / "counts.wal", tmp_path / "as after a power loss"
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(write, opened, 1)
        assert disk.began.wait(30)
        plain_disk(opened._state)
        assert opened.create_checkpoint(offsets={"checkpoint": {"n": "1"}}).key_count == 6
        shutil.copytree(local, as_after_a_power_loss)
        for log in (as_after_a_power_loss / "state").glob("*.log"):
            log.write_bytes(b"")
        assert not waits.done()
        disk.goes_on.set()
    assert waits.exception() is None
    opened.close()
    forget_local(tmp_path)
    as_after_a_power_loss.rename(local)
    assert content(tmp_path) == content_of(0, 1)
    forget_local(tmp_path)
    assert content(tmp_path) == content_of(0, 1) and sound(tmp_path)


@pytest.mark.parametrize("first", ["the disk", "the store"])
def test_what_the_disk_says_of_a_write_does_not_hide_that_the_store_did_not_answer(
    opened, tmp_path, monkeypatch, first
):
    """After that, whether the checkpoint counts is not known, and the run is not released on record."""

    def away(*_: Any, **__: Any) -> None:
        if first == "the disk":
            disk.goes_on.set()
            waits.exception()
        raise sw.Unavailable("the store is away", code="store.unavailable")

    disk = slow_disk(opened._state, fails="Corruption: bad block")
    disk.hold()
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patched:
        waits = pool.submit(write, opened, 0)
        assert disk.began.wait(30)
        plain_disk(opened._state)
        patched.setattr(type(opened._pipeline.store), "put", away)
        with pytest.raises(sw.Unavailable, match="the store is away"):
            opened.create_checkpoint()
        disk.goes_on.set()
    assert isinstance(waits.exception(), sw.Corrupt)
    opened.close()
    assert look_at(str(tmp_path / "store" / "counts")).state.release_append_id is None
