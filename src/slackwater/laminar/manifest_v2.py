"""Manifest V2 of LaminarDB (``layout.rs``): a UUIDv7, operators with their partitions, each an object of its own."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from . import serde
from .findings import (
    Findings,
    check_count,
    check_epoch,
    check_names,
    check_offsets,
    check_positive,
    check_time,
    check_watermark,
    unprotected,
)
from .layout import artifact, below_checkpoint
from .serde import FLAG, I64, TEXT, U32, U64, Many, Maybe, Pairs, Shape

VERSION: Final = 2

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_UUID7 = re.compile(r".{14}7.{4}[89ab].*")


class PartitionSnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    partition_id: int
    is_delta: bool
    path: str
    size_bytes: int
    sha256: str | None = None


class OperatorSnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[PartitionSnapshotEntry]
    total_bytes: int = 0


class SourceOffsetEntry(msgspec.Struct, frozen=True, kw_only=True):
    source_type: str
    offsets: dict[str, str]
    epoch: int


class CheckpointManifestV2(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a distributed checkpoint, field by field as in LaminarDB."""

    version: int
    checkpoint_id: str
    epoch: int
    timestamp_ms: int
    operators: dict[str, OperatorSnapshotEntry] = {}
    source_offsets: dict[str, SourceOffsetEntry] = {}
    parent_id: str | None = None
    watermark: int | None = None
    total_size_bytes: int = 0


class _Id:
    """``CheckpointId``: a UUID, which serde writes hyphenated and in lower case."""

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        if not isinstance(value, str) or not _UUID.fullmatch(value):
            serde.malformed(f"{where} is not a UUID")
        if not _UUID7.fullmatch(value.lower()):
            findings.warn("it is not a UUIDv7, so ids do not even tell roughly when", where=where)
        return value.lower()

    def write(self, value: Any, where: str) -> Any:
        return TEXT.write(value, where)


_PARTITION = Shape(
    PartitionSnapshotEntry, partition_id=U32, is_delta=FLAG, path=TEXT, size_bytes=U64, sha256=Maybe(TEXT)
)
_OPERATOR = Shape(OperatorSnapshotEntry, partitions=Many(_PARTITION), total_bytes=U64)
SOURCE = Shape(SourceOffsetEntry, source_type=TEXT, offsets=Pairs(TEXT), epoch=U64)
_MANIFEST = Shape(
    CheckpointManifestV2,
    version=U32,
    checkpoint_id=_Id(),
    epoch=U64,
    timestamp_ms=U64,
    operators=Pairs(_OPERATOR),
    source_offsets=Pairs(SOURCE),
    parent_id=Maybe(_Id()),
    watermark=Maybe(I64),
    total_size_bytes=U64,
)


def decode(data: bytes) -> tuple[CheckpointManifestV2, Findings]:
    """Decode a manifest, with all that its own text says is wrong with it."""
    findings = Findings()
    manifest = serde.decode(data, _MANIFEST, findings, version=VERSION)
    validate(manifest, findings)
    return manifest, findings


def encode(manifest: CheckpointManifestV2) -> bytes:
    """Encode to the bytes that LaminarDB's ``serde_json::to_vec_pretty`` gives for maps in this order."""
    return serde.encode(manifest, _MANIFEST)


def validate(manifest: CheckpointManifestV2, findings: Findings) -> None:
    """Find what LaminarDB never looks for: it has no ``validate`` at all."""
    unprotected(findings)
    check_positive(manifest.epoch, "epoch", findings)
    check_time(manifest.timestamp_ms, "timestamp_ms", findings)
    check_watermark(manifest.watermark, findings)
    findings.note("it says nothing about sinks, tables and the query: what they have is not known", where="manifest")
    check_names(manifest.source_offsets, "source_offsets", findings)
    for name, source in manifest.source_offsets.items():
        where = f"source_offsets.{name}"
        check_epoch(source.epoch, manifest.epoch, where, findings)
        check_offsets(source.source_type, source.offsets, where, findings)
        check_names([source.source_type], f"{where}.source_type", findings)
    check_names(manifest.operators, "operators", findings)
    for name, operator in manifest.operators.items():
        _validate_operator(manifest, name, operator, findings)
    total = sum(p.size_bytes for operator in manifest.operators.values() for p in operator.partitions)
    _check_sum(total, manifest.total_size_bytes, "total_size_bytes", findings)
    if manifest.parent_id == manifest.checkpoint_id:
        findings.inconsistent("the checkpoint is its own parent", where="parent_id")


def _validate_operator(
    manifest: CheckpointManifestV2, name: str, operator: OperatorSnapshotEntry, findings: Findings
) -> None:
    where = f"operators.{name}"
    numbers = [partition.partition_id for partition in operator.partitions]
    if len(set(numbers)) != len(numbers):
        findings.inconsistent("a partition comes twice", where=where)
    elif sorted(numbers) != list(range(len(numbers))):
        # LaminarDB's own uploader loses entries above its concurrency (B1): what is not named would restore empty.
        findings.inconsistent("a partition is missing between those that are named", where=where)
    _check_sum(sum(p.size_bytes for p in operator.partitions), operator.total_bytes, f"{where}.total_bytes", findings)
    for partition in operator.partitions:
        place = f"{where}.partition-{partition.partition_id}"
        check_count(partition.size_bytes, place, findings)
        if partition.sha256 is None:
            findings.unverifiable("it has no SHA-256, so its bytes cannot be verified", where=place)
        elif not _SHA256.fullmatch(partition.sha256):
            findings.damaged("its SHA-256 is not 64 hex digits", where=place)
        expected = artifact(name, partition.partition_id, delta=partition.is_delta)
        if below_checkpoint(partition.path, manifest.checkpoint_id) != expected:
            findings.damaged(f"its path does not lead to {expected}", where=place)
        if partition.is_delta and manifest.parent_id is None:
            findings.inconsistent("it is a delta, and the checkpoint has no parent", where=place)
        elif partition.is_delta:
            findings.warn(
                "it is a delta and does not name its base; the parent's partition is taken for it", where=place
            )


def _check_sum(total: int, said: int, where: str, findings: Findings) -> None:
    if total == said:
        return
    if said == 0:  # LaminarDB's constructor leaves it so, and nothing computes it.
        findings.warn(f"it is 0 and was never computed; the sizes add up to {total}", where=where)
    else:
        findings.damaged(f"the sizes add up to {total}, not {said}", where=where)
