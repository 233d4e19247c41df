"""Upserts by key into a Delta table, and the replacement of all its rows; staged by hand, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from slackwater.errors import Corrupt, SlackwaterError, Unsupported
from slackwater.sinks.delta.table import addition
from slackwater.sinks.descriptors import StagedFile

from .conftest import Bench, new_attempt
from .test_sink_contract import COMMIT_POINTS

Rows = dict[Any, str | None]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("delta", tmp_path / "table")


def table(bench: Bench) -> DeltaTable:
    return DeltaTable(str(bench.root))


def stage(
    bench: Bench, attempt: str, rows: Mapping[Any, str | None], micro_batch: int = 0, mode: str = "upsert"
) -> dict[str, Any]:
    values = pa.table({"id": pa.array(list(rows), pa.int64()), "text": pa.array(list(rows.values()), pa.string())})
    return bench.stage_table(attempt, values, micro_batch, mode=mode, key=["id"] if mode == "upsert" else [])


def upsert(bench: Bench, epoch: int, rows: Mapping[Any, str | None], sink: Any = None) -> None:
    (sink or bench.sink(key="id")).commit([stage(bench, new_attempt(), rows)], epoch)


def content(bench: Bench) -> Rows:
    """Read the table; a key that is there twice fails."""
    rows = table(bench).to_pyarrow_table()
    assert rows.num_rows == table(bench).count()
    assert len(set(rows["id"].to_pylist())) == rows.num_rows, "a key is there twice"
    return dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))


def test_rows_of_known_keys_are_replaced_and_others_added_in_one_version(bench: Bench) -> None:
    upsert(bench, 1, {1: "a", 2: "b", 3: "c"})
    upsert(bench, 2, {2: "B", 4: "d"})
    assert content(bench) == {1: "a", 2: "B", 3: "c", 4: "d"}
    assert table(bench).version() == 2
    upsert(bench, 3, {1: None})
    assert content(bench) == {1: None, 2: "B", 3: "c", 4: "d"}


def test_files_without_a_key_of_the_epoch_stay_as_they_are(bench: Bench) -> None:
    for epoch, rows in enumerate(({1: "a"}, {2: "b"}, {3: "c", 4: "d"}), 1):
        upsert(bench, epoch, rows)
    before = set(table(bench).file_uris())
    upsert(bench, 4, {2: "B", 3: "C"})
    gone = before - set(table(bench).file_uris())
    assert len(gone) == 2 and content(bench) == {1: "a", 2: "B", 3: "C", 4: "d"}
    # The file that had key 2 alone has no successor.
    assert len(table(bench).file_uris()) == 3


def test_null_is_a_key_like_any_other(bench: Bench) -> None:
    upsert(bench, 1, {None: "none", 1: "a"})
    upsert(bench, 2, {None: "still none"})
    assert content(bench) == {None: "still none", 1: "a"}


def test_several_columns_are_one_key(bench: Bench) -> None:
    sink, schema = bench.sink(key=["a", "b"]), pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())])

    def commit(epoch: int, rows: list[tuple[int | None, str | None, int]]) -> None:
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
        values = pa.table(columns, schema=schema)
        sink.commit([bench.stage_table(new_attempt(), values, mode="upsert", key=["a", "b"])], epoch)

    commit(1, [(1, "x", 1), (1, "y", 2), (2, "x", 3), (None, "x", 4), (1, None, 5), (None, None, 6)])
    commit(2, [(1, "y", 20), (None, "x", 40), (1, None, 50), (2, "y", 70)])
    got = [tuple(row.values()) for row in table(bench).to_pyarrow_table().sort_by("n").to_pylist()]
    assert got == [
        (1, "x", 1), (2, "x", 3), (None, None, 6), (1, "y", 20), (None, "x", 40), (1, None, 50), (2, "y", 70),
    ]  # fmt: skip


def test_the_newest_micro_batch_of_an_epoch_wins(bench: Bench) -> None:
    upsert(bench, 1, {1: "a", 9: "i"})
    attempt = new_attempt()
    staged = [
        stage(bench, attempt, {3: "third", 1: "new"}, 12),
        stage(bench, attempt, {1: "old", 2: "first", 4: "only here"}, 10),
        stage(bench, attempt, {2: "second", 3: "second"}, 11),
        stage(bench, attempt, {}, 13),
    ]
    bench.sink(key="id").commit(staged, 2)
    assert content(bench) == {1: "new", 2: "second", 3: "third", 4: "only here", 9: "i"}
    assert table(bench).version() == 2


def test_an_upsert_without_rows_is_no_version(bench: Bench) -> None:
    upsert(bench, 1, {1: "a"})
    upsert(bench, 2, {})
    assert table(bench).version() == 1 and bench.sink().epoch() == 1


def test_the_descriptor_decides_and_not_the_program_of_today(bench: Bench) -> None:
    upsert(bench, 1, {1: "a"})
    bench.sink().commit([stage(bench, new_attempt(), {1: "A"})], 2)
    assert content(bench) == {1: "A"}


def test_a_descriptor_that_says_two_things_at_once_is_refused(bench: Bench) -> None:
    attempt = new_attempt()
    staged = stage(bench, attempt, {1: "b"})
    for odd in (
        [staged, stage(bench, attempt, {1: "c"}, 1, "replace")],
        [staged, {**staged, "key": ["text"]}],
        [{**staged, "key": ["nope"]}],
        [{**staged, "key": []}],
        [{**staged, "mode": "append"}],
        [{**staged, "mode": "merge"}],
        [{**staged, "micro_batch": -1}],
    ):
        with pytest.raises(Corrupt) as caught:
            bench.sink().commit(odd, 1)
        assert caught.value.code == "sink.damaged"
    assert not (bench.root / "_delta_log").exists()


def test_drivers_that_race_for_an_epoch_upsert_it_once(bench: Bench) -> None:
    racers, rows = [bench.sink(key="id") for _ in range(4)], {key: str(key) for key in range(20)}
    upsert(bench, 1, rows)
    with ThreadPoolExecutor(len(racers)) as pool:
        for epoch in range(2, 8):
            new: Rows = {key: f"{epoch} {key}" for key in range(epoch, 40, epoch)}
            staged, start = stage(bench, new_attempt(), new), threading.Barrier(len(racers))

            def race(sink: Any, start=start, staged=staged, epoch=epoch) -> None:
                start.wait()
                sink.commit([staged], epoch)

            list(pool.map(race, racers))
            rows |= new
            assert content(bench) == rows and table(bench).version() == epoch
    racers[0].commit([stage(bench, new_attempt(), {0: "late"})], 7)
    assert content(bench) == rows


OTHERS: dict[str, tuple[Callable[[Bench], Any], Rows]] = {
    "append": (
        lambda bench: write_deltalake(str(bench.root), pa.table({"id": [2], "text": ["theirs"]}), mode="append"),
        {1: "a", 2: "ours", 3: "c"},
    ),
    "delete": (lambda bench: table(bench).delete("id = 3"), {1: "a", 2: "ours"}),
    "update": (lambda bench: table(bench).update({"text": "'theirs'"}), {1: "theirs", 2: "ours", 3: "theirs"}),
    "compact": (lambda bench: table(bench).optimize.compact(), {1: "a", 2: "ours", 3: "c"}),
    "overwrite": (
        lambda bench: write_deltalake(str(bench.root), pa.table({"id": [5], "text": ["theirs"]}), mode="overwrite"),
        {5: "theirs", 2: "ours"},
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_writer_between_look_and_commit_is_looked_at_too(bench: Bench, kind: str) -> None:
    act, expected = OTHERS[kind]
    upsert(bench, 1, {1: "a"})
    upsert(bench, 2, {2: "b", 3: "c"})
    sink = bench.sink(key="id")
    write = sink._write

    def after_another(*args: Any) -> bool:
        sink._write = write
        act(bench)
        assert write(*args) is False
        return False

    sink._write = after_another
    upsert(bench, 3, {2: "ours"}, sink)
    assert content(bench) == expected and sink.epoch() == 3


@pytest.mark.parametrize("point", [point for kind, point in COMMIT_POINTS if kind == "delta"])
def test_a_crash_while_upserting_is_mended_by_driving_the_epoch_again(bench: Bench, arm, point: str) -> None:
    upsert(bench, 1, {1: "a", 2: "b"})
    staged = stage(bench, new_attempt(), {2: "B", 3: "c"})
    arm(point)
    with pytest.raises(SlackwaterError, match=point):
        bench.sink(key="id").commit([staged], 2)
    after = {1: "a", 2: "B", 3: "c"}
    assert content(bench) == (after if bench.sink().epoch() == 2 else {1: "a", 2: "b"})
    bench.sink(key="id").commit([staged], 2)
    assert content(bench) == after and table(bench).version() == 2


def test_upserts_are_undone(bench: Bench) -> None:
    for epoch, rows in enumerate(({1: "a", 2: "b"}, {2: "B", 3: "c"}, {1: "A", 3: "C"}), 1):
        upsert(bench, epoch, rows)
    sink = bench.sink()
    assert sink.plan_undo(1) == "2 files, 3 rows of 2 epochs; 1 file, 2 rows of before come back"
    sink.undo(1, 4)
    assert content(bench) == {1: "a", 2: "b"}
    upsert(bench, 5, {2: "after"})
    assert content(bench) == {1: "a", 2: "after"}


def test_what_was_written_anew_is_synced_before_the_commit(bench: Bench, synced: list[str]) -> None:
    upsert(bench, 1, {1: "a", 2: "b"})
    synced.clear()
    upsert(bench, 2, {2: "B"})
    log = str(bench.root / "_delta_log" / f"{2:020d}.json")
    new = [path for path in table(bench).file_uris() if path in synced]
    assert len(new) == 1 and synced.index(new[0]) < synced.index(log)


def test_every_type_survives_being_written_anew(bench: Bench) -> None:
    """Also files of other writers: large strings, columns that are missing or never null."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("money", pa.decimal128(38, 9)),
            pa.field("deep", pa.struct([("list", pa.list_(pa.string())), ("map", pa.map_(pa.string(), pa.float64()))])),
            pa.field("text", pa.string()),
        ]
    )
    rows: list[dict[str, Any]] = [
        {"id": 1, "at": 0, "money": None, "deep": {"list": ["a", None], "map": [("k", 0.1)]}, "text": "a"},
        {"id": 2, "at": None, "money": "1.5", "deep": None, "text": None},
        {"id": 3, "at": 1, "money": None, "deep": {"list": None, "map": []}, "text": "ü"},
    ]
    for row in rows:
        row["money"] = None if row["money"] is None else pa.scalar(row["money"]).cast(pa.decimal128(38, 9)).as_py()
    theirs = pa.Table.from_pylist(rows, schema)
    large = theirs.set_column(4, "text", theirs["text"].cast(pa.large_string()))
    write_deltalake(str(bench.root), large)
    before = table(bench).to_pyarrow_table().sort_by("id").to_pylist()
    fields = [{"name": "id", "type": "long", "nullable": False, "metadata": {}}]
    staged = bench.stage_table(new_attempt(), pa.table({"id": [2]}), mode="upsert", key=["id"])
    staged["schema"]["fields"] = fields
    bench.sink(key="id").commit([staged], 1)
    after = table(bench).to_pyarrow_table().sort_by("id").to_pylist()
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] == {"id": 2, "at": None, "money": None, "deep": None, "text": None}
    anew = [path for path in table(bench).file_uris() if pq.read_metadata(path).num_rows == 2]
    assert pq.read_schema(anew[0]).remove_metadata() == schema


def test_files_with_odd_names_are_found_and_removed(bench: Bench) -> None:
    bench.root.mkdir()
    upsert(bench, 1, {1: "a"})
    odd = "späte daten/100%20 + x=y.parquet"
    (bench.root / odd).parent.mkdir()
    pq.write_table(pa.table({"id": [7, 8], "text": ["seven", "eight"]}), bench.root / odd)
    theirs = table(bench)
    action = addition(
        new_attempt(),
        StagedFile(path=odd, size_bytes=(bench.root / odd).stat().st_size, rows=2),
    )
    theirs.create_write_transaction([action], mode="append", schema=theirs.schema())
    upsert(bench, 2, {7: "SEVEN"})
    assert content(bench) == {1: "a", 7: "SEVEN", 8: "eight"}


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableDeletionVectors"])
def test_a_table_in_which_rows_cannot_be_replaced_so_is_refused(bench: Bench, name: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    DeltaTable.create(str(bench.root), columns, configuration={name: "true"})
    sink = bench.sink(key="id")
    with pytest.raises(Unsupported) as caught:
        sink.commit([stage(bench, new_attempt(), {1: "a"})], 1)
    assert caught.value.code == "sink.unsupported" and "the table" in str(caught.value)


def test_memory_grows_with_the_epoch_and_not_with_the_table(bench: Bench) -> None:
    wide = pa.array(["x" * 4000] * 10_000)
    for number in range(6):
        ids = pa.array(range(number * 10_000, number * 10_000 + 10_000))
        write_deltalake(str(bench.root), pa.table({"id": ids, "text": wide}), mode="append")
    table(bench).optimize.compact()
    assert len(table(bench).file_uris()) == 1
    staged = stage(bench, new_attempt(), {5: "new"})
    ordinary, watched = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(watched)
    try:
        bench.sink(key="id").commit([staged], 1)
    finally:
        pa.set_memory_pool(ordinary)
    peak = watched.max_memory()
    assert peak is not None and 16_000_000 < peak < 60_000 * 4000 / 2
    assert table(bench).count() == 60_000


# --- replacing everything


def replace(bench: Bench, epoch: int, *frames: Mapping[Any, str | None]) -> None:
    attempt = new_attempt()
    staged = [stage(bench, attempt, rows, number, "replace") for number, rows in enumerate(frames)]
    bench.sink().commit(staged, epoch)


def test_a_complete_result_replaces_all_rows_in_one_version(bench: Bench) -> None:
    replace(bench, 1, {1: "a", 2: "b"})
    replace(bench, 2, {2: "B"}, {2: "newer", 3: "c"})
    assert content(bench) == {2: "newer", 3: "c"} and table(bench).version() == 2


def test_an_empty_complete_result_empties_the_table(bench: Bench) -> None:
    replace(bench, 1, {})
    assert content(bench) == {} and bench.sink().epoch() == 1
    replace(bench, 2, {1: "a"})
    replace(bench, 3, {5: "e"}, {})
    assert content(bench) == {} and bench.sink().epoch() == 3
    # Driven again it is one version still.
    version = table(bench).version()
    replace(bench, 3, {})
    assert table(bench).version() == version


def test_a_complete_result_is_undone(bench: Bench) -> None:
    for epoch, rows in enumerate(({1: "a"}, {2: "b", 3: "c"}, {}), 1):
        replace(bench, epoch, rows)
    bench.sink().undo(1, 4)
    assert content(bench) == {1: "a"}
    replace(bench, 5, {9: "i"})
    assert content(bench) == {9: "i"}


def test_what_another_writer_adds_while_all_is_replaced_is_replaced_or_comes_after(bench: Bench) -> None:
    replace(bench, 1, {1: "a"})
    sink = bench.sink()
    write = sink._write

    def after_another(*args: Any) -> bool:
        sink._write = write
        write_deltalake(str(bench.root), pa.table({"id": [7], "text": ["theirs"]}), mode="append")
        done: bool = write(*args)
        return done

    sink._write = after_another
    sink.commit([stage(bench, new_attempt(), {2: "b"}, 0, "replace")], 2)
    assert content(bench) == {2: "b"}


def test_an_append_only_table_is_not_replaced(bench: Bench) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    DeltaTable.create(str(bench.root), columns, configuration={"delta.appendOnly": "true"})
    with pytest.raises(Unsupported) as caught:
        replace(bench, 1, {1: "a"})
    assert caught.value.code == "sink.unsupported" and "the table" in str(caught.value)
