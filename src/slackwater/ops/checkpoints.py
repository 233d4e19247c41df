"""Checkpoints of a pipeline: list them, show what one holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..formats.keys import checkpoint_folder
from ..formats.manifest import Manifest, Origin, SourcePosition, all_files
from ..formats.query import Query
from ..formats.state import LiveCheckpoint, State
from ..parallel import in_parallel
from ..protocol.pipeline import Pipeline
from ..protocol.state import labels_of
from ..protocol.verified_reads import DAMAGE, load_manifest
from ..settings import Settings
from .pipelines import Problem


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One live checkpoint. With a problem, its manifest could not be read.

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


class ObjectNeed(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a checkpoint needs; ``own`` ones it wrote itself, the others an older checkpoint did."""

    key: str
    kind: str
    size_bytes: int
    own: bool


class CheckpointDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds, from its manifest."""

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


def checkpoints(pipeline: Pipeline, settings: Settings | None = None) -> list[CheckpointSummary]:
    """List the live checkpoints, oldest first, each with what its manifest says."""
    settings, state = settings or Settings(), pipeline.state

    def describe(entry: LiveCheckpoint) -> CheckpointSummary:
        try:
            return _describe(state, entry, load_manifest(pipeline.store, entry))
        except DAMAGE as error:
            return _describe(state, entry, None, Problem(error.code, error.message))

    jobs = [lambda entry=entry: describe(entry) for entry in state.live]
    return in_parallel(jobs, settings.concurrency)


def _describe(
    state: State, entry: LiveCheckpoint, manifest: Manifest | None, problem: Problem | None = None
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


def show(pipeline: Pipeline, entry: LiveCheckpoint) -> CheckpointDetail:
    """Tell what one checkpoint holds."""
    manifest = load_manifest(pipeline.store, entry)
    own = checkpoint_folder(entry.checkpoint_id)
    inline = [file for file in all_files(manifest) if file.inline is not None]
    return CheckpointDetail(
        pipeline=manifest.pipeline,
        uid=manifest.uid,
        checkpoint=_describe(pipeline.state, entry, manifest),
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
    )


def _positions(found: Mapping[str, SourcePosition]) -> dict[str, dict[str, Any]]:
    return {
        name: {"source_type": position.source_type, "offsets": position.offsets} for name, position in found.items()
    }
