"""Repair: when the newest records are damaged, go on from the one before them. Sinks follow at the next start.

look back ─ choose and verify the target ─ plan ─ copy its objects ─ manifest ─ APPEND ─ ``_latest``

``docs/design/010`` says why it copies, and why unlabelled checkpoints leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import partial

import msgspec

from .artifacts import get_parts, in_parallel
from .checkpointer import CommittingSink
from .errors import Corrupt, SlackwaterError
from .failpoints import reach
from .formats import manifest as manifests
from .formats.changes import Repair
from .formats.layout import (
    CHECKPOINTS,
    LATEST,
    ArtifactKey,
    artifact_key,
    batch_key,
    manifest_key,
    parse_key,
    record_key,
)
from .formats.manifest import Manifest, Object, RolledBack, SinkOutput, references
from .formats.states import MAX_LIVE, LiveCheckpoint, State
from .log import Log
from .lost import Lost
from .recovery import DAMAGE, restore
from .rewind import (
    OpenSink,
    SinkPlan,
    SourcePlan,
    check_keep,
    epochs_after,
    load_if_sound,
    plan_sink,
    sinks_since,
    verify_restorable,
)
from .settings import Settings
from .store import Store, Stream
from .world import World


class Reason(msgspec.Struct, frozen=True):
    """Why a checkpoint is passed over, or leaves."""

    epoch: int
    why: str


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair will do.

    ``unsettled``: sinks may lack the target's own output, and get it first. ``damaged_labels`` are savepoints of which
    objects are missing; they stay, for these may come back from a copy.
    """

    damaged_records: list[int]
    may_have_been: list[str]
    from_number: int
    head_epoch: int
    to_epoch: int
    to_id: str
    to_created_at_ms: int
    why: str
    unsettled: bool
    epoch: int
    passed_over: list[Reason]
    undone_epochs: list[int]
    undone_labels: list[str]
    retired: list[Reason]
    labels: list[str]
    damaged_labels: list[str]
    sinks: list[SinkPlan]
    sources: list[SourcePlan]

    @property
    def refused(self) -> list[SinkPlan]:
        return [sink for sink in self.sinks if sink.action == "refuse"]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what to carry it out with: the new checkpoint's manifest, but for its id and its objects' keys."""

    plan: RepairPlan
    lost: Lost
    document: Manifest


def prepare(
    store: Store,
    log: Log,
    settings: Settings,
    open_sink: OpenSink,
    *,
    keep: Collection[str] = (),
    keep_older: bool = False,
) -> Prepared | None:
    """Plan a repair; None when the newest record is sound. Nothing is changed.

    ``open_sink`` gives sinks that are not bound yet. With ``keep_older`` the user vouches that nobody else is at work
    on the pipeline: then checkpoints without a label stay as well.
    """
    lost = _find_lost(log)
    if lost is None:
        return None
    if lost.before is None:
        raise _impossible("no sound record was found before it", lost)
    state = lost.before.state
    if state.head is None:
        raise _impossible(f"record {lost.before.number} before it has no checkpoint to go on from", lost)
    bound, why = _bound(state, state.head, lost)
    target = _choose(store, state, settings, bound, lost)
    outputs = _outputs(store, state, lost, target.content)
    sinks = _open_sinks(open_sink, outputs, target.content.pipeline, state.uid)
    newest = max((sink.epoch for sink in sinks.values()), default=0)
    written = max([state.epoch, *(manifest.epoch for manifest in lost.manifests)])
    if newest > written and bound > (oldest := min(_position(state, entry) for entry in state.branch)):
        why = f"a sink is at epoch {newest}, of which nothing else is known: it may have undone anything before that"
        target = _choose(store, state, settings, oldest, lost)
        outputs = _outputs(store, state, lost, target.content)
    keep = sorted({*keep, *target.keep})
    check_keep(keep, outputs)
    # Every damaged record may have had an epoch of its own, whatever else is known of it.
    epoch = max(state.epoch + len(lost.numbers), written, newest) + 1
    document = msgspec.structs.replace(
        target.content,
        epoch=epoch,
        parent_id=state.head.checkpoint_id,
        sink_names=list(outputs),
        sinks=outputs,
        rollback=RolledBack(to_epoch=target.to_epoch, to_id=target.to_id, keep=keep, unsettled=target.unsettled),
    )
    return Prepared(
        plan=_plan(store, state, lost, target, document=document, sinks=sinks, why=why, keep_older=keep_older),
        lost=lost,
        document=document,
    )


def repair(store: Store, log: Log, world: World, settings: Settings, prepared: Prepared, *, driver: str) -> bool:
    """Carry out a repair; False when somebody else was first, and the newest record is sound, or damaged, anew."""
    document, plan = prepared.document, prepared.plan
    checkpoint_id = world.checkpoint_id()
    # The damaged record may have retired the target, and whoever wrote it may delete those bytes at any time.
    objects = _copy(store, document.objects, checkpoint_id, settings)
    document = msgspec.structs.replace(
        document, checkpoint_id=checkpoint_id, created_at_ms=world.now_ms(), objects=objects
    )
    data = manifests.encode(document)
    reach("repair.manifest.before")
    store.put(manifest_key(checkpoint_id), data)
    restore(store, document, settings, lambda path, data: None)
    reach("repair.manifest.after")
    counts = log.repair(
        prepared.lost,
        Repair(
            driver=driver,
            from_number=plan.from_number,
            epoch=document.epoch,
            checkpoint_id=checkpoint_id,
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            manifest_size_bytes=len(data),
            parent_id=document.parent_id,
            to_epoch=plan.to_epoch,
            retire=[reason.epoch for reason in plan.retired],
        ),
    )
    reach("repair.append.after")
    if counts:
        store.put(LATEST, checkpoint_id.encode())
    return counts


# --- the target


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    """What to go on from, and what sinks have to undo to: a rollback that they have not followed is done again."""

    entry: LiveCheckpoint
    content: Manifest
    to_epoch: int
    to_id: str
    unsettled: bool
    keep: list[str]
    passed_over: list[Reason]


def _find_lost(log: Log) -> Lost | None:
    try:
        log.read()
    except Corrupt as damage:
        if damage.code != "log.corrupt":
            raise
        lost = log.look_back(int(damage.details["number"]))
        return lost if lost.seen else None
    return None


def _bound(state: State, head: LiveCheckpoint, lost: Lost) -> tuple[int, str]:
    """Find the epoch that sinks must be taken back to at least, and say why.

    A damaged record may have been a rollback that sinks have followed already. To undo more than that is harmless,
    because what is undone is read again; to undo less would lose rows.
    """
    known = {head.checkpoint_id, *(manifest.checkpoint_id for manifest in lost.manifests)}
    oldest = min(_position(state, entry) for entry in state.branch)
    if lost.unreadable:
        return oldest, f"{lost.unreadable[0]} cannot be read, and may have been a rollback to any epoch"
    if any(manifest.parent_id not in known for manifest in lost.manifests):
        return oldest, "a manifest is missing between those that are there: it may have been a rollback to any epoch"
    newest = _position(state, head)
    rollbacks = [manifest.rollback.to_epoch for manifest in lost.manifests if manifest.rollback]
    if rollbacks and min(rollbacks) < newest:
        return min(
            rollbacks
        ), f"a rollback to epoch {min(rollbacks)} may have been lost, and sinks may have followed it"
    return newest, "the newest before the damage"


def _position(state: State, entry: LiveCheckpoint) -> int:
    """Tell the newest epoch whose rows sinks have when they are where ``entry`` wants them."""
    unsettled = entry.epoch > state.settled_epoch
    return entry.rollback_to if unsettled and entry.rollback_to is not None else entry.epoch


def _choose(store: Store, state: State, settings: Settings, bound: int, lost: Lost) -> _Target:
    """Choose the newest checkpoint within the bound that can be restored, every byte verified."""
    passed_over: list[Reason] = []
    for entry in reversed(state.branch):
        if _position(state, entry) > bound:
            continue
        try:
            content = verify_restorable(store, entry, settings)
        except DAMAGE as error:
            passed_over.append(Reason(entry.epoch, error.message))
            continue
        unsettled, before = entry.epoch > state.settled_epoch, content.rollback
        again = before if unsettled else None
        return _Target(
            entry=entry,
            content=content,
            to_epoch=again.to_epoch if again else entry.epoch,
            to_id=again.to_id if again else entry.checkpoint_id,
            unsettled=again.unsettled if again else unsettled,
            keep=again.keep if again else [],
            passed_over=passed_over,
        )
    found = "; ".join(f"epoch {reason.epoch}: {reason.why}" for reason in passed_over)
    raise _impossible(f"no checkpoint of the record before it can be restored ({found})", lost)


def _impossible(why: str, lost: Lost) -> Corrupt:
    return Corrupt(
        f"the log record {lost.number} is damaged, and cannot be passed by: {why}",
        code="repair.impossible",
        hint=f"restore {record_key(lost.number)}, or the objects that are missing, from a copy and run this again; "
        "without one, only a new pipeline under another name goes on, and reads its sources anew",
        damaged=lost.numbers,
        before=lost.before.number if lost.before else None,
    )


# --- its sinks


class _Looked(msgspec.Struct, frozen=True):
    """A sink that was opened, or could not be: then what was raised. ``epoch`` is 0 where it is not known."""

    sink: CommittingSink | None
    epoch: int = 0
    error: SlackwaterError | None = None

    def get(self) -> CommittingSink | None:
        if self.error is not None:
            raise self.error
        return self.sink


def _outputs(store: Store, state: State, lost: Lost, content: Manifest) -> dict[str, SinkOutput]:
    """Name every sink that may have rows to be undone, or that lacks the target's output: that one with it."""
    outputs = sinks_since(store, state, content)
    for manifest in sorted(lost.manifests, key=lambda manifest: manifest.epoch):
        for name, output in manifest.sinks.items():
            outputs[name] = msgspec.structs.replace(output, descriptors=[])
    if content.epoch > state.settled_epoch:
        outputs |= content.sinks
    return dict(sorted(outputs.items()))


def _open_sinks(open_sink: OpenSink, outputs: dict[str, SinkOutput], pipeline: str, uid: str) -> dict[str, _Looked]:
    looked: dict[str, _Looked] = {}
    for name, output in outputs.items():
        try:
            sink = open_sink(name, output)
            if sink is not None:
                sink.bind(pipeline, name, uid)
            looked[name] = _Looked(sink, sink.epoch() if sink else 0)
        except SlackwaterError as error:
            looked[name] = _Looked(None, 0, error)
    return looked


# --- what it will do


def _plan(
    store: Store,
    state: State,
    lost: Lost,
    target: _Target,
    *,
    document: Manifest,
    sinks: dict[str, _Looked],
    why: str,
    keep_older: bool,
) -> RepairPlan:
    rollback = document.rollback
    keep = rollback.keep if rollback else []
    undone = [epoch for epoch in epochs_after(state, target.to_epoch) if epoch != target.entry.epoch]
    newest = max(lost.manifests, key=lambda manifest: manifest.epoch, default=target.content)
    there = {listed.key for listed in store.list(CHECKPOINTS)}
    labelled = {savepoint.epoch for savepoint in state.labels}
    broken = {entry.epoch for entry in state.live if not _is_whole(store, entry, there)}
    leaving = [
        Reason(
            entry.epoch,
            "bytes of it are missing"
            if entry.epoch in broken
            else "a damaged record may have retired it, and its bytes may be deleted at any time",
        )
        for entry in state.live
        if entry.epoch not in labelled and (entry.epoch in broken or not keep_older)
    ]
    return RepairPlan(
        damaged_records=lost.numbers,
        may_have_been=lost.guesses,
        from_number=lost.before.number if lost.before else 0,
        head_epoch=state.epoch,
        to_epoch=target.to_epoch,
        to_id=target.to_id,
        to_created_at_ms=target.entry.created_at_ms,
        why=why,
        unsettled=target.unsettled,
        epoch=document.epoch,
        passed_over=target.passed_over,
        undone_epochs=undone,
        undone_labels=[savepoint.label for savepoint in state.labels if savepoint.epoch in undone],
        retired=leaving[: MAX_LIVE - len(state.retired)],
        labels=[savepoint.label for savepoint in state.labels],
        damaged_labels=[savepoint.label for savepoint in state.labels if savepoint.epoch in broken],
        sinks=[
            plan_sink(
                name,
                output,
                lambda name, output: sinks[name].get() if name in sinks else None,
                target.to_epoch,
                name in keep,
            )
            for name, output in document.sinks.items()
        ],
        sources=[
            SourcePlan(
                name=name,
                source_type=position.source_type,
                now=newest.source_offsets[name].offsets if name in newest.source_offsets else None,
                then=position.offsets,
            )
            for name, position in document.source_offsets.items()
        ],
    )


def _is_whole(store: Store, entry: LiveCheckpoint, there: set[str]) -> bool:
    """Tell whether nothing of a checkpoint is missing; what is there and damaged may come back from a copy."""
    if manifest_key(entry.checkpoint_id) not in there:
        return False
    manifest = load_if_sound(store, entry)
    return manifest is None or references(manifest) <= there


class _Bytes(Stream):
    """A stored object on its way to another name, digested."""

    def __init__(self, store: Store, stored: Object) -> None:
        self._store, self._stored, self.size_bytes, self.sha256 = store, stored, stored.size_bytes, ""

    def __iter__(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for part in get_parts(self._store, self._stored.key, 0, self.size_bytes, to_end=True):
            digest.update(part)
            yield part
        self.sha256 = digest.hexdigest()


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
        return msgspec.structs.replace(stored, key=copied, sha256=stored.sha256 or data.sha256)

    return in_parallel([partial(copy, number, stored) for number, stored in enumerate(objects)], settings.concurrency)
