"""Import: a checkpoint of LaminarDB becomes the first one of a pipeline, through a driver like any other.

read and verify every byte ─ claim ─ put artifacts ─ manifest ─ APPEND ─ ``_latest`` ─ release
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..clock import this_process
from ..errors import Conflict, InvalidInput, NotFound, Unsupported
from ..formats.manifest import Origin
from ..formats.state import State
from ..laminar.content import Content, Piece, fetch, load_content, partition_path
from ..laminar.folder import Folder, open_folder, resolve
from ..parallel import Counted, OnProgress
from ..protocol.address import as_text, pipeline_name, refuse_inside_pipeline
from ..protocol.cut import Cut, CutFile, CutOperator, CutPartition
from ..protocol.directory import spool
from ..protocol.driver import make_first
from ..protocol.log import list_records
from ..protocol.pipeline import Pipeline, locate
from ..protocol.verified_reads import load_manifest
from ..settings import Settings
from ..store import Store, open_store


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What was imported, and as what. ``done`` says that it had been before."""

    pipeline: str
    origin: Origin
    epoch: int
    checkpoint_id: str
    operators: int
    size_bytes: int
    done: bool


def import_folder(
    folder: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    at: str | int = "latest",
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    folder_options: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> Imported:
    """Make a checkpoint of the LaminarDB folder the first one of the pipeline ``{store}/{name}``.

    ``at`` is an epoch of LaminarDB's, an id or the beginning of one, or ``latest``; ``folder_options`` are the folder's
    store's own. The folder is only read, all of the checkpoint and verified, before the pipeline is touched. Killed at
    any step, the same call goes on: what does not count is garbage that the pipeline's next driver sweeps, what counts
    is settled.
    """
    settings, url, options = settings or Settings(), as_text(url), storage_options or {}
    found = _recognise(open_store(as_text(folder), settings, **(folder_options or {})))
    content = load_content(found, resolve(found, str(at)))
    pipeline_name(url)
    refuse_inside_pipeline(url, settings, options)
    place = locate(url, settings, options)
    if f"{place.store.url}/".startswith(f"{found.url}/"):
        raise InvalidInput(
            f"{url} is inside the folder that is imported, which is only read",
            code="store.invalid",
            hint="name a pipeline elsewhere",
        )
    with spool("import") as folder_of_pieces:
        cut = _spool(found, content, folder_of_pieces, progress)
        return _make_first(place, cut)


def _recognise(store: Store) -> Folder:
    """Tell by its content what a folder is; only LaminarDB's are imported."""
    if {"offsets", "commits"} <= set(store.list_folders("")):
        raise Unsupported(
            f"{store.url} is the checkpointLocation of a Spark query, which is not imported yet",
            code="import.unsupported",
            hint='stop the query, then sw.adopt("DIR", store="STORE", pipeline="NAME") makes its newest micro-batch '
            "the first checkpoint of a pipeline",
        )
    if list_records(store):
        raise Unsupported(
            f"{store.url} is a pipeline of Slackwater",
            code="import.unsupported",
            hint="start it where it is: there is nothing to import",
        )
    folder = open_folder(store)
    if folder is None:
        raise NotFound(
            f"{store.url} is not a folder of LaminarDB's checkpoints",
            code="folder.not_found",
            hint="name the folder that holds checkpoints/, manifests/, or the checkpoints themselves",
        )
    return folder


def _spool(folder: Folder, content: Content, spool: Path, progress: OnProgress | None) -> Cut:
    """Bring every piece, verified, onto the local disk, so that a large state needs no memory."""
    sources: dict[str, Path] = {}
    read = Counted(progress, sum(piece.size_bytes for piece in content.pieces))
    for number, piece in enumerate(content.pieces):
        sources[piece.path] = spool / str(number)
        sources[piece.path].write_bytes(fetch(folder, piece))
        read.add(piece.size_bytes)
    return cut_of(content, lambda piece: CutFile(piece.path, sources[piece.path], piece.size_bytes))


def cut_of(content: Content, file: Callable[[Piece], CutFile]) -> Cut:
    """Say what a checkpoint of LaminarDB holds as a cut that a driver can make count."""
    operators = [
        CutOperator(
            name=name,
            operator_id=number,
            operator_name=name,
            store="default",
            partitions=[
                CutPartition(
                    partition=partition,
                    path=partition_path(name, partition),
                    version=content.origin.epoch,
                    unique_id=content.origin.checkpoint_id,
                    snapshot=[file(piece) for piece in pieces if not piece.delta],
                    deltas=[file(piece) for piece in pieces if piece.delta],
                )
                for partition, pieces in sorted(partitions.items())
            ],
        )
        for number, (name, partitions) in enumerate(sorted(content.operators.items()))
    ]
    return Cut(
        micro_batch=content.origin.epoch,
        watermark_ms=content.watermark_ms,
        sources=content.sources,
        operators=operators,
        files=[],
        origin=content.origin,
        source_watermarks=content.source_watermarks,
        table_offsets=content.table_offsets,
        table_store_path=content.table_store_path,
        sink_epochs=content.sink_epochs,
        vnode_count=content.vnode_count,
    )


def _make_first(pipeline: Pipeline, cut: Cut) -> Imported:
    """Make the cut the first checkpoint; where an earlier try has, say so, and settle what is open."""

    def refuse_other(state: State | None) -> None:
        """Refuse a pipeline that has a history of its own; one whose head is this very import has none."""
        head = state.head if state else None
        if state is not None and head is not None and load_manifest(pipeline.store, head).origin != cut.origin:
            raise Conflict(
                f"the pipeline {pipeline.name!r} has checkpoints already, up to epoch {state.epoch}",
                code="pipeline.not_new",
                hint="import into a pipeline of another name",
            )

    refuse_other(state := pipeline.log.read())
    settled = state is not None and state.settled_epoch == state.epoch > 0 and state.release_append_id is not None
    made = not settled and make_first(pipeline, this_process("import"), cut, refuse_other)
    return _imported(pipeline.name, pipeline.state, cut, done=not made)


def _imported(pipeline: str, state: State, cut: Cut, *, done: bool) -> Imported:
    head = state.live[-1]
    assert cut.origin is not None
    return Imported(
        pipeline=pipeline,
        origin=cut.origin,
        epoch=head.epoch,
        checkpoint_id=head.checkpoint_id,
        operators=len(cut.operators),
        size_bytes=sum(p.size_bytes for op in cut.operators for p in op.partitions),
        done=done,
    )
