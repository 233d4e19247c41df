"""What a checkpoint of LaminarDB holds, in our terms, and its bytes, verified."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from ..errors import Corrupt, Unsupported
from ..formats.keys import check_path, format_name
from ..formats.manifest import Origin, SourcePosition
from . import manifest_v1, manifest_v2, serde
from .findings import Findings, refuse_fatal
from .folder import Folder, LaminarCheckpoint, artifact_key, read_sidecar
from .manifest_v1 import CheckpointManifest, ConnectorCheckpoint
from .manifest_v2 import CheckpointManifestV2, PartitionSnapshotEntry, SourceOffsetEntry

# A delta needs all that came before it; LaminarDB has no bound for that (A4).
_MAX_CHAIN = 1_000


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition, or one link of its chain: the bytes, or (None) in an object of the folder.

    ``path`` is its name among the files of a checkpoint of ours; ``checkpoint`` is LaminarDB's id of the one that wrote
    it.
    """

    operator: str
    partition: int
    delta: bool
    path: str
    size_bytes: int
    sha256: str
    checkpoint: str
    data: bytes | memoryview | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of LaminarDB. Its pieces are in order: by operator, by partition, each from its snapshot on.

    An operator may have none.
    """

    origin: Origin
    watermark_ms: int
    sources: dict[str, SourcePosition]
    source_watermarks: dict[str, str]
    table_offsets: dict[str, SourcePosition]
    table_store_path: str | None
    sink_epochs: dict[str, int]
    vnode_count: int | None
    operator_names: list[str]
    pieces: list[Piece]

    @property
    def operators(self) -> dict[str, dict[int, list[Piece]]]:
        """The pieces by operator and partition."""
        found: dict[str, dict[int, list[Piece]]] = {name: {} for name in self.operator_names}
        for piece in self.pieces:
            found[piece.operator].setdefault(piece.partition, []).append(piece)
        return found


def load_content(folder: Folder, checkpoint: LaminarCheckpoint) -> Content:
    """Say in our terms what a checkpoint holds; refuse one with a fatal finding."""
    refuse_fatal([*folder.findings, *checkpoint.findings], f"checkpoint {checkpoint.checkpoint_id}")
    document = checkpoint.document
    if isinstance(document, CheckpointManifest):
        sidecar, findings = read_sidecar(folder, checkpoint), Findings()
        manifest_v1.check_sidecar(document, sidecar, findings)
        refuse_fatal(findings, f"checkpoint {checkpoint.checkpoint_id}")
        return content_v1(document, manifest_sha256=checkpoint.manifest_sha256, sidecar=sidecar)
    if isinstance(document, CheckpointManifestV2):
        return content_v2(_chain_of(folder, checkpoint), manifest_sha256=checkpoint.manifest_sha256)
    raise Unsupported(
        "an incremental checkpoint of LaminarDB has no digest of its state, so it is looked at and not restored",
        code="laminar.unsupported",
        hint="import a checkpoint with a manifest.json",
    )


def fetch(folder: Folder, piece: Piece) -> bytes | memoryview:
    """Get the bytes of one piece, verified."""
    data = _get(folder, piece) if piece.data is None else piece.data
    if len(data) != piece.size_bytes or hashlib.sha256(data).hexdigest() != piece.sha256:
        raise Corrupt(
            f"partition {piece.partition} of {piece.operator!r} in checkpoint {piece.checkpoint} is not what its "
            "manifest describes",
            code="laminar.damaged",
            hint="slackwater verify FOLDER --read-data names every damaged object; restore it from a copy",
        )
    return data


def _get(folder: Folder, piece: Piece) -> bytes:
    writer = _version_2(folder)[piece.checkpoint]
    entry = _entry(writer.document, piece.operator, piece.partition)
    key = entry and artifact_key(folder.sizes, writer.place, piece.checkpoint, piece.operator, entry)
    return folder.store.get(key, max_bytes=piece.size_bytes) if key else b""


def partition_path(operator: str, partition: int) -> str:
    return f"operators/{format_name(operator)}/{partition}"


def _piece_path(operator: str, partition: int, checkpoint: str, *, delta: bool) -> str:
    """Name a piece among the files of a checkpoint; the checkpoint's own id keeps the links of a chain apart."""
    return f"{partition_path(operator, partition)}/{checkpoint}.{'delta' if delta else 'snap'}"


# --- version 1


def content_v1(manifest: CheckpointManifest, *, manifest_sha256: str, sidecar: bytes) -> Content:
    """Say in our terms what a manifest without fatal findings holds; ``sidecar`` is verified, and may be empty."""
    return Content(
        origin=Origin(
            format="laminar-v1",
            checkpoint_id=str(manifest.checkpoint_id),
            epoch=manifest.epoch,
            manifest_sha256=manifest_sha256,
            pipeline_hash=None if manifest.pipeline_hash is None else str(manifest.pipeline_hash),
        ),
        watermark_ms=manifest.watermark or 0,
        sources={name: _position_v1(manifest.source_offsets[name]) for name in manifest.source_names},
        source_watermarks={name: str(value) for name, value in manifest.source_watermarks.items()},
        table_offsets={name: _position_v1(connector) for name, connector in manifest.table_offsets.items()},
        table_store_path=_relative(manifest.table_store_checkpoint_path),
        sink_epochs=manifest.sink_epochs,
        vnode_count=manifest.vnode_count,
        operator_names=sorted(manifest.operator_states),
        pieces=list(_pieces_v1(manifest, sidecar)),
    )


def _pieces_v1(manifest: CheckpointManifest, sidecar: bytes) -> Iterator[Piece]:
    for name, state in sorted(manifest.operator_states.items()):
        place = state.place()
        data = place if isinstance(place, bytes) else memoryview(sidecar)[place.offset : place.offset + place.length]
        yield Piece(
            operator=name,
            partition=0,
            delta=False,
            path=_piece_path(name, 0, f"{manifest.checkpoint_id:06d}", delta=False),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            checkpoint=str(manifest.checkpoint_id),
            data=data,
        )


def _position_v1(connector: ConnectorCheckpoint) -> SourcePosition:
    return SourcePosition(
        source_type=manifest_v1.source_type(connector),
        offsets=connector.offsets,
        verbatim=serde.encode_line(connector, manifest_v1.CONNECTOR),
        metadata=connector.metadata,
    )


def _relative(path: str | None) -> str | None:
    """An absolute path of another machine says nothing here (C14)."""
    try:
        return None if path is None else check_path(path)
    except Corrupt:
        return None


# --- version 2


def content_v2(chain: Sequence[CheckpointManifestV2], *, manifest_sha256: str) -> Content:
    """Say in our terms what a manifest without fatal findings holds.

    ``chain`` is the manifest, then its parent, and so on, as far as its deltas lead back.
    """
    manifest = chain[0]
    return Content(
        origin=Origin(
            format="laminar-v2",
            checkpoint_id=manifest.checkpoint_id,
            epoch=manifest.epoch,
            manifest_sha256=manifest_sha256,
            pipeline_hash=None,
        ),
        watermark_ms=manifest.watermark or 0,
        sources={name: _position_v2(source) for name, source in manifest.source_offsets.items()},
        source_watermarks={},
        table_offsets={},
        table_store_path=None,
        sink_epochs={},
        vnode_count=None,
        operator_names=sorted(manifest.operators),
        pieces=[
            piece
            for name, operator in sorted(manifest.operators.items())
            for number in sorted(partition.partition_id for partition in operator.partitions)
            for piece in _pieces_v2(chain, name, number)
        ],
    )


def _pieces_v2(chain: Sequence[CheckpointManifestV2], operator: str, number: int) -> list[Piece]:
    """Collect a partition's snapshot and the deltas after it, oldest first."""
    found: list[Piece] = []
    for manifest in chain:
        entry = _entry(manifest, operator, number)
        if entry is None:
            break
        found.append(
            Piece(
                operator=operator,
                partition=number,
                delta=entry.is_delta,
                path=_piece_path(operator, number, manifest.checkpoint_id, delta=entry.is_delta),
                size_bytes=entry.size_bytes,
                sha256=(entry.sha256 or "").lower(),
                checkpoint=manifest.checkpoint_id,
            )
        )
        if not entry.is_delta:
            return found[::-1]
    raise Corrupt(
        f"the deltas of partition {number} of {operator!r} do not lead back to a snapshot",
        code="laminar.damaged",
        hint="import a checkpoint that is whole; slackwater show FOLDER lists them",
    )


def _chain_of(folder: Folder, checkpoint: LaminarCheckpoint) -> list[CheckpointManifestV2]:
    """Follow the parents as far as deltas lead back; each must be there, older, and without a fatal finding."""
    by_id = _version_2(folder)
    chain: list[CheckpointManifestV2] = []
    link: LaminarCheckpoint = checkpoint
    while isinstance(link.document, CheckpointManifestV2):
        chain.append(link.document)
        if not needs_parent(link.document):
            break
        parent = by_id.get(link.parent_id or "")
        if parent is None or (parent.epoch or 0) >= (link.epoch or 0) or len(chain) == _MAX_CHAIN:
            raise Corrupt(
                f"the deltas of checkpoint {checkpoint.checkpoint_id} need an older one, {link.parent_id}, which is "
                "not there",
                code="laminar.damaged",
                hint="import a checkpoint that is whole; slackwater show FOLDER lists them",
            )
        refuse_fatal(parent.findings, f"checkpoint {parent.checkpoint_id}, which deltas need,")
        link = parent
    return chain


def needs_parent(manifest: CheckpointManifestV2) -> bool:
    return any(p.is_delta for operator in manifest.operators.values() for p in operator.partitions)


def _version_2(folder: Folder) -> dict[str, LaminarCheckpoint]:
    return {c.checkpoint_id: c for c in folder.checkpoints if c.kind == "v2"}


def _entry(document: object, operator: str, number: int) -> PartitionSnapshotEntry | None:
    if not isinstance(document, CheckpointManifestV2) or operator not in document.operators:
        return None
    return next((p for p in document.operators[operator].partitions if p.partition_id == number), None)


def _position_v2(source: SourceOffsetEntry) -> SourcePosition:
    verbatim = serde.encode_line(source, manifest_v2.SOURCE)
    return SourcePosition(source_type=source.source_type, offsets=source.offsets, verbatim=verbatim, metadata={})
