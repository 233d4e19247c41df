"""Descriptors: what a sink returns when it has staged Parquet files. They are kept in manifests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import Corrupt
from ..formats.ids import CheckpointId, Count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mode = Literal["append", "upsert", "replace"]


class StagedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Parquet file, by its path below the target."""

    path: str
    size_bytes: Count
    rows: Count


class SparkField(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str | dict[str, Any]
    nullable: bool
    metadata: dict[str, Any]


class SparkSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A frame's columns, as Spark writes them in JSON."""

    type: Literal["struct"]
    fields: list[SparkField]


class Staged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one ``stage`` left. ``schema`` is Spark's own JSON, without the columns' metadata."""

    attempt: CheckpointId
    files: list[StagedFile]
    schema: dict[str, Any]
    micro_batch: Count = 0
    mode: Mode = "append"
    key: list[str] = []


def encode(staged: Staged) -> dict[str, Any]:
    """Turn a descriptor into what JSON can hold."""
    result: dict[str, Any] = msgspec.to_builtins(staged)
    return result


def decode(descriptors: list[dict[str, Any]]) -> list[Staged]:
    """Decode the descriptors of one epoch, in the order of their micro-batches."""
    try:
        decoded = msgspec.convert(descriptors, list[Staged])
        for staged in decoded:
            msgspec.convert(staged.schema, SparkSchema)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Corrupt(f"the sink's descriptor does not decode: {error}", code="sink.damaged") from None
    for field in ("attempt", "mode", "key"):
        if any(getattr(staged, field) != getattr(decoded[0], field) for staged in decoded):
            raise Corrupt(f"an epoch has output with more than one {field}", code="sink.damaged")
    for staged in decoded:
        columns = {column["name"] for column in staged.schema["fields"]}
        if not columns.issuperset(staged.key) or (staged.mode == "upsert") != bool(staged.key):
            raise Corrupt(f"the sink's descriptor has no such key: {staged.key}", code="sink.damaged")
    return sorted(decoded, key=lambda staged: staged.micro_batch)


def format_tag(uid: str, sink: str) -> str:
    """Format what keeps the files of two sinks apart in one folder: an attempt's id is the same in both."""
    return hashlib.sha256(f"{uid}/{sink}".encode()).hexdigest()[:8]


def plain_schema(frame: DataFrame) -> dict[str, Any]:
    """Return the frame's schema in Spark's JSON, without the columns' metadata."""
    schema: dict[str, Any] = _without_metadata(json.loads(frame.schema.json()))
    return schema


def _without_metadata(node: Any) -> Any:
    """Drop what Spark notes at columns for itself, such as watermarks."""
    if isinstance(node, dict):
        return {name: {} if name == "metadata" else _without_metadata(value) for name, value in node.items()}
    return [_without_metadata(item) for item in node] if isinstance(node, list) else node
