"""The columns of a query against those of a Delta table; Spark and Delta share the JSON of their schemas."""

from __future__ import annotations

import json
import re
from typing import Any

from deltalake import Schema

from ...errors import Unsupported

_PRIMITIVE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)"
)
_INNER = ("elementType", "keyType", "valueType")


def delta_schema(schema: dict[str, Any]) -> Schema:
    """Make the schema of a new table, where everything may be null, as in Spark's own tables."""
    for field in schema["fields"]:
        if alien := _alien(field["type"]):
            raise Unsupported(
                f"the column {field['name']} is {alien}, a type that this sink cannot write to Delta",
                code="sink.type_unsupported",
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
