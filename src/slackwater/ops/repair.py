"""Repair, for a damaged newest record: go on from the record before it. Sinks follow at the next start.

look back ─ choose and verify the target ─ plan ─ copy its objects ─ manifest ─ APPEND ─ ``_latest``

``repair_target.py`` chooses the target. ``docs/design/010`` says why it copies, and why unlabelled checkpoints leave.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import cast

import msgspec

from ..clock import this_process
from ..errors import Code, Corrupt
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Repair
from ..formats.keys import CHECKPOINTS, LATEST, ArtifactKey, artifact_key, batch_key, manifest_key, parse_key
from ..formats.manifest import Manifest, Object, RolledBack, SinkOutput, references
from ..formats.record import Record
from ..formats.state import MAX_LIVE, LiveCheckpoint
from ..parallel import in_parallel
from ..protocol.address import as_text
from ..protocol.artifacts import get_artifacts, get_parts
from ..protocol.log import Log
from ..protocol.log_damage import Lost
from ..protocol.pipeline import Pipeline, locate
from ..protocol.rollback import check_keep, keep_acknowledged
from ..protocol.sinks import CommittingSink, Sink
from ..protocol.state import LeftOut, epochs_after, labels_of
from ..protocol.verified_reads import load_if_sound
from ..settings import Settings
from ..sinks.registry import open_sink
from ..store import Store, Stream
from .pipelines import read_pipeline
from .repair_target import (
    Target,
    choose_target,
    find_bound,
    find_undoing,
    impossible,
    manifests_later,
    newest_epoch,
    outputs_of,
    position_of,
)
from .rollback import OpenSink, Plan, check_refused, listed, plan_sink, plan_sources


class RepairPlan(Plan, frozen=True, kw_only=True):
    """What a repair will do.

    ``unsettled``: sinks may lack the target's own output, and get it first. ``damaged_labels`` are savepoints of which
    objects are missing; they stay, for these may come back from a copy.
    """

    damaged_records: list[int]
    may_have_been: list[str]
    from_number: int
    why: str
    unsettled: bool
    retired: list[LeftOut]
    labels: list[str]
    damaged_labels: list[str]


class PreparedRepair(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what to carry it out with: the new checkpoint's manifest, but for its id and its objects' keys."""

    plan: RepairPlan
    lost: Lost
    document: Manifest


def repair(
    url: str | os.PathLike[str],
    *,
    keep: Iterable[str] = (),
    keep_older: bool = False,
    sinks: Mapping[str, Sink] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RepairPlan | None:
    """Go on from the record before a damaged newest one; the next start brings the sinks there. A driver is fenced.

    ``keep`` names sinks whose rows shall stay; ``sinks`` by name are those that need options to be opened.
    ``keep_older`` says that nobody else is at work on the pipeline: then older checkpoints stay, too, beside
    savepoints. Refused, with nothing changed, where a sink would refuse. None: there was nothing to repair, or somebody
    else was first. A ``dry_run`` only plans.
    """

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        return (sinks or {}).get(name) or open_sink(output.kind, output.address)

    pipeline = locate(as_text(url), settings, storage_options)
    prepared = prepare(pipeline, open_one, keep=listed(keep), keep_older=keep_older)
    if prepared is None:
        read_pipeline(url, settings, storage_options)  # which refuses one that is not there
        return None
    if dry_run:
        return prepared.plan
    check_refused(prepared.plan)
    return prepared.plan if carry_out(pipeline, prepared, driver=this_process("repair")) else None


def prepare(
    pipeline: Pipeline,
    open_unbound: OpenSink,
    *,
    keep: Collection[str] = (),
    keep_older: bool = False,
) -> PreparedRepair | None:
    """Plan a repair; None when the newest record is sound. Nothing is changed.

    ``open_unbound`` gives sinks that are not bound yet. With ``keep_older`` the user vouches that nobody else is at
    work on the pipeline: then checkpoints without a label stay as well.
    """
    store, lost = pipeline.store, _find_lost(pipeline.log)
    if lost is None:
        return None
    if lost.before is None:
        raise impossible("no sound record was found before it", lost)
    state = lost.state
    if state.head is None:
        raise impossible(f"record {lost.before.number} before it has no checkpoint to go on from", lost)
    undoing = find_undoing(store, lost)
    bound, why = find_bound(lost, can_undo=bool(undoing))
    forced = undoing.keys() - set(keep)
    target = choose_target(pipeline, lost, bound=bound, why=why, forced=forced)
    outputs = outputs_of(store, lost, target.content)
    name_in_manifest = target.content.pipeline

    def open_bound(name: str, output: SinkOutput) -> CommittingSink | None:
        sink = open_unbound(name, output)
        if sink is not None:
            sink.bind(name_in_manifest, name, state.uid)
        return sink

    newest = newest_epoch(open_bound, outputs)
    written = max([state.epoch, *(manifest.epoch for manifest in lost.manifests)])
    oldest = min(position_of(state, entry) for entry in state.branch)
    if undoing and newest > written and bound > oldest:
        why = f"a sink is at epoch {newest}, of which nothing else is known: it may have undone anything before that"
        target = choose_target(pipeline, lost, bound=oldest, why=why, forced=forced)
        outputs = outputs_of(store, lost, target.content)
        # An older target may bring sinks that the pipeline has had before.
        newest = max(newest, newest_epoch(open_bound, outputs))
    keep = sorted({*keep, *target.keep})
    check_keep(keep, undoing | outputs)
    # Every damaged record may have had an epoch of its own, whatever else is known of it.
    epoch = max(state.epoch + len(lost.numbers), written, newest) + 1
    document = msgspec.structs.replace(
        target.content,
        epoch=epoch,
        parent_id=state.head.checkpoint_id,
        sink_names=list(outputs),
        sinks=outputs,
        source_offsets=keep_acknowledged(target.content, manifests_later(store, lost, target.content)),
        rollback=RolledBack(to_epoch=target.to_epoch, to_id=target.to_id, keep=keep, unsettled=target.unsettled),
    )
    return PreparedRepair(
        plan=_plan(store, lost, target, document=document, open_sink=open_bound, keep_older=keep_older),
        lost=lost,
        document=document,
    )


def carry_out(pipeline: Pipeline, prepared: PreparedRepair, *, driver: str) -> bool:
    """Carry out a repair; False when somebody else was first, and the newest record is sound, or damaged, anew."""
    document, plan, store, settings = prepared.document, prepared.plan, pipeline.store, pipeline.settings
    checkpoint_id = pipeline.clock.checkpoint_id()
    # The damaged record may have retired the target, and whoever wrote it may delete those bytes at any time.
    objects = _copy(store, document.objects, checkpoint_id, settings)
    document = msgspec.structs.replace(
        document, checkpoint_id=checkpoint_id, created_at_ms=pipeline.clock.now_ms(), objects=objects
    )
    data = manifests.encode(document)
    reach("repair.manifest.before")
    store.put(manifest_key(checkpoint_id), data)
    get_artifacts(store, document, settings, lambda path, data: None)
    reach("repair.manifest.after")
    counts = pipeline.log.repair(
        prepared.lost,
        Repair(
            **manifests.vouch(document, data),
            driver=driver,
            from_number=plan.from_number,
            to_epoch=plan.to_epoch,
            retire=[retired.epoch for retired in plan.retired],
        ),
    )
    reach("repair.append.after")
    if counts:
        store.put(LATEST, checkpoint_id.encode())
    return counts


def _find_lost(log: Log) -> Lost | None:
    try:
        log.read()
    except Corrupt as damage:
        if damage.code != Code.LOG_CORRUPT:
            raise
        lost = log.look_back(int(damage.details["number"]))
        return lost if lost.seen else None
    return None


def _plan(
    store: Store,
    lost: Lost,
    target: Target,
    *,
    document: Manifest,
    open_sink: OpenSink,
    keep_older: bool,
) -> RepairPlan:
    state, keep = lost.state, document.rollback.keep if document.rollback else []
    undone = [epoch for epoch in epochs_after(state, target.to_epoch) if epoch != target.entry.epoch]
    newest = max(lost.manifests, key=lambda manifest: manifest.epoch, default=target.content)
    there = {listed.key for listed in store.list(CHECKPOINTS)}
    labelled = {savepoint.epoch for savepoint in state.labels}
    broken = {entry.epoch for entry in state.live if not _is_whole(store, entry, there)}
    leaving = [
        LeftOut(
            epoch=entry.epoch,
            reason="bytes of it are missing"
            if entry.epoch in broken
            else "a damaged record may have retired it, and its bytes may be deleted at any time",
        )
        for entry in state.live
        if entry.epoch not in labelled and (entry.epoch in broken or not keep_older)
    ]
    return RepairPlan(
        damaged_records=lost.numbers,
        may_have_been=lost.guesses,
        from_number=cast(Record, lost.before).number,
        head_epoch=state.epoch,
        to_epoch=target.to_epoch,
        to_id=target.to_id,
        to_created_at_ms=target.entry.created_at_ms,
        why=target.why,
        unsettled=target.unsettled,
        epoch=document.epoch,
        passed_over=target.passed_over,
        undone_epochs=undone,
        undone_labels=labels_of(state, undone),
        retired=leaving[: MAX_LIVE - len(state.retired)],
        labels=[savepoint.label for savepoint in state.labels],
        damaged_labels=labels_of(state, broken),
        sinks=[
            plan_sink(name, output, open_sink, target.to_epoch, name in keep) for name, output in document.sinks.items()
        ],
        sources=plan_sources(newest, document),
    )


def _is_whole(store: Store, entry: LiveCheckpoint, there: set[str]) -> bool:
    """Tell whether nothing of a checkpoint is missing; what is there and damaged may come back from a copy."""
    if manifest_key(entry.checkpoint_id) not in there:
        return False
    manifest = load_if_sound(store, entry)
    return manifest is None or references(manifest) <= there


class _Bytes(Stream):
    """A stored object on its way to another name."""

    def __init__(self, store: Store, stored: Object) -> None:
        self._store, self._stored, self.size_bytes = store, stored, stored.size_bytes

    def __iter__(self) -> Iterator[bytes]:
        yield from get_parts(self._store, self._stored.key, 0, self.size_bytes, to_end=True)


def _copy(store: Store, objects: list[Object], checkpoint_id: str, settings: Settings) -> list[Object]:
    """Copy objects into a checkpoint's own folder; whoever reads them then sees whether they are right."""

    def copy(number: int, stored: Object) -> Object:
        data, key = _Bytes(store, stored), parse_key(stored.key)
        copied = (
            artifact_key(checkpoint_id, f"copied-{number}", key.partition, key.kind)
            if isinstance(key, ArtifactKey)
            else batch_key(checkpoint_id, number)
        )
        store.put(copied, data)
        return msgspec.structs.replace(stored, key=copied)

    return in_parallel([partial(copy, number, stored) for number, stored in enumerate(objects)], settings.concurrency)
