"""List the checkpoints of a pipeline, from the newest record alone; show what one holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from ..formats.keys import checkpoint_folder
from ..formats.manifest import Manifest, Origin, SourcePosition, all_files
from ..formats.query import Query
from ..formats.state import LiveCheckpoint, State
from ..parallel import in_parallel
from ..protocol.state import LeftOut, labels_of
from ..protocol.verified_reads import DAMAGE, load_manifest
from ..settings import Settings
from .pipelines import Problem, read_pipeline
from .refs import LATEST_REF, passed_over, resolve


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One live checkpoint.

    ``micro_batch`` and ``size_bytes`` come from its manifest; ``problem`` says why that could not be read.
    ``settled`` says that every sink's commit is on record; the record that says so is the next one. An undone one was
    passed over by a rollback. One with ``rollback_to`` is a rollback, or a ``repair``.
    """

    epoch: int
    checkpoint_id: str
    parent_id: str | None
    created_at_ms: int
    labels: list[str]
    head: bool
    settled: bool
    undone: bool
    rollback_to: int | None
    repair: bool
    micro_batch: int | None = None
    size_bytes: int | None = None
    problem: Problem | None = None


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """The live checkpoints of a pipeline, oldest first."""

    pipeline: str
    url: str
    uid: str
    epoch: int
    generation: int
    checkpoints: list[CheckpointSummary]


class ObjectNeed(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a checkpoint needs; ``own`` ones it wrote itself, the others an older checkpoint did."""

    key: str
    kind: str
    size_bytes: int
    own: bool


class CheckpointDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds, from its manifest; and which ones were passed over on the way to it, newest first."""

    pipeline: str
    uid: str
    checkpoint: CheckpointSummary
    origin: Origin | None
    pipeline_hash: str | None
    query: Query | None
    watermark_ms: int
    sources: dict[str, dict[str, Any]]
    # Where what feeds each table stands.
    tables: dict[str, dict[str, Any]]
    operators: dict[str, dict[str, Any]]
    sinks: dict[str, dict[str, Any]]
    objects: list[ObjectNeed]
    inline_files: int
    inline_bytes: int
    manifest_bytes: int
    passed_over: list[LeftOut]


def list_checkpoints(
    url: str | os.PathLike[str],
    *,
    long: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> CheckpointList:
    """List the live checkpoints of a pipeline. Only its newest record is read.

    ``long`` reads each checkpoint's manifest, too: then its micro-batch, its size and what is wrong with it are told.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> [(found.epoch, found.head) for found in list_checkpoints(f"{store}/orders").checkpoints]
    [(1, False), (2, False), (3, True)]
    >>> show(f"{store}/orders", at=2).sources
    {'rows': {'source_type': 'program', 'offsets': {'row': '1'}}}
    """
    pipeline = read_pipeline(url, settings, storage_options)
    state = pipeline.state

    def describe(entry: LiveCheckpoint) -> CheckpointSummary:
        try:
            return _describe(state, entry, load_manifest(pipeline.store, entry))
        except DAMAGE as error:
            return _describe(state, entry, problem=Problem(error.code, error.message))

    jobs = [lambda entry=entry: describe(entry) for entry in state.live]
    return CheckpointList(
        pipeline=pipeline.name,
        url=pipeline.url,
        uid=state.uid,
        epoch=state.epoch,
        generation=state.generation,
        checkpoints=in_parallel(jobs, pipeline.settings.concurrency)
        if long
        else [_describe(state, entry) for entry in state.live],
    )


def _describe(
    state: State, entry: LiveCheckpoint, manifest: Manifest | None = None, problem: Problem | None = None
) -> CheckpointSummary:
    return CheckpointSummary(
        epoch=entry.epoch,
        checkpoint_id=entry.checkpoint_id,
        parent_id=entry.parent_id,
        created_at_ms=entry.created_at_ms,
        labels=labels_of(state, [entry.epoch]),
        head=entry == state.head,
        settled=entry.epoch <= state.settled_epoch,
        undone=entry.undone,
        rollback_to=entry.rollback_to,
        repair=entry.repair,
        micro_batch=manifest.micro_batch if manifest else None,
        size_bytes=manifest.total_size_bytes if manifest else None,
        problem=problem,
    )


def show(
    url: str | os.PathLike[str],
    at: str | int = LATEST_REF,
    *,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> CheckpointDetail:
    """Tell what the checkpoint holds that ``at`` names: its sources, its state, its sinks, the objects it needs."""
    pipeline, ref = read_pipeline(url, settings, storage_options), str(at)
    state = pipeline.state
    entry = resolve(state, ref)
    manifest = load_manifest(pipeline.store, entry)
    own = checkpoint_folder(entry.checkpoint_id)
    inline = [file for file in all_files(manifest) if file.inline is not None]
    return CheckpointDetail(
        pipeline=manifest.pipeline,
        uid=manifest.uid,
        checkpoint=_describe(state, entry, manifest),
        origin=manifest.origin,
        pipeline_hash=manifest.pipeline_hash,
        query=manifest.query,
        watermark_ms=manifest.watermark_ms,
        sources=_positions(manifest.source_offsets),
        tables=_positions(manifest.table_offsets),
        operators={
            name: {
                "operator_name": operator.operator_name,
                "store": operator.store,
                "size_bytes": operator.size_bytes,
                "partitions": [
                    {"partition": p.partition, "kind": p.kind, "version": p.version, "size_bytes": p.size_bytes}
                    for p in operator.partitions
                ],
            }
            for name, operator in manifest.operators.items()
        },
        sinks={name: msgspec.to_builtins(output) for name, output in manifest.sinks.items()},
        objects=[
            ObjectNeed(key=stored.key, kind=stored.kind, size_bytes=stored.size_bytes, own=stored.key.startswith(own))
            for stored in manifest.objects
        ],
        inline_files=len(inline),
        inline_bytes=sum(file.size_bytes for file in inline),
        manifest_bytes=entry.manifest_size_bytes,
        passed_over=passed_over(state, ref, entry),
    )


def _positions(found: Mapping[str, SourcePosition]) -> dict[str, dict[str, Any]]:
    return {
        name: {"source_type": position.source_type, "offsets": position.offsets} for name, position in found.items()
    }
