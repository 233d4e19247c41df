"""Export: a checkpoint of a program or of a keyed state, written as LaminarDB reads it.

read all of it, every byte verified ─ put snapshots ─ manifest ─ ``_latest``
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from ..errors import Corrupt, InvalidInput, Unsupported
from ..failpoints import reach
from ..formats.manifest import Kind, Manifest, kind_of
from ..keyed.capture import STATE, folder_of
from ..keyed.metadata import OUTSIDE_FILE
from ..keyed.restore_check import check_restored
from ..keyed.state import KeyedState
from ..laminar import lcb1, manifest_v2
from ..laminar.layout import CheckpointPaths, object_key
from ..laminar.manifest_v2 import CheckpointManifestV2, OperatorSnapshotEntry, PartitionSnapshotEntry, SourceOffsetEntry
from ..parallel import Counted, OnProgress, in_parallel
from ..program import read_checkpoint
from ..protocol.address import as_text, refuse_inside_pipeline
from ..protocol.directory import spool, write_files
from ..protocol.kinds import whose
from ..protocol.pipeline import Pipeline
from ..protocol.verified_reads import load_manifest
from ..rocks.database import require_library
from ..settings import MIB, Settings
from ..store import Buffer, Store, Stream, open_store
from .pipelines import read_pipeline, refuse_own_folders
from .refs import LATEST_REF, resolve

# LaminarDB's documents have a slash after the id, its code has none, and it is the code that reads.
_PATHS = CheckpointPaths(form="defective")
# The operator that has the bytes which a program has given beside a keyed state.
_OUTSIDE = "outside"
_REFUSED: Mapping[Kind, str] = {
    "spark": "their state is in files of Spark's state store, which LaminarDB cannot read",
    "imported": "the folder that they were imported from has them",
}


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported. LaminarDB knows it by the same epoch and id."""

    pipeline: str
    format: str
    epoch: int
    checkpoint_id: str
    operators: int
    partitions: int
    size_bytes: int


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition: its bytes, or the local file that has them."""

    operator: str
    partition: int
    data: bytes | Path
    size_bytes: int
    sha256: str


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a checkpoint holds. An operator may have no partitions."""

    operators: list[str]
    watermark_ms: int | None
    snapshots: list[_Snapshot]


def export(
    url: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    at: str | int = LATEST_REF,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    folder_options: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> Exported:
    """Write a checkpoint of the pipeline ``{store}/{name}``, a program's or a keyed state's, as LaminarDB reads it.

    ``at`` is a REF; ``folder_options`` are those of the folder's own store. The folder must be new or empty, or hold
    what an interrupted export of the same checkpoint has left, which is then completed. The pipeline is only read.
    """
    settings = settings or Settings()
    pipeline = read_pipeline(url, settings, storage_options)
    entry = resolve(pipeline.state, str(at))
    with pipeline.log.unless_retired(entry):
        manifest = load_manifest(pipeline.store, entry)
    _refuse_kind(manifest)
    target = open_store(as_text(folder), settings, **(folder_options or {}))
    _refuse_taken(target, pipeline, manifest)
    refuse_inside_pipeline(as_text(folder), settings, folder_options)
    with spool("export") as folder_of_state:
        with pipeline.log.unless_retired(entry):
            read = _read_keyed if kind_of(manifest) == "keyed" else _read_program
            state = read(pipeline.store, manifest, folder_of_state, settings)
        _write(target, manifest, state, settings, progress)
    return Exported(
        pipeline=manifest.pipeline,
        format="laminar-v2",
        epoch=manifest.epoch,
        checkpoint_id=manifest.checkpoint_id,
        operators=len(state.operators),
        partitions=len(state.snapshots),
        size_bytes=sum(snapshot.size_bytes for snapshot in state.snapshots),
    )


def _refuse_kind(manifest: Manifest) -> None:
    why = _REFUSED.get(kind_of(manifest))
    if why is not None:
        raise Unsupported(
            f"the checkpoints of {manifest.pipeline!r} are {whose(kind_of(manifest))}, and cannot be exported: {why}",
            code="export.unsupported",
            hint="slackwater restore URL --to DIR writes the files of one",
        )


def _refuse_taken(target: Store, pipeline: Pipeline, manifest: Manifest) -> None:
    """Refuse a folder that has anything but what an export of this checkpoint writes."""
    refuse_own_folders(pipeline, target.url)
    document = _PATHS.manifest(manifest.checkpoint_id)
    below = document.removesuffix("manifest.json") + "operators/"
    for key in (listed.key for listed in target.list("")):
        if key not in (_PATHS.latest_pointer, document) and not key.startswith(below):
            raise InvalidInput(
                f"{target.url} is not empty: it has {key}",
                code="folder.unusable",
                hint="name a folder that does not exist yet: a folder takes one checkpoint",
            )


# --- read


def _read_program(store: Store, manifest: Manifest, _spool: Path, settings: Settings) -> _State:
    held, _ = read_checkpoint(store, manifest, settings)
    return _State(
        operators=held.operators,
        watermark_ms=manifest.watermark_ms or None,
        snapshots=[_of_bytes(name, number, cast(bytes, kept.data)) for (name, number), kept in held.kept.items()],
    )


def _read_keyed(store: Store, manifest: Manifest, spool: Path, settings: Settings) -> _State:
    """Restore the database, and write down each virtual node's keys and values, in the order of the keys."""
    require_library("the export of a keyed state")
    restored = spool / "restored"
    write_files(store, manifest, restored, settings, durable=False, check=check_restored)
    state = KeyedState(
        restored / folder_of(STATE), vnode_count=cast(int, manifest.vnode_count), read_only=True, cached=False
    )
    try:
        files = [spool / str(node) for node in range(state.description.vnode_count)]
        found = sum(_write_frames(file, state.scan(node)) for node, file in enumerate(files))
    finally:
        state.close()
    if found != state.key_count:
        raise Corrupt(
            f"the keyed state of checkpoint {manifest.checkpoint_id} has {found} keys, not {state.key_count}",
            code="keyed.damaged",
            hint="slackwater verify URL --read-data",
        )
    snapshots = [_of_file(STATE, node, file) for node, file in enumerate(files)]
    if (restored / OUTSIDE_FILE).is_file():
        snapshots.append(_of_file(_OUTSIDE, 0, restored / OUTSIDE_FILE))
    operators = list(dict.fromkeys(snapshot.operator for snapshot in snapshots))
    return _State(operators=operators, watermark_ms=state.watermark_ms, snapshots=snapshots)


def _write_frames(path: Path, rows: Iterator[tuple[bytes, bytes]]) -> int:
    """Write keys and values as the entries of LaminarDB's batches are written, and count them."""
    count = 0
    with open(path, "wb") as file:
        for key, value in rows:
            file.write(lcb1.frame(key, value))
            count += 1
    return count


def _of_bytes(operator: str, number: int, data: bytes) -> _Snapshot:
    sha256 = hashlib.sha256(data).hexdigest()
    return _Snapshot(operator=operator, partition=number, data=data, size_bytes=len(data), sha256=sha256)


def _of_file(operator: str, number: int, path: Path) -> _Snapshot:
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size_bytes = path.stat().st_size
    return _Snapshot(operator=operator, partition=number, data=path, size_bytes=size_bytes, sha256=sha256)


# --- write


def _write(target: Store, manifest: Manifest, state: _State, settings: Settings, progress: OnProgress | None) -> None:
    """Put the snapshots, then what makes a checkpoint of them. Each is whole or not there, so it may be done again."""
    paths = [_PATHS.snapshot(manifest.checkpoint_id, s.operator, s.partition) for s in state.snapshots]
    keys = [object_key(path) for path in paths]
    _refuse_keys(keys)
    document = _document(manifest, state, paths)
    written = Counted(progress, document.total_size_bytes)

    def put(key: str, snapshot: _Snapshot) -> None:
        data = snapshot.data
        target.put(key, data if isinstance(data, bytes) else _OnDisk(data, snapshot.size_bytes))
        reach("export.snapshot.after")
        written.add(snapshot.size_bytes)

    in_parallel([partial(put, *each) for each in zip(keys, state.snapshots, strict=True)], settings.concurrency)
    target.put(_PATHS.manifest(manifest.checkpoint_id), manifest_v2.encode(document))
    reach("export.manifest.after")
    target.remove_unfinished("")  # of an export that was killed
    target.put(_PATHS.latest_pointer, manifest.checkpoint_id.encode())


def _document(manifest: Manifest, state: _State, paths: list[str]) -> CheckpointManifestV2:
    partitions: dict[str, list[PartitionSnapshotEntry]] = {name: [] for name in state.operators}
    for snapshot, path in zip(state.snapshots, paths, strict=True):
        partitions[snapshot.operator].append(
            PartitionSnapshotEntry(
                partition_id=snapshot.partition,
                is_delta=False,
                path=path,
                size_bytes=snapshot.size_bytes,
                sha256=snapshot.sha256,
            )
        )
    return CheckpointManifestV2(
        version=manifest_v2.VERSION,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        timestamp_ms=manifest.created_at_ms,
        operators={
            name: OperatorSnapshotEntry(partitions=entries, total_bytes=sum(entry.size_bytes for entry in entries))
            for name, entries in partitions.items()
        },
        source_offsets={
            name: SourceOffsetEntry(source_type=source.source_type, offsets=source.offsets, epoch=manifest.epoch)
            for name, source in manifest.source_offsets.items()
        },
        watermark=state.watermark_ms,
        total_size_bytes=sum(snapshot.size_bytes for snapshot in state.snapshots),
    )


def _refuse_keys(keys: list[str]) -> None:
    """Refuse names of operators that meet in one path: LaminarDB joins them as they are (A10)."""
    folders = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}
    wrong = [key for key, times in Counter(keys).items() if times > 1 or key in folders]
    if wrong:
        raise Unsupported(
            f"the names of two operators lead to one path of LaminarDB's, {wrong[0]}",
            code="export.unsupported",
            hint="rename one of them in the program, and let it checkpoint once more",
        )


class _OnDisk(Stream):
    """A local file, read in parts."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path, self.size_bytes = path, size_bytes

    def __iter__(self) -> Iterator[Buffer]:
        with open(self._path, "rb") as file:
            while part := file.read(MIB):
                yield part
