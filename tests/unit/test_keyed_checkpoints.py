"""A keyed pipeline: what is written is there at the next start, checkpoints are deltas, and one writer has it.

The tests of LaminarDB's ``incremental/manager.rs`` have their names here; its defects are the rows E1 to E18. Those
of a killed process are in ``tests/crash/test_keyed_kills.py``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater import failpoints
from slackwater.cli import forget
from slackwater.formats.keys import manifest_key, record_key
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from slackwater.ops import keyed as ops_keyed
from slackwater.ops.pipelines import read_pipeline
from slackwater.protocol.verified_reads import load_manifest
from slackwater.rocks.database import MAX_RUNS
from tests.keyed_pipelines import ask, config_of, content, fill, forget_local, listed, restore, sound, url_of
from tests.pipelines import make_pipeline


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    with open_keyed(config_of(tmp_path)) as counts:
        yield counts


# --- LaminarDB's own tests


def test_checkpoint_config_validation(tmp_path):
    config_of(tmp_path, interval=60, max_retained=3).validate()
    with pytest.raises(sw.InvalidInput, match="max_retained"):
        config_of(tmp_path, max_retained=0).validate()
    with pytest.raises(sw.InvalidInput, match="interval"):
        config_of(tmp_path, interval=timedelta(0)).validate()


def test_checkpoint_metadata(opened):
    opened.put(b"a", b"1")
    first, second = opened.create_checkpoint(), opened.create_checkpoint()
    assert (first.epoch, first.is_incremental, first.parent_id) == (1, False, None)
    assert (second.epoch, second.is_incremental, second.parent_id) == (2, True, first.id)
    assert json.loads(second.to_json())["sst_files"] == second.sst_files != []
    assert sw.keyed_checkpoints(opened.url) == [second, first]


def test_checkpoint_path(opened, tmp_path):
    made = opened.create_checkpoint()
    folder = tmp_path / "store" / "counts" / "checkpoints" / made.id
    assert (folder / "manifest.json").is_file()
    assert (folder / "operators" / "keyed-state" / "partition-0.snap").is_file()


def test_manager_creation(opened):
    assert opened.epoch == 0 and sw.keyed_checkpoints(opened.url) == []


def test_manager_create_checkpoint(opened):
    opened.put(b"a", b"1")
    position = opened.wal_position
    first = opened.create_checkpoint()
    assert (first.epoch, first.parent_id) == (1, None) and first.wal_position > position
    second = opened.create_checkpoint()
    assert second.parent_id == first.id


def test_manager_create_checkpoint_with_state(opened):
    offsets = {"source1": {"row": "100"}, "source2": {"orders-0": "200"}}
    made = opened.create_checkpoint(b"test state data", offsets=offsets, watermark_ms=5000)
    assert (made.source_offsets, made.watermark, made.has_state) == (offsets, 5000, True)
    assert sw.outside_state(opened.url, made.epoch) == b"test state data"
    large = os.urandom(3_000_000)
    assert sw.outside_state(opened.url, opened.create_checkpoint(large).id) == large
    assert sw.outside_state(opened.url, opened.create_checkpoint(b"").epoch) == b""
    opened.savepoint("empty")
    opened.create_checkpoint()
    with pytest.raises(sw.NotFound) as caught:
        sw.outside_state(opened.url)
    assert caught.value.code == "checkpoint.none" and "restore" in str(caught.value.hint)
    assert sw.outside_state(opened.url, "empty") == b""
    with pytest.raises(sw.InvalidInput, match="must be bytes"):
        opened.create_checkpoint("text")


def test_manager_list_checkpoints(tmp_path):
    with open_keyed(config_of(tmp_path, max_retained=10)) as counts:
        for number in range(5):
            counts.put(b"n", b"%d" % number)
            counts.create_checkpoint()
        assert listed(tmp_path) == [5, 4, 3, 2, 1]


def test_manager_cleanup(tmp_path):
    with open_keyed(config_of(tmp_path, max_retained=2)) as counts:
        for number in range(5):
            counts.put(b"n", b"%d" % number)
            counts.create_checkpoint()
            if number == 3:
                assert counts.savepoint("kept").epoch == 4
        counts.create_checkpoint()
        assert listed(tmp_path) == [6, 5, 4]
        ask(forget.command, counts.url, "--keep-last", 1)
        assert listed(tmp_path) == [6, 4]
        counts.create_checkpoint()  # whoever has it open goes on
        assert listed(tmp_path) == [7, 6, 4]
    assert sound(tmp_path)


def test_manager_find_latest(opened):
    for _ in range(2):
        made = opened.create_checkpoint()
        assert sw.keyed_checkpoints(opened.url)[0] == made


def test_manager_delete_checkpoint(tmp_path):
    with open_keyed(config_of(tmp_path, max_retained=10)) as counts:
        first, second = counts.create_checkpoint(), counts.create_checkpoint()
        ask(forget.command, counts.url, first.epoch)
        assert sw.keyed_checkpoints(counts.url) == [second]
        with pytest.raises(sw.Conflict, match="the newest") as caught:
            ask(forget.command, counts.url, second.epoch)
        assert caught.value.code == "retire.not_allowed"
        counts.create_checkpoint()
    assert sound(tmp_path)


def test_manager_should_checkpoint(opened):
    assert opened.should_checkpoint(), "there is none yet"
    opened.create_checkpoint()
    assert not opened.should_checkpoint()


def test_scan_existing_checkpoints(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        made = [counts.create_checkpoint() for _ in range(3)]
    with open_keyed(config_of(tmp_path)) as counts:
        assert sw.keyed_checkpoints(counts.url) == made[::-1] and counts.create_checkpoint().epoch == 4


def test_scan_skips_partial_checkpoint_dirs(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        made = counts.create_checkpoint()
        partial = tmp_path / "store" / "counts" / "checkpoints" / counts._clock.checkpoint_id()
        (partial / "operators" / "keyed-state").mkdir(parents=True)
        (partial / "operators" / "keyed-state" / "partition-0.snap").write_bytes(b"cut")
    with open_keyed(config_of(tmp_path)) as counts:
        assert sw.keyed_checkpoints(counts.url) == [made], "what no record names does not count"
        assert not list(partial.rglob("*.snap")), "and is swept"
        assert counts.create_checkpoint().epoch == 2


# --- the rows of the defects


def test_E1_what_is_held_is_what_a_checkpoint_restores(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.write([(b"a", b"1"), (b"b", b"2")], offsets={"s": {"p0": "7"}}, watermark_ms=9)
        counts.delete(b"a")
        made = counts.create_checkpoint()
        assert (made.key_count, made.watermark, made.source_offsets) == (1, 9, {"s": {"p0": "7"}})
        assert made.size_bytes > 0 and made.sst_files
    forget_local(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        assert dict(counts.scan()) == {b"b": b"2"}
        assert (counts.offsets, counts.watermark_ms, counts.key_count) == ({"s": {"p0": "7"}}, 9, 1)
        assert not counts.should_checkpoint(), "nothing has changed"


def test_E2_a_delta_stores_what_has_changed_and_a_full_one_everything(tmp_path):
    for incremental in (True, False):
        folder = tmp_path / str(incremental)
        with open_keyed(config_of(folder, incremental=incremental)) as counts:
            fill(counts, range(20_000))
            first = counts.create_checkpoint()
            fill(counts, range(0, 20_000, 100))
            second = counts.create_checkpoint()
            own = sum(
                p.stat().st_size for p in (folder / "store" / "counts" / "checkpoints" / second.id).rglob("*-0.*")
            )
            assert second.is_incremental == incremental
            assert (own < first.size_bytes / 20) == incremental
            assert second.size_bytes > first.size_bytes
        assert sound(folder)
        forget_local(folder)
        assert len(content(folder)) == 20_000


def test_E2_a_smaller_log_is_kept_or_dropped_as_told(tmp_path):
    for truncate in (True, False):
        with open_keyed(config_of(tmp_path / str(truncate), truncate_wal=truncate)) as counts:
            for _ in range(3):
                fill(counts, range(2_000))
                counts.create_checkpoint()
            folder = counts._local.database
            archived = list((folder / "archive").glob("*.log")) if (folder / "archive").exists() else []
            assert bool(archived) != truncate
            assert sum(path.stat().st_size for path in folder.glob("*.log")) < 100_000


def test_E2_a_large_log_makes_a_checkpoint_due_before_its_interval(tmp_path):
    config = config_of(tmp_path, min_wal_size_for_checkpoint=100_000)
    with open_keyed(config) as counts:
        counts.create_checkpoint()
        fill(counts, range(500))
        assert not counts.should_checkpoint()
        fill(counts, range(500, 1_100))
        assert counts.should_checkpoint()
    with open_keyed(config) as counts:
        assert counts.should_checkpoint(), "it is as large after a restart"
        counts.create_checkpoint()
        assert not counts.should_checkpoint()


def test_E3_what_a_kept_delta_refers_to_outlives_the_checkpoint_that_stored_it(tmp_path):
    with open_keyed(config_of(tmp_path, max_retained=1)) as counts:
        fill(counts, range(5_000))
        first = counts.create_checkpoint()
        for number in range(4):
            counts.put(b"n", b"%d" % number)
            newest = counts.create_checkpoint()
        assert newest.is_incremental and set(first.sst_files) & set(newest.sst_files)
        before = dict(counts.scan())
    assert listed(tmp_path) == [5] and sound(tmp_path)
    forget_local(tmp_path)
    assert content(tmp_path) == before


def test_input_that_is_refused_ends_nothing(tmp_path):
    def breaks():
        yield b"a", b"1"
        raise ZeroDivisionError

    with open_keyed(config_of(tmp_path)) as counts:
        refused: list[tuple[Any, Any]] = [({b"a": b"1"}, sw.InvalidInput), (breaks(), ZeroDivisionError)]
        for changes, error in [*refused, ([("text", b"1")], sw.InvalidInput), (None, TypeError)]:
            with pytest.raises(error):
                counts.write(changes)
        for fields in ({"offsets": {"rows": "5"}}, {"watermark_ms": "5"}):
            with pytest.raises(sw.InvalidInput):
                counts.create_checkpoint(**fields)
        counts.put(b"b", b"2")
        assert dict(counts.scan()) == {b"b": b"2"} and counts.create_checkpoint().epoch == 1
    with pytest.raises(sw.InvalidInput, match=r"sw\.CheckpointConfig"):
        open_keyed("store/words")  # type: ignore[arg-type]


def test_a_folder_of_something_else_is_refused_and_nothing_in_it_is_touched(tmp_path):
    for name in ("incoming", "outgoing", "cut", "state"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "thesis.txt").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(sw.InvalidInput, match=r"folder\.unusable.*is not empty, and"):
        open_keyed(config_of(tmp_path, wal_path=tmp_path / "mine"))
    assert sorted(path for path in tmp_path.rglob("*") if "store" not in path.parts) == before
    for folder in (tmp_path / "store", tmp_path / "store" / "counts" / "log"):
        with pytest.raises(sw.InvalidInput, match=r"option\.invalid"):
            open_keyed(config_of(tmp_path, wal_path=folder))


def test_a_folder_goes_on_after_one_that_was_opened_by_mistake_if_told_so(tmp_path):
    right, wrong = config_of(tmp_path), config_of(tmp_path, wal_path=tmp_path / "mistyped")
    with open_keyed(right) as counts:
        counts.create_checkpoint()
        counts.put(b"a", b"1")
    with open_keyed(wrong):
        pass
    with pytest.raises(sw.Conflict, match=r"keyed\.wrong_folder.*take_over"):
        open_keyed(right)
    with open_keyed(right, take_over=True) as counts:
        assert counts.get(b"a") == b"1"
    with open_keyed(right):
        pass
    with pytest.raises(sw.Conflict, match=r"keyed\.wrong_folder.*was opened with another folder"):
        open_keyed(wrong)


def newest_manifest(folder: Path) -> Path:
    state = read_pipeline(url_of(folder)).state
    return folder / "store" / "counts" / manifest_key(state.live[-1].checkpoint_id)


def test_E5_a_newest_checkpoint_that_is_empty_is_damage_and_an_older_one_is_taken_only_when_told(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
        counts.put(b"a", b"2")
        counts.create_checkpoint()
    newest_manifest(tmp_path).write_bytes(b"")
    forget_local(tmp_path)
    with pytest.raises(sw.Corrupt, match="epoch 1") as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "head.damaged"
    with open_keyed(config_of(tmp_path), fallback=True) as counts:
        assert dict(counts.scan()) == {b"a": b"1"} and counts.epoch == 3
        assert [made.epoch for made in sw.keyed_checkpoints(counts.url) if made.problem] == [2]


def test_E5_a_damaged_checkpoint_that_nobody_has_settled_does_not_stop_the_next_one(tmp_path, monkeypatch):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"1")
        with monkeypatch.context() as armed:
            armed.setattr(failpoints, "_armed", {"append.after": (1, "raise")})
            armed.setattr(failpoints, "_hits", {})
            with pytest.raises(sw.SlackwaterError, match=r"append\.after"):
                counts.create_checkpoint()
    state = read_pipeline(url_of(tmp_path)).state
    assert (state.epoch, state.settled_epoch) == (1, 0)
    newest_manifest(tmp_path).write_bytes(b"rot")
    with open_keyed(config_of(tmp_path, incremental=False)) as counts:
        assert dict(counts.scan()) == {b"a": b"1"}
        assert counts.create_checkpoint().epoch == 2
    with open_keyed(config_of(tmp_path)) as counts:
        assert counts.epoch == 2 and dict(counts.scan()) == {b"a": b"1"}


def test_E5_a_damaged_checkpoint_does_not_stop_a_database_that_is_whole_and_is_never_built_upon(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        fill(counts, range(2_000))
        made = counts.create_checkpoint()
        counts.put(b"after", b"1")
        before = dict(counts.scan())
    (table,) = (tmp_path / "store" / "counts" / "checkpoints" / made.id).rglob("*.snap")
    table.unlink()
    with pytest.raises(sw.Corrupt, match="would refer to it") as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.head_damaged" and "incremental=False" in str(caught.value.hint)
    with open_keyed(config_of(tmp_path, incremental=False)) as counts:
        assert dict(counts.scan()) == before and counts.should_checkpoint()
        assert not counts.create_checkpoint().is_incremental
        ask(forget.command, counts.url, "--keep-last", 1)
    assert sound(tmp_path)
    assert content(tmp_path) == before


def test_E6_a_flipped_bit_of_a_stored_table_or_of_state_from_outside_is_fatal(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        fill(counts, range(2_000))
        counts.create_checkpoint(os.urandom(100_000))
        for name in ("*.snap", "*.lcb"):
            for path in (tmp_path / "store").rglob(name):
                whole = path.read_bytes()
                path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        with pytest.raises(sw.Corrupt):
            sw.outside_state(counts.url, 1)
        with pytest.raises(sw.Corrupt):
            restore(counts.url, 1, tmp_path / "out")
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
    forget_local(tmp_path)
    with pytest.raises(sw.Corrupt) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "head.damaged"
    assert not (tmp_path / "store" / "counts.wal" / "state").exists()


def rot(folder: Path) -> None:
    """Flip a bit in the middle of the largest local table."""
    table = max((folder / "store" / "counts.wal" / "state").glob("*.sst"), key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("known", [True, False])
def test_E6_a_local_table_that_has_rotted_is_never_stored_again(tmp_path, known):
    with open_keyed(config_of(tmp_path)) as counts:
        fill(counts, range(2_000))
        counts.create_checkpoint()
        list(counts.scan())  # so that memory has it as it was
    if not known:  # then nothing says what its digest was
        newest_manifest(tmp_path).write_bytes(b"rot")
    rot(tmp_path)
    with open_keyed(config_of(tmp_path, incremental=False)) as counts:
        with pytest.raises(sw.Corrupt) as caught:
            counts.create_checkpoint()
        assert caught.value.code == "keyed.damaged"
    assert read_pipeline(url_of(tmp_path)).state.epoch == 1


def test_E6_a_local_table_that_rots_after_it_was_read_whole_is_told_by_its_digest(tmp_path):
    with open_keyed(config_of(tmp_path, incremental=False)) as counts:
        fill(counts, range(2_000))
        counts.create_checkpoint()
        rot(tmp_path)
        with pytest.raises(sw.Corrupt, match="not the one that was stored before"):
            counts.create_checkpoint()
    assert listed(tmp_path) == [1]


def test_E7_epochs_never_go_back(tmp_path):
    seen = []
    for step in ("", "", "elsewhere", "rollback", "elsewhere", ""):
        if step == "elsewhere":
            forget_local(tmp_path)
        if step == "rollback":
            sw.rollback(url_of(tmp_path), "1")
        with open_keyed(config_of(tmp_path, max_retained=10)) as counts:
            seen += [counts.epoch, counts.create_checkpoint().epoch]
    assert seen == [0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 7]


class Clock:
    """A clock that a test sets."""

    def __init__(self, real: Any) -> None:
        self._real, self.monotonic_s, self.wall_ms = real, 1000.0, 10**12

    def monotonic(self) -> float:
        return self.monotonic_s

    def now_ms(self) -> int:
        return self.wall_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_E8_the_interval_is_of_a_monotonic_clock_to_the_millisecond(tmp_path):
    with open_keyed(config_of(tmp_path, interval=timedelta(milliseconds=250))) as counts:
        clock: Any = Clock(counts._clock)
        counts._clock = clock
        counts.put(b"a", b"1")
        counts.create_checkpoint()
        clock.monotonic_s += 10
        assert not counts.should_checkpoint(), "nothing has changed"
        counts.put(b"a", b"2")
        assert counts.should_checkpoint()
        counts.create_checkpoint()
        counts.put(b"a", b"3")
        clock.wall_ms -= 10**9
        clock.monotonic_s += 0.249
        assert not counts.should_checkpoint()
        clock.monotonic_s += 0.001
        assert counts.should_checkpoint()
    with open_keyed(config_of(tmp_path)) as counts:
        assert not counts.should_checkpoint(), "a restart alone makes none due"


def test_E9_what_is_no_name_of_a_checkpoint_counts_for_nothing(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        made = counts.create_checkpoint()
    folder = tmp_path / "store" / "counts" / "checkpoints"
    for name in ("checkpoint_1", "checkpoint_ffffffffffffffff", "0" * 16):
        (folder / name).mkdir()
        (folder / name / "metadata.json").write_text("{}")
    (tmp_path / "store" / "counts" / "log" / "7").write_text("{}")
    with open_keyed(config_of(tmp_path)) as counts:
        assert sw.keyed_checkpoints(counts.url) == [made] and counts.create_checkpoint().epoch == 2
    with pytest.raises(sw.InvalidInput):
        open_keyed(CheckpointConfig(tmp_path / "store" / "a b"))


def test_E10_a_checkpoint_counts_although_older_ones_cannot_be_deleted(tmp_path, caplog, monkeypatch):
    with open_keyed(config_of(tmp_path, max_retained=1)) as counts:
        counts.create_checkpoint()
        real = type(counts._pipeline.store).delete

        def refuse(*_: Any) -> None:
            raise sw.Unavailable("the store refuses", code="store.denied")

        monkeypatch.setattr(type(counts._pipeline.store), "delete", refuse)
        assert counts.create_checkpoint().epoch == 2
        assert "not deleted yet" in caplog.text
        monkeypatch.setattr(type(counts._pipeline.store), "delete", real)
        assert counts.create_checkpoint().epoch == 3
        manifests = (tmp_path / "store" / "counts" / "checkpoints").rglob("manifest.json")
        assert [path.parent.name for path in manifests] == [made.id for made in sw.keyed_checkpoints(counts.url)]


def test_E11_a_checkpoint_that_cannot_be_read_is_listed_and_cleaned_up(tmp_path):
    with open_keyed(config_of(tmp_path, max_retained=2)) as counts:
        first = counts.create_checkpoint()
        newest_manifest(tmp_path).write_bytes(b"rot")
        counts.put(b"a", b"1")
        counts.create_checkpoint()
        newest, damaged = sw.keyed_checkpoints(counts.url)
        assert (newest.epoch, newest.problem, damaged.epoch) == (2, None, 1)
        assert damaged.problem is not None and damaged.problem.startswith("[object.damaged] the manifest")
        counts.put(b"a", b"2")
        counts.create_checkpoint()
        assert listed(tmp_path) == [3, 2]
    with open_keyed(config_of(tmp_path, max_retained=2)) as counts:
        counts.create_checkpoint()
        assert not (tmp_path / "store" / "counts" / "checkpoints" / first.id / "manifest.json").exists()
    assert sound(tmp_path)


def test_a_pipeline_of_another_kind_has_no_keyed_checkpoints(tmp_path):
    with sw.open_pipeline(tmp_path, "words") as pipeline:
        pipeline.checkpoint(offsets={}, state={"counts": {0: b"a"}})
    for call in (sw.keyed_checkpoints, sw.outside_state):
        with pytest.raises(sw.Unsupported, match="a program's") as caught:
            call(tmp_path / "words")
        assert caught.value.code == "pipeline.foreign"


def test_a_checkpoint_that_is_retired_while_it_is_read_is_not_listed_as_damaged(opened, monkeypatch):
    made = [opened.create_checkpoint() for _ in range(3)]

    def load(store: Any, entry: Any) -> Any:
        if entry.checkpoint_id == made[0].id:
            ask(forget.command, opened.url, 1)
        return load_manifest(store, entry)

    monkeypatch.setattr(ops_keyed, "load_manifest", load)
    assert sw.keyed_checkpoints(opened.url) == made[:0:-1]


def test_E12_a_second_writer_is_refused_here_and_fenced_elsewhere(tmp_path):
    first = open_keyed(config_of(tmp_path))
    first.put(b"a", b"1")
    first.create_checkpoint()
    generation = read_pipeline(url_of(tmp_path)).state.generation
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.taken"
    assert read_pipeline(url_of(tmp_path)).state.generation == generation, "nobody was fenced"
    # On another machine, which does not see the lock.
    with open_keyed(config_of(tmp_path, wal_path=tmp_path / "elsewhere")) as second:
        second.put(b"b", b"2")
        second.create_checkpoint()
        with pytest.raises(sw.Conflict) as caught:
            first.create_checkpoint()
        assert caught.value.code == "driver.fenced"
        with pytest.raises(sw.InvalidInput) as ended:
            first.put(b"c", b"3")
        assert ended.value.code == "pipeline.ended" and first.get(b"a") == b"1"
        first.close()
        assert second.create_checkpoint().epoch == 3
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.wrong_folder" and "move" in str(caught.value.hint)
    (tmp_path / "store" / "counts.wal").rename(tmp_path / "away")
    assert content(tmp_path) == {b"a": b"1", b"b": b"2"}


def test_E13_positions_are_typed_and_come_back_as_they_are(tmp_path):
    offsets = {"kafka": {"orders-0": "9", "orders-1": "18446744073709551616"}, "pg": {"lsn": "0/16B3748", "slot": ""}}
    with open_keyed(config_of(tmp_path)) as counts:
        counts.write([], offsets=offsets)
        made = counts.create_checkpoint()
        assert made.source_offsets == offsets == sw.keyed_checkpoints(counts.url)[0].source_offsets
        with pytest.raises(sw.InvalidInput):
            counts.write([], offsets={"kafka": {"orders-0": 9}})  # type: ignore[dict-item]
    forget_local(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        assert counts.offsets == offsets


def test_E14_what_the_log_drops_is_what_a_checkpoint_has_and_nothing_newer(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        fill(counts, range(3_000))
        counts.create_checkpoint()
        (log,) = (counts._local.folder / "state").glob("*.log")
        assert log.stat().st_size < 50_000
        for number in range(20):
            counts.put(b"after-%d" % number, b"1")
        before = dict(counts.scan())
        shutil.copytree(counts._local.folder, tmp_path / "as after a crash")
    shutil.rmtree(tmp_path / "store" / "counts.wal")
    (tmp_path / "as after a crash").rename(tmp_path / "store" / "counts.wal")
    assert content(tmp_path) == before and len(before) == 3_020


def test_E18_a_delta_has_keys_and_values_however_many_have_changed(tmp_path):
    model: dict[bytes, bytes] = {}
    with open_keyed(config_of(tmp_path)) as counts:
        for number in range(6):
            batch = [(b"%d" % (key * number % 30_000), b"%d" % (key + number)) for key in range(30_000)]
            counts.write(batch)
            counts.write([(b"%d" % key, None) for key in range(number, 30_000, 7)])
            model |= dict(batch)
            for key in range(number, 30_000, 7):
                model.pop(b"%d" % key, None)
            counts.create_checkpoint()
    forget_local(tmp_path)
    assert content(tmp_path) == model


# --- the local folder and the head


def test_a_rollback_replaces_the_local_database(tmp_path, caplog):
    url = url_of(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        for number in range(3):
            counts.put(b"n", b"%d" % number)
            counts.create_checkpoint()
        counts.put(b"n", b"after")
    sw.rollback(url, "2")
    sw.rollback(url, "1")
    with open_keyed(config_of(tmp_path)) as counts:
        assert dict(counts.scan()) == {b"n": b"0"} and counts.epoch == 5
        assert "was rolled back" in caplog.text
        counts.put(b"n", b"again")
        counts.create_checkpoint()
    assert content(tmp_path) == {b"n": b"again"} and sound(tmp_path)


def test_a_rollback_beside_a_writer_ends_it_and_its_next_start_has_the_older_state(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"n", b"0")
        counts.create_checkpoint()
        counts.put(b"n", b"1")
        counts.create_checkpoint()
        sw.rollback(url_of(tmp_path), "1")
        with pytest.raises(sw.Conflict):
            counts.create_checkpoint()
    assert content(tmp_path) == {b"n": b"0"}


def test_a_repair_replaces_the_local_database(tmp_path):
    url = url_of(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        for number in range(4):
            counts.put(b"n", b"%d" % number)
            counts.create_checkpoint()
            if number == 1:
                first_lost = counts._pipeline.log.number + 1
        last = counts._pipeline.log.number
    for number in range(first_lost, last + 2):
        path = tmp_path / "store" / "counts" / record_key(number)
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(sw.Corrupt):
        open_keyed(config_of(tmp_path))
    sw.repair(url)
    with open_keyed(config_of(tmp_path)) as counts:
        assert counts.get(b"n") == b"1", "the newest before the damage: no sink can have followed a rollback"
        counts.create_checkpoint()
    assert sound(tmp_path)


def test_a_folder_of_another_pipeline_is_a_conflict(tmp_path):
    wal = tmp_path / "wal"
    with open_keyed(CheckpointConfig(tmp_path / "one", wal_path=wal)) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(CheckpointConfig(tmp_path / "two", wal_path=wal))
    assert caught.value.code == "keyed.wrong_folder" and "pipeline" in str(caught.value)
    assert not (tmp_path / "two" / "log").exists()
    with open_keyed(CheckpointConfig(tmp_path / "two", wal_path=tmp_path / "wal2")) as counts:
        counts.create_checkpoint()
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(CheckpointConfig(tmp_path / "two", wal_path=wal))
    assert caught.value.code == "keyed.wrong_folder" and "pipeline" in str(caught.value)
    loose = KeyedState(tmp_path / "loose" / "state")
    loose.put(b"a", b"1")
    loose.close()
    with pytest.raises(sw.InvalidInput, match=r"folder\.unusable.*is not empty, and"):
        open_keyed(CheckpointConfig(tmp_path / "three", wal_path=tmp_path / "loose"))
    (tmp_path / "loose" / "FOLDER").write_text(16 * "a")
    with pytest.raises(sw.Conflict, match="no pipeline has made"):
        open_keyed(CheckpointConfig(tmp_path / "three", wal_path=tmp_path / "loose"))


def test_a_folder_that_is_not_the_one_that_was_opened_last_is_a_conflict(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
        counts.put(b"a", b"2")
    with open_keyed(config_of(tmp_path, wal_path=tmp_path / "elsewhere")) as counts:
        counts.put(b"a", b"3")  # acknowledged there, and in no checkpoint
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.wrong_folder" and "was opened with another folder" in str(caught.value)
    assert content(tmp_path, wal_path=tmp_path / "elsewhere") == {b"a": b"3"}


def test_an_older_copy_of_the_store_is_a_conflict(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.create_checkpoint()
    shutil.copytree(tmp_path / "store" / "counts", tmp_path / "copy")
    with open_keyed(config_of(tmp_path)) as counts:
        for _ in range(3):
            counts.create_checkpoint()
    shutil.rmtree(tmp_path / "store" / "counts")
    (tmp_path / "copy").rename(tmp_path / "store" / "counts")
    with pytest.raises(sw.Conflict, match="the store ends at 1") as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.wrong_folder" and "older copy" in str(caught.value.hint)


def test_an_older_copy_of_the_folder_is_a_conflict(tmp_path):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
    shutil.copytree(tmp_path / "store" / "counts.wal", tmp_path / "copy")
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"2")
        counts.create_checkpoint()
    shutil.rmtree(tmp_path / "store" / "counts.wal")
    (tmp_path / "copy").rename(tmp_path / "store" / "counts.wal")
    with pytest.raises(sw.Conflict) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.wrong_folder" and "was last checkpointed" in str(caught.value)


# --- the handle


def test_an_older_checkpoint_is_restored_into_a_directory_and_nothing_changes(opened, tmp_path):
    for number in range(3):
        opened.write([(b"n", b"%d" % number)], offsets={"s": {"n": str(number)}})
        opened.create_checkpoint(b"outside %d" % number)
    folder = restore(opened.url, 2, tmp_path / "out")
    restored = KeyedState(folder, read_only=True)
    assert dict(restored.scan()) == {b"n": b"1"} and restored.offsets == {"s": {"n": "1"}}
    restored.close()
    assert (tmp_path / "out" / "state.bin").read_bytes() == b"outside 1"
    assert opened.get(b"n") == b"2"


def test_a_closed_pipeline_takes_no_more(tmp_path):
    counts = open_keyed(config_of(tmp_path))
    counts.close()
    counts.close()
    for call in (
        lambda: counts.put(b"a", b"1"),
        counts.create_checkpoint,
        lambda: counts.get(b"a"),
        lambda: counts.savepoint("late"),
    ):
        with pytest.raises(sw.InvalidInput) as caught:
            call()
        assert caught.value.code == "pipeline.ended"
    assert read_pipeline(url_of(tmp_path)).state.release_append_id is not None


def test_a_pipeline_is_no_store_of_keyed_ones(tmp_path):
    orders = make_pipeline(tmp_path, 1)
    with pytest.raises(sw.InvalidInput, match="its store is") as caught:
        open_keyed(CheckpointConfig(orders / "counts"))
    assert caught.value.code == "store.invalid"
    assert not (orders / "counts").exists() and not (orders / "counts.wal").exists()


def test_a_store_that_does_not_answer_ends_the_pipeline_and_the_next_start_has_everything(tmp_path, monkeypatch):
    with open_keyed(config_of(tmp_path)) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
        counts.put(b"a", b"2")

        def away(*_: Any, **__: Any) -> None:
            raise sw.Unavailable("the store is away", code="store.unavailable")

        with monkeypatch.context() as patched:
            patched.setattr(type(counts._pipeline.store), "put", away)
            with pytest.raises(sw.Unavailable):
                counts.create_checkpoint()
        with pytest.raises(sw.InvalidInput):
            counts.put(b"a", b"3")
    assert content(tmp_path) == {b"a": b"2"} and sound(tmp_path)


# --- deltas stay small


def test_a_hundredth_that_has_changed_costs_a_few_hundredths_and_a_restore_reads_few_objects(tmp_path):
    chosen, keys, new, objects = random.Random(7), 100_000, [], []
    with open_keyed(config_of(tmp_path)) as counts:
        fill(counts, range(keys))
        full = counts.create_checkpoint()
        for _ in range(30):
            fill(counts, chosen.sample(range(keys), keys // 100))
            made = counts.create_checkpoint()
            manifest = load_manifest(counts._pipeline.store, counts._driver.state.live[-1])
            own = [stored for stored in manifest.objects if made.id in stored.key]
            new.append(sum(stored.size_bytes for stored in own) / full.size_bytes)
            objects.append(len(manifest.objects))
        before = dict(counts.scan())
    assert sorted(new)[15] < 0.02 and sum(new) / len(new) < 0.05
    assert max(objects) <= MAX_RUNS
    forget_local(tmp_path)
    assert content(tmp_path) == before
