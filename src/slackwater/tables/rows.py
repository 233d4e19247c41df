"""Rows of a reference table as keys and values of a keyed state, a column at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidInput, Unsupported
from ..rocks.database import Change
from .casts import can_compare, cast_exactly

# In a change: true when the row with this key is to go.
DELETED = "_deleted"
_PLAIN = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_binary)


class RowCodec:
    """Rows of one schema. The key's columns make the key, the others the value, each as a MessagePack list."""

    def __init__(self, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self.table, self.schema, self.key = table, schema, list(key)
        if missing := [name for name in self.key if schema.get_field_index(name) < 0]:
            raise InvalidInput(
                f"the table {table!r} has no column {missing[0]!r} to be its key",
                code="table.invalid",
                hint=f"its columns are {', '.join(schema.names)}",
            )
        if not self.key or len(set(self.key)) != len(self.key):
            raise InvalidInput(f"the table {table!r} needs a key of columns, each once", code="table.invalid")
        if DELETED in schema.names:
            raise InvalidInput(f"{DELETED} marks a change that deletes, and cannot be a column", code="table.invalid")
        self.values = [name for name in schema.names if name not in self.key]
        for field in schema:
            self._stored_type(field)
            if field.name in self.key and pa.types.is_floating(field.type):
                raise Unsupported(
                    f"the key {field.name!r} of the table {table!r} is a {field.type}, whose equality says little",
                    code="table.unsupported",
                    hint="use whole numbers, text, dates, times or decimals",
                )

    def encode_keys(self, columns: Sequence[Any]) -> list[bytes | None]:
        """Encode keys to look up, from columns in the order of the key's; None where a part can match nothing.

        That is null, and a value that the key's type does not have: a row of the stream never stops the query.
        """
        return _encode_keys(
            [
                self._lower_fitting(column, self.schema.field(name))
                for name, column in zip(self.key, columns, strict=True)
            ]
        )

    def encode_changes(self, batches: Iterable[pa.RecordBatch], where: str) -> list[Change]:
        """Encode changes in their order; columns that the table does not have are left out, missing ones are null."""
        changes: list[Change] = []
        encode = msgspec.msgpack.Encoder().encode
        for batch in batches:
            names = batch.schema.names
            if twice := [name for name in (*self.schema.names, DELETED) if names.count(name) > 1]:
                raise self._bad_change(f"{where} has the column {twice[0]!r} twice")
            if missing := [name for name in self.key if name not in names]:
                raise self._bad_change(f"{where} has no column {missing[0]!r}")
            # What is true of a text or a number, "false" and NaN among them, would delete rows that nobody meant.
            if DELETED in names and (kind := batch.schema.field(DELETED).type) not in (pa.bool_(), pa.null()):
                raise self._bad_change(f"{where} has {DELETED} as {kind}, not as boolean")
            try:
                keys = _encode_keys([self._lower_all(batch.column(name), self.schema.field(name)) for name in self.key])
                columns = [
                    self._lower_all(batch.column(name), self.schema.field(name))
                    if name in names
                    else [None] * len(keys)
                    for name in self.values
                ]
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeDecodeError) as error:
                raise self._bad_change(f"{where} does not fit its columns: {error}") from None
            deleted = batch.column(DELETED).to_pylist() if DELETED in names else [False] * len(keys)
            rows = zip(*columns, strict=True) if columns else ((),) * len(keys)
            for key, gone, row in zip(keys, deleted, rows, strict=True):
                if key is None:
                    raise self._bad_change(f"{where} has a row without a key")
                changes.append((key, None if gone else encode(row)))
        return changes

    def can_match(self, name: str, kind: pa.DataType) -> bool:
        """Tell whether a value of a type can be one of a column of the key."""
        return can_compare(kind, self.schema.field(name).type)

    def decode_values(self, values: Sequence[bytes | None]) -> list[Any]:
        """Decode the columns beside the key; nulls where there is no row."""
        decode, none = msgspec.msgpack.Decoder(list[Any]).decode, [None] * len(self.values)
        rows = [none if value is None else decode(value) for value in values]
        return [
            self._lift([row[number] for row in rows], self.schema.field(name))
            for number, name in enumerate(self.values)
        ]

    def decode_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """Decode whole rows, in the order of the schema's columns."""
        decode = msgspec.msgpack.Decoder(list[Any]).decode
        keys = [decode(key) for key, _ in rows]
        columns = {
            name: self._lift([key[number] for key in keys], self.schema.field(name))
            for number, name in enumerate(self.key)
        }
        columns |= dict(zip(self.values, self.decode_values([value for _, value in rows]), strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _stored_type(self, field: pa.Field) -> pa.DataType:
        kind = field.type
        if any(is_plain(kind) for is_plain in _PLAIN):
            return kind
        if pa.types.is_timestamp(kind):
            return pa.int64()
        if pa.types.is_date32(kind):
            return pa.int32()
        if pa.types.is_decimal(kind):
            return pa.string()
        raise Unsupported(
            f"the column {field.name!r} of the table {self.table!r} is a {kind}, which is not served",
            code="table.unsupported",
            hint="use numbers, decimals, booleans, text, binary, dates and timestamps; nested values as JSON text",
        )

    def _lower(self, column: Any, field: pa.Field) -> list[Any]:
        """Bring a column to the table's type, and that to what is stored; None where the type has no such value."""
        typed, stored = cast_exactly(column, field.type), self._stored_type(field)
        plain: list[Any] = (typed if stored == field.type else pc.cast(typed, stored)).to_pylist()
        return plain

    def _lower_all(self, column: Any, field: pa.Field) -> list[Any]:
        """Do the same, and refuse a value that the type does not have."""
        plain = self._lower(column, field)
        if plain.count(None) > column.null_count:
            lost = next(value for value, kept in zip(column, plain, strict=True) if value.is_valid and kept is None)
            raise pa.ArrowInvalid(f"{lost} is not a {field.type} for {field.name!r}")
        return plain

    def _lower_fitting(self, column: Any, field: pa.Field) -> list[Any]:
        """Do the same; None also where Arrow raises, which is found by halves: there are few, or none."""
        try:
            return self._lower(column, field)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            if len(column) < 2:
                return [None] * len(column)
            half = len(column) // 2
            return self._lower_fitting(column[:half], field) + self._lower_fitting(column[half:], field)

    def _lift(self, values: list[Any], field: pa.Field) -> Any:
        stored = self._stored_type(field)
        array = pa.array(values, type=stored)
        return array if stored == field.type else pc.cast(array, field.type)

    def _bad_change(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"a change of the table {self.table!r} cannot be applied: {what}",
            code="feed.invalid",
            hint=f"a change has the key ({', '.join(self.key)}) and the other columns, or {DELETED}=true; fix the "
            "feed and start again: nothing of this change was applied",
        )


def _encode_keys(parts: Sequence[list[Any]]) -> list[bytes | None]:
    encode = msgspec.msgpack.Encoder().encode
    return [None if None in key else encode(key) for key in zip(*parts, strict=True)]
