"""Keys of rows, in Arrow: which rows of a batch have a key of a given set. Null equals null."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidInput

# Equality of floats is not what it seems, and Arrow has none for what is nested.
_COMPARABLE = re.compile(r"string|long|integer|short|byte|boolean|binary|date|timestamp|timestamp_ntz|decimal\(.*\)")


class Keys:
    """The distinct keys of some rows, which have the key's columns and no others."""

    def __init__(self, rows: pa.Table) -> None:
        # Column by column: each key becomes its place among those known so far, so that numbers stay small.
        self._steps: list[tuple[pa.Array, pa.Array]] = []
        places: Any = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        for column in rows.columns:
            values = pc.unique(column)
            mixed = _mix(places, column, values)
            known = pc.unique(mixed)
            self._steps.append((values, known))
            places = pc.index_in(mixed, value_set=known)
        self.count = len(known)

    def among(self, rows: pa.Table) -> Any:
        """Tell of each row, by a column of booleans, whether its key is one of these."""
        places: Any = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        for column, (values, known) in zip(rows.columns, self._steps, strict=True):
            places = pc.index_in(_mix(places, column, values), value_set=known)
        return pc.is_valid(places)


def _mix(places: Any, column: Any, values: pa.Array) -> Any:
    """Number the pairs of a place and a value; a pair with an unknown part is null."""
    place = pc.index_in(column.cast(values.type), value_set=values)
    return pc.add(pc.multiply(places.cast(pa.int64()), len(values)), place.cast(pa.int64()))


def parse_key(key: str | Sequence[str] | None) -> list[str]:
    """Parse what a user gives as the key: a column, several, or none."""
    columns = [key] if isinstance(key, str) else list(key or ())
    odd = [column for column in columns if not isinstance(column, str) or not column]
    if odd or len(set(columns)) < len(columns) or (key is not None and not columns):
        raise _bad_key(f"the key {key!r} is not a list of different columns", 'write key="id" or key=["a", "b"]')
    return columns


def check_key(key: Sequence[str], schema: dict[str, Any]) -> None:
    """Refuse a key that the query's columns do not have, or that cannot be compared."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for column in key:
        kind = types.get(column)
        if kind is None:
            raise _bad_key(f"the query has no column {column!r}, which is in the sink's key", f"it has {sorted(types)}")
        if not isinstance(kind, str) or not _COMPARABLE.fullmatch(kind):
            name = kind if isinstance(kind, str) else kind["type"]
            raise _bad_key(
                f"the column {column!r} of the sink's key is a {name}, which is not compared for equality",
                "cast it, or select what is in it as columns of their own, such as window.start",
            )


def check_distinct(rows: int, keys: Keys, columns: Sequence[str]) -> None:
    """Refuse a micro-batch with several rows of one key: it does not say which of them is to stay."""
    if keys.count < rows:
        raise InvalidInput(
            f"{rows} rows of one micro-batch have only {keys.count} different keys ({', '.join(columns)})",
            code="sink.invalid",
            hint="let the sink's key be the columns that the query groups by, or deduplicate by it",
        )


def _bad_key(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="sink.invalid", hint=hint)
