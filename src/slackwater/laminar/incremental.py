"""An incremental checkpoint of LaminarDB (``incremental/manager.rs``): ``metadata.json``, and perhaps ``state.bin``."""

from __future__ import annotations

import msgspec

from . import serde
from .findings import Findings, check_count, check_positive, check_time, check_watermark, unprotected
from .serde import FLAG, I64, TEXT, U64, Many, Maybe, Pairs, Shape


class IncrementalCheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of an incremental checkpoint, field by field as in LaminarDB; ``timestamp`` is in seconds."""

    id: int
    epoch: int
    timestamp: int
    wal_position: int
    source_offsets: dict[str, int]
    watermark: int | None = None
    size_bytes: int
    key_count: int
    is_incremental: bool
    parent_id: int | None = None
    sst_files: list[str]


_METADATA = Shape(
    IncrementalCheckpointMetadata,
    id=U64,
    epoch=U64,
    timestamp=U64,
    wal_position=U64,
    source_offsets=Pairs(U64),
    watermark=Maybe(I64),
    size_bytes=U64,
    key_count=U64,
    is_incremental=FLAG,
    parent_id=Maybe(U64),
    sst_files=Many(TEXT),
)


def decode(data: bytes) -> tuple[IncrementalCheckpointMetadata, Findings]:
    """Decode the metadata, with all that its own text says is wrong with it."""
    findings = Findings()
    metadata = serde.decode(data, _METADATA, findings)
    validate(metadata, findings)
    return metadata, findings


def encode(metadata: IncrementalCheckpointMetadata) -> bytes:
    """Encode to the bytes that LaminarDB's ``to_json`` gives for maps in this order."""
    return serde.encode(metadata, _METADATA)


def validate(metadata: IncrementalCheckpointMetadata, findings: Findings) -> None:
    unprotected(findings)
    check_positive(metadata.id, "id", findings)
    check_count(metadata.epoch, "epoch", findings)
    check_time(metadata.timestamp, "timestamp", findings)
    check_watermark(metadata.watermark, findings)
    # LaminarDB has no digest of state.bin anywhere (E6), and keeps nothing but metadata in most of its folders (E1).
    findings.unverifiable(
        "nothing says what the bytes of state.bin must be, so they cannot be verified", where="state.bin"
    )
    if metadata.is_incremental and metadata.parent_id is None:
        findings.inconsistent("it is incremental and names no parent", where="parent_id")
    if metadata.parent_id is not None and metadata.parent_id >= metadata.id:
        findings.inconsistent("its parent is not older than itself", where="parent_id")


def check_state_size(metadata: IncrementalCheckpointMetadata, size_bytes: int | None, findings: Findings) -> None:
    """Compare the size of ``state.bin``, None when it is not there, with what the metadata says."""
    if size_bytes is None and metadata.size_bytes:
        findings.damaged("state.bin is not there", where="state.bin")
    elif size_bytes is None:
        findings.warn("there is no state.bin: the checkpoint holds offsets at the most", where="state.bin")
    elif size_bytes != metadata.size_bytes:
        findings.damaged(f"state.bin has {size_bytes} bytes, not {metadata.size_bytes}", where="state.bin")
