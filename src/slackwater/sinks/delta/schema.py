"""The columns of a query against those of a Delta table; Spark and Delta share the JSON of their schemas."""

from __future__ import annotations

import json
import re
from typing import Any

from deltalake import DeltaTable, Schema

from ...errors import Unsupported
from ..descriptors import Mode

_PRIMITIVE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)"
)
_INNER = ("elementType", "keyType", "valueType")
# What a table may ask of its writers that committing finished files does not do.
_ASKS_TOO_MUCH = ("delta.constraints.", "delta.setTransactionRetentionDuration", "delta.columnMapping.mode")
_ASKS_TOO_MUCH_OF_A_COLUMN = ("delta.invariants", "delta.generationExpression", "delta.identity.")
APPEND_ONLY = "delta.appendOnly"
_IF_TRUE = {"append": (), "upsert": (APPEND_ONLY, "delta.enableChangeDataFeed"), "replace": (APPEND_ONLY,)}


def delta_schema(schema: dict[str, Any]) -> Schema:
    """Make the schema of a new table, where everything may be null, as in Spark's own tables."""
    for field in schema["fields"]:
        if alien := _alien(field["type"]):
            raise Unsupported(
                f"the column {field['name']} is {alien}, a type that this sink cannot write to Delta",
                code="sink.unsupported",
                hint="cast it in the query",
            )
    return Schema.from_json(json.dumps(_nullable(schema)))


def _alien(kind: Any) -> str | None:
    """Name the first type, at any depth, that a Delta table cannot have."""
    if isinstance(kind, str):
        return None if _PRIMITIVE.fullmatch(kind) else kind
    inner = [field["type"] for field in kind.get("fields", [])]
    inner += [kind[name] for name in _INNER if name in kind]
    if kind["type"] not in ("struct", "array", "map"):
        return str(kind["type"])
    return next(filter(None, map(_alien, inner)), None)


def _nullable(node: Any) -> Any:
    if isinstance(node, dict):
        loose = ("nullable", "containsNull", "valueContainsNull")
        return {name: True if name in loose else _nullable(value) for name, value in node.items()}
    return [_nullable(item) for item in node] if isinstance(node, list) else node


def check_fit(table: DeltaTable, url: str, schema: dict[str, Any], mode: Mode) -> None:
    """Refuse columns that do not fit the table, and a table that asks too much."""
    theirs = json.loads(table.schema().to_json())
    if asked := _asked(table, theirs, mode):
        raise Unsupported(
            f"the table {url} asks of its writers what this sink does not do: {', '.join(sorted(asked))}",
            code="sink.unsupported",
            hint="write to a table without it",
        )
    if differing := misfits(schema, theirs):
        raise Unsupported(
            f"the query's columns do not fit the table {url}: {'; '.join(differing)}",
            code="sink.schema_mismatch",
            hint="cast or rename the columns in the query, or alter the table, or write to another one",
        )


def _asked(table: DeltaTable, theirs: dict[str, Any], mode: Mode) -> list[str]:
    metadata = table.metadata()
    asked = [name for name in metadata.configuration if name.startswith(_ASKS_TOO_MUCH)]
    asked += [name for name in _IF_TRUE[mode] if metadata.configuration.get(name) == "true"]
    asked += [n for f in theirs["fields"] for n in f["metadata"] if n.startswith(_ASKS_TOO_MUCH_OF_A_COLUMN)]
    asked += [f"partition by {column}" for column in metadata.partition_columns]
    # Read without its vector, a file would bring deleted rows back.
    if mode == "upsert" and "deletionVectors" in (table.protocol().reader_features or []):
        asked.append("deletion vectors")
    return asked


def misfits(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Name the columns that the table cannot take as they are. One that we lack is null, if it may be."""
    columns = {field["name"]: field for field in theirs["fields"]}
    found: list[str] = []
    for field in ours["fields"]:
        column = columns.pop(field["name"], None)
        if column is None:
            found.append(f"{field['name']} is not in the table")
        elif not _fits(field["type"], column["type"]):
            found.append(f"{field['name']} is {_text(field['type'])}, in the table {_text(column['type'])}")
        elif field["nullable"] and not column["nullable"]:
            found.append(f"{field['name']} may be null, not so in the table")
    return found + [f"{name} is missing, and may not be null" for name, c in columns.items() if not c["nullable"]]


def _fits(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return bool(ours == theirs)
    if ours["type"] == theirs["type"] == "struct":
        return not misfits(ours, theirs)
    may_be_null = ("containsNull", "valueContainsNull")
    return (
        ours["type"] == theirs["type"]
        and all(_fits(ours.get(name), theirs.get(name)) for name in _INNER)
        and all(theirs.get(name, True) or not ours.get(name) for name in may_be_null)
    )


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)[:200]
