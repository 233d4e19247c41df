"""Changes of reference tables, without Spark: what files hold, and what becomes of it."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.errors import InvalidInput, NotFound
from slackwater.tables import file_feed
from slackwater.tables.file_feed import FileFeed
from slackwater.tables.rows import RowCodec

SCHEMA = pa.schema([("id", pa.int64()), ("risk", pa.string())])
DAY = datetime.datetime(2026, 11, 18)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def parquet(**columns: Any) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made)
    return made.getvalue()


def changes(folder: Path, name: str, data: bytes, schema: pa.Schema = SCHEMA) -> dict[Any, Any]:
    """What a feed of one file changes: by id the other columns, or None where the row is deleted."""
    (folder / name).write_bytes(data)
    found = FileFeed(folder).read({}, schema)
    assert found is not None
    codec = RowCodec("risks", schema, ["id"])
    return {
        msgspec.msgpack.decode(key)[0]: None
        if row is None
        else [each[0].as_py() for each in codec.decode_values([row])]
        for key, row in codec.encode_changes(found.batches, found.where)
    }


@pytest.mark.parametrize("deleted", ["false", "true", 0, float("nan")])
def test_only_a_boolean_deletes(tmp_path: Path, deleted: Any) -> None:
    with pytest.raises(InvalidInput, match=r"feed\.invalid.*not as boolean"):
        changes(tmp_path, "1.parquet", parquet(id=[1], risk=["low"], _deleted=[deleted]))


def test_a_change_that_does_not_say_whether_it_deletes_does_not(tmp_path: Path) -> None:
    found = changes(tmp_path, "1.parquet", parquet(id=[1, 2, 3], risk=["a", "b", "c"], _deleted=[None, False, True]))
    assert found == {1: ["a"], 2: ["b"], 3: None}
    assert changes(tmp_path, "1.parquet", parquet(id=[1], risk=["a"], _deleted=pa.nulls(1))) == {1: ["a"]}


def test_a_file_that_comes_too_late_to_be_read_is_told_of_once(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(file_feed, "_LOOK_BACK_S", 0.0)
    feed, position = FileFeed(tmp_path), dict[str, str]()

    def read_all() -> list[str]:
        found = []
        while (changes := feed.read(position, SCHEMA)) is not None:
            position.update(changes.position)
            found.append(position["file"])
        return found

    for name in ("3.json", "5.json"):
        (tmp_path / name).write_bytes(b'{"id": 1}')
    assert read_all() == ["3.json", "5.json"] and read_all() == []
    (tmp_path / "7.json").write_bytes(b'{"id": 1}')
    assert read_all() == ["7.json"] and read_all() == []
    assert not caplog.records
    for name in ("4.json", "6.json", "_6.json"):
        (tmp_path / name).write_bytes(b'{"id": 1}')
    assert read_all() == read_all() == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("2 files came to") and said.endswith("the first is 4.json")


def test_a_folder_that_is_not_there_is_not_taken_for_one_without_changes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    feed = FileFeed(folder)
    with pytest.raises(NotFound, match=r"folder\.not_found.*that feeds a table is not there"):
        feed.start(tmp_path)
    folder.mkdir()
    feed.start(tmp_path)
    assert feed.read({}, SCHEMA) is None
    folder.rmdir()
    with pytest.raises(NotFound, match=r"folder\.not_found.*that feeds a table is not there"):
        feed.read({}, SCHEMA)


@pytest.mark.parametrize(
    ("kind", "looked_up", "fits"),
    [
        (pa.int32(), pa.array([2**40, 1, None, -(2**40), 2]), [False, True, False, False, True]),
        (pa.int64(), pa.array(["x", "1", ""]), [False, True, False]),
        (pa.int64(), pa.array([1.5, 1.0, float("nan")]), [False, True, False]),
        (pa.int64(), pa.array(["0x10", "0X10", "16", "016"]), [False, False, True, True]),
        (pa.int64(), pa.array([b"0x10", b"16"]), [False, True]),
        (pa.decimal128(5, 2), pa.array([Decimal("1.005"), Decimal("1.250")]), [False, True]),
        (pa.decimal128(5, 2), pa.array([1.239, 1.24, None, 1e300, float("nan")]), [False, True, False, False, False]),
        (pa.decimal128(5, 2), pa.array([1.239, 1.1], pa.float32()), [False, True]),
        (pa.decimal128(5, 2), pa.array([999, 1000, -5, 2**62]), [True, False, True, False]),
        (pa.decimal128(5, 2), pa.array(["1.239", "1.24"]), [False, True]),
        (pa.date32(), pa.array(["2026-11-18", "today"]), [True, False]),
        (pa.date32(), pa.array([DAY + datetime.timedelta(hours=10), DAY, None]), [False, True, False]),
        (pa.timestamp("us", "UTC"), pa.array([DAY, None], pa.timestamp("us", "Asia/Tokyo")), [True, False]),
        (pa.timestamp("us", "UTC"), pa.array(["2026-11-18T10:00:00Z", "2026-11-18"]), [True, False]),
        (pa.bool_(), pa.array([5, 2]), [False, False]),
        (pa.bool_(), pa.array([0.5, -1.0]), [False, False]),
        (pa.string(), pa.array([b"a", b"\xff"], pa.binary()), [True, False]),
        (pa.string(), pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()), [True, False]),
    ],
)
def test_what_the_keys_type_does_not_have_matches_nothing(kind: Any, looked_up: Any, fits: list[bool]) -> None:
    keys = RowCodec("risks", pa.schema([("id", kind)]), ["id"]).encode_keys([looked_up])
    assert [key is not None for key in keys] == fits


NUMBERS, TEXTS = [pa.int64(), pa.float64(), pa.decimal128(20, 5)], [pa.string(), pa.binary()]


@pytest.mark.parametrize(
    ("key", "match", "never"),
    [
        (pa.int32(), [*NUMBERS, *TEXTS, pa.null()], [pa.bool_(), pa.date32(), INSTANT, LOCAL, pa.list_(pa.int32())]),
        (pa.decimal128(10, 2), [*NUMBERS, *TEXTS], [pa.bool_(), pa.date32(), INSTANT, LOCAL]),
        (pa.bool_(), [pa.bool_(), pa.string()], [*NUMBERS, pa.date32(), INSTANT]),
        (pa.date32(), [LOCAL, pa.string()], [*NUMBERS, pa.bool_(), INSTANT]),
        (INSTANT, [pa.timestamp("us", "Asia/Tokyo"), pa.string()], [*NUMBERS, pa.bool_(), LOCAL, pa.date32()]),
        (pa.string(), [*NUMBERS, *TEXTS, pa.bool_(), pa.date32(), INSTANT], [pa.list_(pa.string())]),
    ],
)
def test_only_types_that_can_be_compared_without_a_guess_are_joined(
    key: Any, match: list[Any], never: list[Any]
) -> None:
    codec = RowCodec("risks", pa.schema([("id", key)]), ["id"])
    assert [kind for kind in match if not codec.can_match("id", kind)] == []
    assert [kind for kind in never if codec.can_match("id", kind)] == []


@pytest.mark.parametrize(
    ("kind", "given", "lost"),
    [
        (pa.decimal128(10, 2), [1.24, 1.239], "1.239"),
        (pa.date32(), [DAY, DAY + datetime.timedelta(hours=10)], "10:00"),
        (pa.bool_(), [1, 5], "5"),
        (pa.int64(), ["16", "0x10"], "0x10"),
    ],
)
def test_a_change_that_its_column_cannot_hold_as_it_is_is_refused(
    tmp_path: Path, kind: Any, given: list[Any], lost: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    with pytest.raises(InvalidInput, match=rf"feed\.invalid.*1\.parquet.*{lost}"):
        changes(tmp_path, "1.parquet", parquet(id=[1, 2], value=given), schema)
    assert list(changes(tmp_path, "1.parquet", parquet(id=[1], value=given[:1]), schema)) == [1]


def test_floating_point_is_rounded_as_it_always_is(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("rate", pa.float32())])
    found = changes(tmp_path, "1.parquet", parquet(id=[1, 2], rate=[0.1, float("nan")]), schema)
    assert found[1] == [pytest.approx(0.1)] and found[2][0] != found[2][0]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("1.csv", b"id,id,risk\n1,2,low\n"),
        ("1.csv", b"id,risk,risk\n1,low,high\n"),
        ("1.csv", b"id,_deleted,_deleted\n1,true,false\n"),
    ],
)
def test_a_column_that_comes_twice_is_a_bad_change(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"feed\.invalid.*twice"):
        changes(tmp_path, name, data)


def test_a_field_that_comes_twice_in_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"feed\.invalid"):
        changes(tmp_path, "1.json", b'{"id": 1, "id": 2, "risk": "low"}')


def test_other_columns_may_come_twice(tmp_path: Path) -> None:
    assert changes(tmp_path, "1.csv", b"id,x,x\n1,2,3\n") == {1: [None]}


def test_text_that_is_not_utf8_is_a_bad_change(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"feed\.invalid.*cannot be applied"):
        changes(tmp_path, "1.json", b'{"id": 1, "risk": "\xff"}')


def test_dates_are_text_in_json_as_in_csv(tmp_path: Path) -> None:
    schema, day = pa.schema([("id", pa.int64()), ("day", pa.date32())]), datetime.date(2026, 11, 18)
    rows = b'{"id": 1, "day": "2026-11-18"}\n{"id": 2}\n{"id": 3, "day": null}\n'
    assert changes(tmp_path, "1.json", rows, schema) == {1: [day], 2: [None], 3: [None]}
    with pytest.raises(InvalidInput, match=r"feed\.invalid.*cannot be applied"):
        changes(tmp_path, "1.json", b'{"id": 1, "day": "today"}', schema)
    (tmp_path / "1.json").unlink()
    assert changes(tmp_path, "2.csv", b"id,day\n1,2026-11-18\n2,\n", schema) == {1: [day], 2: [None]}


@pytest.mark.parametrize(
    ("name", "before", "after"), [("1.json", '{"id": 2, "risk": "', '"}\n'), ("1.csv", "2,", "\n")]
)
def test_a_row_may_have_megabytes(tmp_path: Path, name: str, before: str, after: str) -> None:
    first = "id,risk\n1,low\n" if name == "1.csv" else '{"id": 1, "risk": "low"}\n'
    long = "x" * 3_000_000
    assert changes(tmp_path, name, f"{first}{before}{long}{after}".encode()) == {1: ["low"], 2: [long]}


def test_columns_that_the_table_does_not_have_may_hold_anything(tmp_path: Path) -> None:
    assert changes(tmp_path, "1.json", b'{"id": 1, "x": {"y": [1]}}\n{"id": 2, "x": 5}\n') == {1: [None], 2: [None]}


def test_a_listing_serves_for_all_that_it_has_found(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:04d}.json").write_text(f'{{"id": {number}}}')
    feed, position = FileFeed(tmp_path), dict[str, str]()
    read: list[str] = []
    while found := feed.read(position, SCHEMA):
        read.append((position := found.position)["file"])
    assert read == [f"{number:04d}.json" for number in range(30)]
    assert feed._open().requests.lists == 4, (
        "one has found them all, one has missed none, one has nothing more, and one looks for those that came too late"
    )


def test_no_file_is_passed_over_that_comes_while_the_folder_is_listed(tmp_path: Path) -> None:
    """The listing of a large folder takes several calls: of two files that come meanwhile it may have the second."""

    def listed(prefix: str, *, after: str | None = None) -> list[str]:
        found = list_names(prefix, after=after)
        if (tmp_path / "3.json").exists():
            return found
        for name in ("1.json", "2.json", "3.json"):
            (tmp_path / name).write_text('{"id": 1}')
        return [*found, "3.json"]

    (tmp_path / "0.json").write_text('{"id": 0}')
    feed = FileFeed(tmp_path)
    store = feed._open()
    list_names, store.list_names = store.list_names, listed  # type: ignore[method-assign]
    read, position = list[str](), dict[str, str]()
    while found := feed.read(position, SCHEMA):
        read.append((position := found.position)["file"])
    assert read == ["0.json", "1.json", "2.json", "3.json"]


def test_a_feed_is_read_again_from_wherever_it_is_asked_to(tmp_path: Path) -> None:
    def read(after: str) -> str | None:
        found = feed.read({"file": after} if after else {}, SCHEMA)
        return found.position["file"] if found else None

    (tmp_path / "folder").mkdir()
    for name in ("1.json", "2.json", "folder/0.json", ".3.json", "_4.json"):
        (tmp_path / name).write_text('{"id": 1}')
    feed = FileFeed(tmp_path)
    assert [read(""), read("1.json"), read("2.json")] == ["1.json", "2.json", None]
    assert [read(""), read("1.json"), read("1.json")] == ["1.json", "2.json", "2.json"]
    (tmp_path / "3.json").write_text("{")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"feed\.invalid.*the file"):
            read("2.json")
    (tmp_path / "3.json").write_text('{"id": 3}')
    assert [read("2.json"), read("3.json")] == ["3.json", None]
