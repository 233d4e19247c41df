"""Undoing in a Delta table that others write to as well."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from slackwater.errors import Conflict

from .conftest import OTHER_UID, Bench, new_attempt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("delta", tmp_path / "table")


def table(bench: Bench) -> DeltaTable:
    return DeltaTable(str(bench.root))


def append_elsewhere(bench: Bench, *ids: int, **options: Any) -> None:
    write_deltalake(str(bench.root), pa.table({"id": pa.array(ids, pa.int64())}), mode="append", **options)


def vacuum(bench: Bench) -> None:
    table(bench).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


FOREIGN: dict[str, Callable[[Bench], Any]] = {
    "an append": lambda bench: append_elsewhere(bench, 99),
    "a delete": lambda bench: table(bench).delete("id = 1"),
    "an update": lambda bench: table(bench).update({"id": "id + 100"}),
    "an overwrite": lambda bench: write_deltalake(str(bench.root), pa.table({"id": [7]}), mode="overwrite"),
    "a new column": lambda bench: table(bench).alter.add_columns([Field("more", PrimitiveType("string"))]),
    "a new property": lambda bench: table(bench).alter.set_table_properties({"delta.logRetentionDuration": "1 days"}),
    "a constraint": lambda bench: table(bench).alter.add_constraint({"positive": "id >= 0"}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_somebody_else_has_changed_since_is_not_undone(bench: Bench, kind: str) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    FOREIGN[kind](bench)
    bench.fill(sink, *([] if kind == "a constraint" else [3]))
    version, rows = table(bench).version(), bench.rows()
    operation = table(bench).history()[0 if kind == "a constraint" else 1]["operation"]
    for call in (lambda: sink.undo(1, 4), lambda: sink.plan_undo(1), lambda: bench.sink().undo(1, 4)):
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "sink.undo_refused" and caught.value.exit_code == 11
        assert f"version 3, {operation}, 20" in str(caught.value) and "--keep NAME" in str(caught.value)
    assert table(bench).version() == version and bench.rows() == rows and sink.epoch() < 4
    # What came after it may still be undone, and everything may be kept.
    if kind != "a constraint":
        sink.undo(2, 4)
        assert bench.rows() == [row for row in rows if row != 3]
    sink.keep(5)
    assert sink.epoch() == 5


def test_rows_that_somebody_else_wrote_before_the_first_undone_ones_stay(bench: Bench) -> None:
    append_elsewhere(bench, 90)
    sink = bench.sink()
    bench.fill(sink, 1)
    append_elsewhere(bench, 91)
    bench.fill(sink, 2, 3)
    assert sink.plan_undo(1) == "2 files, 2 rows of 2 epochs"
    sink.undo(1, 4)
    assert bench.rows() == [1, 90, 91]
    with pytest.raises(Conflict, match="version 2, WRITE"):
        sink.undo(0, 5)


def test_all_of_ours_may_be_undone_in_a_table_of_somebody_else(bench: Bench) -> None:
    append_elsewhere(bench, 90)
    append_elsewhere(bench, 91)
    sink = bench.sink()
    bench.fill(sink, 5)
    sink.undo(2, 6)
    assert bench.rows() == [90, 91]


def test_another_sink_of_the_same_table_is_somebody_else(bench: Bench) -> None:
    ours, theirs = bench.sink(), bench.sink(uid=OTHER_UID, pipeline="refunds")
    append_elsewhere(bench, 90)
    bench.fill(ours, 1)
    theirs.keep(1)  # changes no rows
    ours.undo(0, 2)
    assert bench.rows() == [90] and theirs.epoch() == 1


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_compaction_is_no_hindrance(bench: Bench, when: str) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    if when == "before":
        table(bench).optimize.compact()
        vacuum(bench)
    bench.fill(sink, 3)
    if when == "between":
        table(bench).optimize.compact()
    bench.fill(sink, 4)
    if when == "after":
        table(bench).optimize.compact()
    assert len(table(bench).file_uris()) < 4
    sink.undo(2, 5)
    assert bench.rows() == [1, 2] and table(bench).count() == 2


def test_files_that_were_vacuumed_do_not_come_back(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    table(bench).optimize.compact()
    vacuum(bench)
    for call in (lambda: sink.undo(1, 4), lambda: sink.plan_undo(1)):
        with pytest.raises(Conflict, match="1 files have to come back") as caught:
            call()
        assert caught.value.code == "sink.undo_refused"
    assert bench.rows() == [1, 2, 3] and sink.epoch() == 3


def test_a_log_that_was_cleaned_up_says_so(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3, 4)
    table(bench).create_checkpoint()
    for version in (0, 1, 2):
        os.unlink(bench.root / "_delta_log" / f"{version:020d}.json")
    fresh = bench.sink()
    for call in (lambda: fresh.undo(1, 5), lambda: fresh.plan_undo(1)):
        with pytest.raises(Conflict, match="no longer goes back to version 2") as caught:
            call()
        assert caught.value.code == "sink.undo_refused"
    # A checkpoint of the log stands in for what is before it.
    fresh.undo(4, 5)
    bench.fill(fresh, 6)
    fresh.undo(5, 7)
    assert bench.rows() == [1, 2, 3, 4]


def test_a_plan_counts_no_epoch_that_was_taken_back_before(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    assert sink.plan_undo(1) == "2 files, 2 rows of 2 epochs"
    sink.undo(1, 4)
    assert sink.plan_undo(1) == "nothing"
    bench.fill(sink, 5)
    assert sink.plan_undo(1) == "1 file, 1 row of 1 epoch"
    sink.undo(1, 6)
    sink.keep(7)
    bench.fill(sink, 8, 9)
    sink.undo(8, 10)
    bench.fill(sink, 11)
    assert sink.plan_undo(1) == sink.plan_undo(7) == "2 files, 2 rows of 2 epochs"
    assert sink.plan_undo(0) == "3 files, 3 rows of 3 epochs"
    sink.undo(2, 12)  # past an undo that went further back
    assert bench.rows() == [1, 2] and sink.plan_undo(0) == "2 files, 2 rows of 2 epochs"


def test_an_append_only_table_is_left_as_it_is(bench: Bench) -> None:
    DeltaTable.create(str(bench.root), pa.schema([("id", pa.int64())]), configuration={"delta.appendOnly": "true"})
    sink = bench.sink()
    bench.fill(sink, 1, 2)
    with pytest.raises(Conflict, match="append-only"):
        sink.undo(1, 3)
    sink.keep(3)
    assert bench.rows() == [1, 2] and sink.epoch() == 3


def test_counts_statistics_and_the_transactions_of_others_outlive_an_undo(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1)
    append_elsewhere(bench, 8, 9, commit_properties=CommitProperties(app_transactions=[Transaction("theirs", 77)]))
    before = sorted(pa.table(table(bench).get_add_actions(flatten=True)).to_pylist(), key=str)
    bench.fill(sink, 2)
    sink.undo(1, 3)
    table(bench).create_checkpoint()
    fresh = table(bench)
    assert fresh.transaction_version("theirs") == 77
    assert fresh.count() == 3 and bench.rows() == [1, 8, 9]
    assert sorted(pa.table(fresh.get_add_actions(flatten=True)).to_pylist(), key=str) == before
    assert bench.sink().epoch() == 3


def test_an_undo_is_one_version_and_is_synced(bench: Bench, synced: list[str]) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    version = table(bench).version()
    for number, undo in enumerate((lambda: sink.undo(1, 4), lambda: sink.keep(5), lambda: sink.undo(5, 6)), 1):
        synced.clear()
        undo()
        assert table(bench).version() == version + number
        assert str(bench.root / "_delta_log" / f"{version + number:020d}.json") in synced
        # Whoever finds it done makes sure.
        synced.clear()
        bench.sink().keep(3 + number)
        assert str(bench.root / "_delta_log" / f"{version + number:020d}.json") in synced
    actions = [
        json.loads(line) for line in (bench.root / f"_delta_log/{version + 2:020d}.json").read_text().split("\n")
    ]
    assert sorted(next(iter(action)) for action in actions) == ["commitInfo", "txn", "txn"]


def test_another_writer_between_the_plan_and_the_undo_is_seen(bench: Bench) -> None:
    sink = bench.sink()
    bench.fill(sink, 1, 2, 3)
    restore = sink._restore

    def after(act: Callable[[], Any]) -> Callable[..., bool]:
        def wrapped(*args: Any) -> bool:
            sink._restore = restore
            act()
            done: bool = restore(*args)
            return done

        return wrapped

    sink._restore = after(table(bench).optimize.compact)
    sink.undo(2, 4)
    assert bench.rows() == [1, 2] and sink.epoch() == 4
    bench.fill(sink, 5)
    sink._restore = after(lambda: append_elsewhere(bench, 99))
    with pytest.raises(Conflict, match="WRITE"):
        sink.undo(4, 6)
    assert bench.rows() == [1, 2, 5, 99] and sink.epoch() == 5


def test_a_table_of_another_pipeline_is_not_undone(bench: Bench) -> None:
    ours = bench.sink()
    bench.fill(ours, 1, 2)
    heir = bench.sink(uid=OTHER_UID, take_over=True)
    heir.keep(1)
    for call in (lambda: ours.undo(1, 3), lambda: ours.keep(3)):
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "sink.other_pipeline"
    assert bench.rows() == [1, 2]


def test_a_table_that_appears_while_nothing_is_there_is_undone_too(bench: Bench) -> None:
    sink, zombie = bench.sink(), bench.sink()
    staged = bench.stage_by_hand(new_attempt(), 1)
    clear = sink._staging.clear

    def after_the_commit(attempts: list[str]) -> None:
        zombie.commit([staged], 1)
        assert bench.rows() == [1]
        clear(attempts)

    sink._staging.clear = after_the_commit
    sink.keep(2)
    assert bench.rows() == [] and sink.epoch() == 2


@pytest.mark.parametrize("again", [lambda sink: sink.keep(4), lambda sink: sink.undo(2, 4)], ids=["keep", "undo"])
def test_a_later_rollback_ends_what_one_that_found_no_table_began(bench: Bench, again: Callable[[Any], None]) -> None:
    sink, zombie = bench.sink(), bench.sink()
    staged = bench.stage_by_hand(new_attempt(), 2)
    clear = sink._staging.clear

    def die_after_the_commit(attempts: list[str]) -> None:
        zombie.commit([staged], 2)
        clear(attempts)
        raise KeyboardInterrupt

    sink._staging.clear = die_after_the_commit
    with pytest.raises(KeyboardInterrupt):
        sink.undo(1, 3)
    heir = bench.sink()
    assert heir.plan_undo(2) == "1 file, 1 row of 1 epoch"
    again(heir)  # whatever it was told to leave: the table refers to files that are gone
    assert bench.rows() == [] and heir.epoch() == 4
    # From now on that note is older than what the table remembers.
    bench.fill(heir, 5, 6)
    heir.undo(5, 7)
    heir.keep(8)
    assert bench.rows() == [5]


@pytest.mark.parametrize("step", ["attempts", "note_undone", "clear"])
def test_a_fenced_driver_that_sleeps_in_its_undo_deletes_nothing_of_the_next_ones(bench: Bench, step: str) -> None:
    fenced, newer = bench.sink(), bench.sink()
    abandoned = new_attempt()
    bench.stage_by_hand(abandoned, 1)
    real = getattr(fenced._staging, step)

    def sleep_through_a_run(*args: Any) -> Any:
        newer.undo(0, 2)
        bench.fill(newer, 3)
        return real(*args)

    setattr(fenced._staging, step, sleep_through_a_run)
    fenced.undo(0, 2)
    assert bench.rows() == [3] and newer.epoch() == 3
    assert not [path for path in bench.paths() if abandoned in path and path.endswith(".parquet")]
