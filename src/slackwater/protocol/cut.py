"""A cut: one consistent point of a stream, as files in a working directory or bytes in memory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..formats.manifest import Origin, SourcePosition


class CutFile(msgspec.Struct, frozen=True):
    """One file of a cut: its path in the working directory, and its bytes or where they are now."""

    path: str
    source: Path | bytes
    size_bytes: int


class CutPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's state: a snapshot's files, then the deltas after it. ``path`` is the folder that holds them."""

    partition: int
    path: str
    version: int
    unique_id: str
    snapshot: list[CutFile]
    deltas: list[CutFile]

    @property
    def files(self) -> list[CutFile]:
        return [*self.snapshot, *self.deltas]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class CutOperator(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    operator_id: int
    operator_name: str
    store: str
    partitions: list[CutPartition]


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent point of a stream. State files never change under their names; ``files`` may."""

    micro_batch: int
    watermark_ms: int
    sources: dict[str, SourcePosition]
    operators: list[CutOperator]
    files: list[CutFile]
    # What only a checkpoint that is imported has; Spark says nothing of it.
    origin: Origin | None = None
    source_watermarks: dict[str, str] = {}
    table_offsets: dict[str, SourcePosition] = {}
    table_store_path: str | None = None
    sink_epochs: dict[str, int] = {}
    vnode_count: int | None = None
