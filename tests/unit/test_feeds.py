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
from slackwater.pipeline.tables.feeds import FileFeed
from slackwater.pipeline.tables.rows import RowCodec

SCHEMA = pa.schema([("id", pa.int64()), ("risk", pa.string())])


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
    with pytest.raises(InvalidInput, match=r"table\.bad_change.*not as boolean"):
        changes(tmp_path, "1.parquet", parquet(id=[1], risk=["low"], _deleted=[deleted]))


def test_a_change_that_does_not_say_whether_it_deletes_does_not(tmp_path: Path) -> None:
    found = changes(tmp_path, "1.parquet", parquet(id=[1, 2, 3], risk=["a", "b", "c"], _deleted=[None, False, True]))
    assert found == {1: ["a"], 2: ["b"], 3: None}
    assert changes(tmp_path, "1.parquet", parquet(id=[1], risk=["a"], _deleted=pa.nulls(1))) == {1: ["a"]}


def test_a_folder_that_is_not_there_is_not_taken_for_one_without_changes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    feed = FileFeed(folder)
    with pytest.raises(NotFound, match=r"feed\.not_there"):
        feed.start(tmp_path)
    folder.mkdir()
    feed.start(tmp_path)
    assert feed.read({}, SCHEMA) is None
    folder.rmdir()
    with pytest.raises(NotFound, match=r"feed\.not_there"):
        feed.read({}, SCHEMA)


@pytest.mark.parametrize(
    ("kind", "looked_up", "fits"),
    [
        (pa.int32(), pa.array([2**40, 1, None, -(2**40), 2]), [False, True, False, False, True]),
        (pa.int64(), pa.array(["x", "1", ""]), [False, True, False]),
        (pa.int64(), pa.array([1.5, 1.0, float("nan")]), [False, True, False]),
        (pa.decimal128(5, 2), pa.array([Decimal("1.005"), Decimal("1.250")]), [False, True]),
        (pa.date32(), pa.array(["2026-11-18", "today"]), [True, False]),
        (pa.string(), pa.array([b"a", b"\xff"], pa.binary()), [True, False]),
        (pa.string(), pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()), [True, False]),
    ],
)
def test_what_the_keys_type_does_not_have_matches_nothing(kind: Any, looked_up: Any, fits: list[bool]) -> None:
    keys = RowCodec("risks", pa.schema([("id", kind)]), ["id"]).encode_keys([looked_up])
    assert [key is not None for key in keys] == fits


def test_text_that_is_not_utf8_is_a_bad_change(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"table\.bad_change"):
        changes(tmp_path, "1.json", b'{"id": 1, "risk": "\xff"}')


def test_dates_are_text_in_json_as_in_csv(tmp_path: Path) -> None:
    schema, day = pa.schema([("id", pa.int64()), ("day", pa.date32())]), datetime.date(2026, 11, 18)
    rows = b'{"id": 1, "day": "2026-11-18"}\n{"id": 2}\n{"id": 3, "day": null}\n'
    assert changes(tmp_path, "1.json", rows, schema) == {1: [day], 2: [None], 3: [None]}
    with pytest.raises(InvalidInput, match=r"table\.bad_change"):
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


def test_one_listing_serves_for_all_that_it_has_found(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:04d}.json").write_text(f'{{"id": {number}}}')
    feed, position = FileFeed(tmp_path), dict[str, str]()
    read: list[str] = []
    while found := feed.read(position, SCHEMA):
        read.append((position := found.position)["file"])
    assert read == [f"{number:04d}.json" for number in range(30)]
    assert feed._open().requests.lists == 2, "one has found them all, the other nothing more"


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
        with pytest.raises(InvalidInput, match=r"feed\.bad_file"):
            read("2.json")
    (tmp_path / "3.json").write_text('{"id": 3}')
    assert [read("2.json"), read("3.json")] == ["3.json", None]
