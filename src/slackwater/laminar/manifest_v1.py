"""Manifest V1 of LaminarDB (``checkpoint_manifest.rs``): offsets, sinks, and state inline or in ``state.bin``."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final, Literal

import msgspec

from ..errors import Corrupt
from ..keyed.vnodes import VNODE_COUNT
from . import serde
from .findings import (
    Findings,
    check_epoch,
    check_names,
    check_offsets,
    check_positive,
    check_time,
    check_watermark,
    unprotected,
)
from .serde import FLAG, I64, TEXT, U16, U32, U64, Many, Maybe, Pairs, Shape

VERSION: Final = 1
MAX_SIDECAR_BYTES = 1024 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_KIND_KEYS = ("connector", "connector_type", "source_type", "type")


class SinkCommitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``Pending``, ``Committed``, or ``Failed`` with LaminarDB's raw error text."""

    status: Literal["Pending", "Committed", "Failed"]
    error: str | None = None


class ConnectorCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a connector stands, in pairs of text."""

    offsets: dict[str, str]
    epoch: int
    metadata: dict[str, str] = {}

    @classmethod
    def new(cls, epoch: int) -> ConnectorCheckpoint:
        return cls(offsets={}, epoch=epoch)

    @classmethod
    def with_offsets(cls, epoch: int, offsets: dict[str, str]) -> ConnectorCheckpoint:
        return cls(offsets=offsets, epoch=epoch)


class Range(msgspec.Struct, frozen=True):
    """A part of ``state.bin``."""

    offset: int
    length: int


class OperatorCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's state: base64 here, or a range of ``state.bin``."""

    state_b64: str | None = None
    external: bool = False
    external_offset: int = 0
    external_length: int = 0

    @classmethod
    def inline(cls, data: bytes) -> OperatorCheckpoint:
        return cls(state_b64=base64.b64encode(data).decode())

    @classmethod
    def in_sidecar(cls, offset: int, length: int) -> OperatorCheckpoint:
        """LaminarDB's ``external``, which is a field's name already."""
        return cls(external=True, external_offset=offset, external_length=length)

    @classmethod
    def from_bytes(cls, data: bytes, threshold: int, current_offset: int) -> tuple[OperatorCheckpoint, bytes | None]:
        """Inline up to the threshold; above it, a range and the bytes for the sidecar."""
        if len(data) <= threshold:
            return cls.inline(data), None
        return cls.in_sidecar(current_offset, len(data)), data

    def place(self) -> bytes | Range:
        """Tell where the state is: the bytes themselves, or a range of the sidecar; anything else is an error.

        LaminarDB's ``decode_inline`` gives None for damaged base64 and for external state alike (C3).
        """
        if self.external:
            if self.state_b64 is not None:
                raise _misplaced("it is inline and external at once")
            return Range(self.external_offset, self.external_length)
        if self.state_b64 is None or self.external_offset or self.external_length:
            raise _misplaced("it is neither inline nor external")
        try:
            data = base64.b64decode(self.state_b64, validate=True)
        except ValueError:
            raise _misplaced("its base64 is damaged") from None
        if base64.b64encode(data).decode() != self.state_b64:
            raise _misplaced("its base64 is not canonical")
        return data


def _misplaced(what: str) -> Corrupt:
    return Corrupt(f"the operator's state cannot be found: {what}", code="laminar.damaged")


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A point-in-time snapshot of all pipeline state, field by field as in LaminarDB."""

    version: int
    checkpoint_id: int
    epoch: int
    timestamp_ms: int
    source_offsets: dict[str, ConnectorCheckpoint] = {}
    sink_epochs: dict[str, int] = {}
    sink_commit_statuses: dict[str, SinkCommitStatus] = {}
    table_offsets: dict[str, ConnectorCheckpoint] = {}
    operator_states: dict[str, OperatorCheckpoint] = {}
    table_store_checkpoint_path: str | None = None
    watermark: int | None = None
    source_watermarks: dict[str, int] = {}
    source_names: list[str] = []
    sink_names: list[str] = []
    pipeline_hash: int | None = None
    vnode_count: int = 0
    state_checksum: str | None = None

    @classmethod
    def new(cls, checkpoint_id: int, epoch: int, *, timestamp_ms: int) -> CheckpointManifest:
        """Make an empty one; the clock is the caller's."""
        return cls(
            version=VERSION,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            vnode_count=VNODE_COUNT,
        )


class _Status:
    """An enum as serde tags it: a text, or a map of one variant to what it holds."""

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        if value in ("Pending", "Committed"):
            return SinkCommitStatus(status=value)
        if isinstance(value, dict) and list(value) == ["Failed"]:
            return SinkCommitStatus(status="Failed", error=TEXT.read(value["Failed"], where, findings))
        serde.malformed(f"{where} is not the status of a sink")

    def write(self, value: Any, where: str) -> Any:
        return value.status if value.status != "Failed" else {"Failed": TEXT.write(value.error or "", where)}


CONNECTOR = Shape(ConnectorCheckpoint, offsets=Pairs(TEXT), epoch=U64, metadata=Pairs(TEXT))
_OPERATOR = Shape(OperatorCheckpoint, state_b64=Maybe(TEXT), external=FLAG, external_offset=U64, external_length=U64)
_MANIFEST = Shape(
    CheckpointManifest,
    version=U32,
    checkpoint_id=U64,
    epoch=U64,
    timestamp_ms=U64,
    source_offsets=Pairs(CONNECTOR),
    sink_epochs=Pairs(U64),
    sink_commit_statuses=Pairs(_Status()),
    table_offsets=Pairs(CONNECTOR),
    operator_states=Pairs(_OPERATOR),
    table_store_checkpoint_path=Maybe(TEXT),
    watermark=Maybe(I64),
    source_watermarks=Pairs(I64),
    source_names=Many(TEXT),
    sink_names=Many(TEXT),
    pipeline_hash=Maybe(U64),
    vnode_count=U16,
    state_checksum=Maybe(TEXT),
)


def decode(data: bytes) -> tuple[CheckpointManifest, Findings]:
    """Decode a manifest, with all that its own text says is wrong with it."""
    findings = Findings()
    manifest = serde.decode(data, _MANIFEST, findings, version=VERSION)
    validate(manifest, findings)
    return manifest, findings


def encode(manifest: CheckpointManifest) -> bytes:
    """Encode to the bytes that LaminarDB's ``serde_json::to_string_pretty`` gives for maps in this order."""
    return serde.encode(manifest, _MANIFEST)


def validate(manifest: CheckpointManifest, findings: Findings) -> None:
    """Find what LaminarDB's ``validate`` finds and what it passes over, each with its severity."""
    unprotected(findings)
    check_positive(manifest.checkpoint_id, "checkpoint_id", findings)
    check_positive(manifest.epoch, "epoch", findings)
    check_time(manifest.timestamp_ms, "timestamp_ms", findings)
    check_watermark(manifest.watermark, findings)
    # The number is LaminarDB's; our keyed states have taken it over.
    if manifest.vnode_count != VNODE_COUNT:
        findings.unsupported(
            f"state is spread over {manifest.vnode_count or 'an unknown number of'} virtual partitions, not "
            f"{VNODE_COUNT}: keys cannot be found",
            where="vnode_count",
        )
    _validate_sources(manifest, findings)
    _validate_sinks(manifest, findings)
    _validate_states(manifest, findings)
    if manifest.table_store_checkpoint_path is not None:
        findings.unsupported(
            "the reference tables are outside the checkpoint, and nothing vouches for them",
            where="table_store_checkpoint_path",
        )


def _validate_sources(manifest: CheckpointManifest, findings: Findings) -> None:
    _check_sorted(manifest.source_names, "source_names", findings)
    check_names(manifest.source_names, "source_names", findings)
    check_names(manifest.table_offsets, "table_offsets", findings)
    names = set(manifest.source_names)
    for name in sorted(names - manifest.source_offsets.keys()):
        findings.inconsistent(
            f"the source {name!r} has no offsets: it would begin at its default", where="source_offsets"
        )
    for field, named in (
        ("source_offsets", manifest.source_offsets.keys()),
        ("source_watermarks", manifest.source_watermarks.keys()),
    ):
        for name in sorted(named - names):
            findings.inconsistent(f"{name!r} is not in source_names", where=field)
    for field, offsets in (("source_offsets", manifest.source_offsets), ("table_offsets", manifest.table_offsets)):
        for name, connector in offsets.items():
            where = f"{field}.{name}"
            check_epoch(connector.epoch, manifest.epoch, where, findings)
            check_offsets(source_type(connector), connector.offsets, where, findings)


def _validate_sinks(manifest: CheckpointManifest, findings: Findings) -> None:
    _check_sorted(manifest.sink_names, "sink_names", findings)
    epochs, statuses = manifest.sink_epochs, manifest.sink_commit_statuses
    for name in sorted((epochs.keys() | statuses.keys()) - set(manifest.sink_names)):
        findings.inconsistent(f"{name!r} is not in sink_names", where="sink_names")
    for name in sorted(epochs.keys() ^ statuses.keys()):
        has, lacks = ("an epoch", "commit status") if name in epochs else ("a commit status", "epoch")
        findings.inconsistent(f"the sink {name!r} has {has} and no {lacks}", where="sink_commit_statuses")
    for name, epoch in epochs.items():
        if epoch > manifest.epoch:
            findings.inconsistent(
                f"the sink has committed epoch {epoch}, after epoch {manifest.epoch}", where=f"sink_epochs.{name}"
            )
    for name, status in statuses.items():
        if status.status != "Committed":
            # LaminarDB's error text may hold credentials and has no bound: it is never repeated (C14).
            findings.not_committed(
                f"the sink's commit is {status.status}: it may lack rows that the offsets have passed",
                where=f"sink_commit_statuses.{name}",
            )


def _check_sorted(names: list[str], where: str, findings: Findings) -> None:
    if len(set(names)) != len(names):
        findings.inconsistent("a name comes twice", where=where)
    elif names != sorted(names):
        findings.warn("the names are not sorted, as they should be", where=where)


def _validate_states(manifest: CheckpointManifest, findings: Findings) -> None:
    check_names(manifest.operator_states, "operator_states", findings)
    ranges: list[tuple[int, int, str]] = []
    for name, state in manifest.operator_states.items():
        try:
            place = state.place()
        except Corrupt as error:
            findings.damaged(error.message, where=f"operator_states.{name}")
            continue
        if isinstance(place, Range):
            ranges.append((place.offset, place.offset + place.length, name))
    end = 0
    for start, stop, name in sorted(ranges):
        if start < end:
            findings.damaged("its range of state.bin overlaps another operator's", where=f"operator_states.{name}")
        elif start > end:
            findings.warn(
                f"{start - end} bytes of state.bin before it belong to nobody", where=f"operator_states.{name}"
            )
        end = max(end, stop)
    if end > MAX_SIDECAR_BYTES:
        findings.damaged(
            f"the ranges end at byte {end}; a state.bin of more than {MAX_SIDECAR_BYTES} bytes is not read",
            where="operator_states",
        )
    if ranges and (manifest.state_checksum is None or not _SHA256.fullmatch(manifest.state_checksum.lower())):
        findings.unverifiable(
            "there is no SHA-256 of state.bin, so its bytes cannot be verified", where="state_checksum"
        )


def has_sidecar(manifest: CheckpointManifest) -> bool:
    """Tell whether some state is in ``state.bin``."""
    return any(state.external for state in manifest.operator_states.values())


def check_sidecar_size(manifest: CheckpointManifest, size_bytes: int | None, findings: Findings) -> None:
    """Compare the ranges with the size of ``state.bin``; None when it is not there."""
    end = max(
        (s.external_offset + s.external_length for s in manifest.operator_states.values() if s.external), default=0
    )
    if size_bytes is None and has_sidecar(manifest):
        findings.damaged("state.bin is not there", where="state.bin")
    elif size_bytes is not None and size_bytes < end:
        findings.damaged(f"state.bin has {size_bytes} bytes, and the ranges end at {end}", where="state.bin")
    elif size_bytes is not None and size_bytes > end:
        findings.warn(f"{size_bytes - end} bytes at the end of state.bin belong to nobody", where="state.bin")


def check_sidecar(manifest: CheckpointManifest, sidecar: bytes, findings: Findings) -> None:
    """Compare the digest of the whole ``state.bin``: LaminarDB has no other (C5)."""
    if manifest.state_checksum is None:
        return
    if hashlib.sha256(sidecar).hexdigest() != manifest.state_checksum.lower():
        findings.damaged("its SHA-256 is not the one that the manifest names", where="state.bin")


def source_type(connector: ConnectorCheckpoint) -> str:
    """LaminarDB keeps the connector's type in its metadata, under no fixed key."""
    found = (connector.metadata.get(key, "") for key in _KIND_KEYS)
    return next((kind for kind in found if 0 < len(kind) <= 200), "unknown")
