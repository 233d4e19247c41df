"""Keys in Arrow against keys in Python."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import InvalidInput
from slackwater.sinks.key_columns import Keys, check_key, parse_key

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-2, 2)),
    "text": (pa.string(), st.sampled_from(["", "a", "A", "ä"])),
    "flag": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\x00"])),
    "money": (pa.decimal128(38, 9), st.sampled_from([decimal.Decimal("0.1"), decimal.Decimal("-1")])),
    "day": (pa.date32(), st.sampled_from([datetime.date(1066, 10, 14), datetime.date(2026, 2, 28)])),
    "at": (pa.timestamp("us", tz="UTC"), st.sampled_from([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)])),
}


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    schema = pa.schema([(name, COLUMNS[name][0]) for name in names])
    row = st.fixed_dictionaries({name: st.none() | COLUMNS[name][1] for name in names})
    left, right = (pa.Table.from_pylist(draw(st.lists(row, max_size=12)), schema) for _ in range(2))
    return left, right


def as_set(rows: pa.Table) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in rows.to_pylist()}


@given(two_tables())
def test_a_key_is_found_exactly_when_it_is_there(tables: tuple[pa.Table, pa.Table]) -> None:
    known, rows = tables
    keys = Keys(known)
    assert keys.count == len(as_set(known))
    assert keys.among(rows).to_pylist() == [tuple(row.values()) in as_set(known) for row in rows.to_pylist()]


def test_many_columns_with_many_values_do_not_overflow() -> None:
    rows = pa.table({f"column {number}": pa.array(range(20_000)) for number in range(8)})
    keys = Keys(rows)
    assert keys.count == 20_000 and all(keys.among(rows.slice(19_990)).to_pylist())
    shifted = rows.set_column(7, "column 7", pa.array(range(1, 20_001)))
    assert not any(keys.among(shifted).to_pylist())


def test_a_key_is_a_column_or_a_list_of_them() -> None:
    assert parse_key("id") == ["id"] and parse_key(("a", "b")) == ["a", "b"] and parse_key(None) == []
    for bad in ("", [], [""], ["a", "a"], [1], ["a", None]):
        with pytest.raises(InvalidInput) as caught:
            parse_key(bad)  # type: ignore[arg-type]
        assert caught.value.code == "sink.invalid" and "key" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("double", "cast"), ("float", "cast"), ({"type": "struct", "fields": []}, "window.start"), (None, "['other']")],
)
def test_a_key_that_cannot_be_compared_is_refused(kind: Any, hint: str) -> None:
    fields = [{"name": "other", "type": "long"}] + ([{"name": "k", "type": kind}] if kind else [])
    with pytest.raises(InvalidInput) as caught:
        check_key(["k"], {"type": "struct", "fields": fields})
    assert caught.value.code == "sink.invalid" and hint in str(caught.value)
