"""What is known of one checkpoint of a keyed pipeline: the fields of LaminarDB's metadata, with real values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..errors import Corrupt, SlackwaterError
from ..formats.keys import checkpoint_folder
from ..formats.manifest import KEYED_FILE, Manifest, decode_inline, references
from ..formats.state import LiveCheckpoint
from ..protocol.artifacts import read_batch, read_range
from ..store import Store
from .capture import STATE, operator_of
from .documents import Figures, decode

# The bytes that a program has given beside it.
OUTSIDE_FILE = "state.bin"


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. With a ``problem``, its manifest could not be read, and only what the log says of it is here.

    ``timestamp`` is in seconds since 1970; ``wal_position`` the number of changes that the log has taken;
    ``is_incremental`` says that it refers to tables of older checkpoints, which are kept for as long as it is.
    """

    id: str
    epoch: int
    timestamp: int
    wal_position: int = 0
    source_offsets: dict[str, dict[str, str]] = {}
    watermark: int | None = None
    size_bytes: int = 0
    key_count: int = 0
    is_incremental: bool = False
    parent_id: str | None = None
    sst_files: list[str] = []
    has_state: bool = False
    undone: bool = False
    problem: str | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()


def describe(store: Store, entry: LiveCheckpoint, manifest: Manifest) -> CheckpointMetadata:
    """Tell what a checkpoint is, by its manifest."""
    figures = decode(read_file(store, manifest, KEYED_FILE), Figures)
    files = [file for part in manifest.operators[operator_of(STATE)].partitions for file in part.files]
    return draw_up(
        entry,
        figures,
        offsets={source: dict(position.offsets) for source, position in manifest.source_offsets.items()},
        size_bytes=manifest.total_size_bytes,
        objects=references(manifest),
        tables=[file.path for file in files],
        has_state=any(file.path == OUTSIDE_FILE for file in manifest.files),
    )


def draw_up(
    entry: LiveCheckpoint,
    figures: Figures,
    *,
    offsets: dict[str, dict[str, str]],
    size_bytes: int,
    objects: Iterable[str],
    tables: Iterable[str],
    has_state: bool,
) -> CheckpointMetadata:
    own = checkpoint_folder(entry.checkpoint_id)
    return CheckpointMetadata(
        **_of_log(entry),
        wal_position=figures.wal_position,
        source_offsets=offsets,
        watermark=figures.watermark_ms,
        size_bytes=size_bytes,
        key_count=figures.key_count,
        is_incremental=any(not key.startswith(own) for key in objects),
        sst_files=sorted(path.rpartition("/")[2] for path in tables),
        has_state=has_state,
    )


def describe_damaged(entry: LiveCheckpoint, damage: SlackwaterError) -> CheckpointMetadata:
    """Tell what the log knows of a checkpoint whose manifest cannot be read: it is listed, and can be forgotten."""
    return CheckpointMetadata(**_of_log(entry), problem=str(damage))


def _of_log(entry: LiveCheckpoint) -> dict[str, Any]:
    return {
        "id": entry.checkpoint_id,
        "epoch": entry.epoch,
        "timestamp": entry.created_at_ms // 1000,
        "parent_id": entry.parent_id,
        "undone": entry.undone,
    }


def read_file(store: Store, manifest: Manifest, path: str) -> bytes:
    """Read one of the files beside the state, verified."""
    file = next((file for file in manifest.files if file.path == path), None)
    if file is not None:
        if file.object is None:
            return decode_inline(file)
        stored = manifest.objects[file.object]
        if file.offset is not None:
            return b"".join(read_range(store, stored, file))
        for name, data, sha256 in read_batch(store, stored):
            if (name, sha256) == (path, file.sha256):
                return data
    raise Corrupt(
        f"checkpoint {manifest.checkpoint_id} does not hold {path}",
        code="object.damaged",
        hint="slackwater verify URL --read-data",
    )
