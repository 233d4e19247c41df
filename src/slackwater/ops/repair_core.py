"""Repair: when the newest records are damaged, go on from the one before them. Sinks follow at the next start.

look back ─ choose and verify the target ─ plan ─ copy its objects ─ manifest ─ APPEND ─ ``_latest``

``docs/design/010`` says why it copies, and why unlabelled checkpoints leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial

import msgspec

from ..clock import Clock
from ..errors import Corrupt, SlackwaterError
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Repair
from ..formats.keys import (
    CHECKPOINTS,
    LATEST,
    ArtifactKey,
    artifact_key,
    batch_key,
    manifest_key,
    parse_key,
    record_key,
)
from ..formats.manifest import Manifest, Object, RolledBack, SinkOutput, references
from ..formats.record import Record
from ..formats.state import MAX_LIVE, LiveCheckpoint, State
from ..parallel import in_parallel
from ..protocol.artifacts import get_parts
from ..protocol.log import Log
from ..protocol.log_damage import Lost
from ..protocol.recovery import DAMAGE, load_if_sound, restore, verify_restorable
from ..protocol.rollback import (
    OpenSink,
    Plan,
    check_keep,
    keep_acknowledged,
    manifests_after,
    plan_sink,
    plan_sources,
    sinks_since,
)
from ..protocol.sinks import CommittingSink
from ..protocol.state import LeftOut, epochs_after, labels_of
from ..settings import Settings
from ..store import Store, Stream


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
    before = lost.before
    if before is None:
        raise _impossible("no sound record was found before it", lost)
    state = before.state
    if state.head is None:
        raise _impossible(f"record {before.number} before it has no checkpoint to go on from", lost)
    undoing = _undoing(store, state, lost)
    bound, why = _bound(state, state.head, lost, can_undo=bool(undoing))
    forced = undoing.keys() - set(keep)
    target = _choose(store, state, settings, lost, bound=bound, why=why, forced=forced)
    outputs = _outputs(store, state, lost, target.content)
    pipeline = target.content.pipeline

    def open_bound(name: str, output: SinkOutput) -> CommittingSink | None:
        sink = open_sink(name, output)
        if sink is not None:
            sink.bind(pipeline, name, state.uid)
        return sink

    newest = _newest_epoch(open_bound, outputs)
    written = max([state.epoch, *(manifest.epoch for manifest in lost.manifests)])
    oldest = min(_position(state, entry) for entry in state.branch)
    if undoing and newest > written and bound > oldest:
        why = f"a sink is at epoch {newest}, of which nothing else is known: it may have undone anything before that"
        target = _choose(store, state, settings, lost, bound=oldest, why=why, forced=forced)
        outputs = _outputs(store, state, lost, target.content)
        # An older target may bring sinks that the pipeline has had before.
        newest = max(newest, _newest_epoch(open_bound, outputs))
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
        source_offsets=keep_acknowledged(target.content, _later(store, state, lost, target.content)),
        rollback=RolledBack(to_epoch=target.to_epoch, to_id=target.to_id, keep=keep, unsettled=target.unsettled),
    )
    return Prepared(
        plan=_plan(store, before, lost, target, document=document, open_sink=open_bound, keep_older=keep_older),
        lost=lost,
        document=document,
    )


def repair(store: Store, log: Log, clock: Clock, settings: Settings, prepared: Prepared, *, driver: str) -> bool:
    """Carry out a repair; False when somebody else was first, and the newest record is sound, or damaged, anew."""
    document, plan = prepared.document, prepared.plan
    checkpoint_id = clock.checkpoint_id()
    # The damaged record may have retired the target, and whoever wrote it may delete those bytes at any time.
    objects = _copy(store, document.objects, checkpoint_id, settings)
    document = msgspec.structs.replace(
        document, checkpoint_id=checkpoint_id, created_at_ms=clock.now_ms(), objects=objects
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
            retire=[retired.epoch for retired in plan.retired],
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
    passed_over: list[LeftOut]
    why: str


def _find_lost(log: Log) -> Lost | None:
    try:
        log.read()
    except Corrupt as damage:
        if damage.code != "log.corrupt":
            raise
        lost = log.look_back(int(damage.details["number"]))
        return lost if lost.seen else None
    return None


def _bound(state: State, head: LiveCheckpoint, lost: Lost, *, can_undo: bool) -> tuple[int, str]:
    """Find the epoch that sinks must be taken back to at least, and say why.

    A damaged record may have been a rollback that sinks have followed already. To undo more than that is harmless,
    because what is undone is read again; to undo less would lose rows. Sinks that cannot undo have not followed any:
    then only a rollback that is known counts, for it is what the user wanted.
    """
    known = {head.checkpoint_id, *(manifest.checkpoint_id for manifest in lost.manifests)}
    oldest = min(_position(state, entry) for entry in state.branch)
    if can_undo and lost.unreadable:
        return oldest, f"{lost.unreadable[0]} cannot be made out, and may have been a rollback to any epoch"
    if can_undo and any(manifest.parent_id not in known for manifest in lost.manifests):
        return oldest, "a manifest is missing between those that are there: it may have been a rollback to any epoch"
    newest = _position(state, head)
    rollbacks = [manifest.rollback.to_epoch for manifest in lost.manifests if manifest.rollback]
    if rollbacks and (to := min(rollbacks)) < newest:
        return to, f"a rollback to epoch {to} may have been lost, and sinks may have followed it"
    return newest, "the newest before the damage"


def _position(state: State, entry: LiveCheckpoint) -> int:
    """Tell the newest epoch whose rows sinks have when they are where ``entry`` wants them."""
    unsettled = entry.epoch > state.settled_epoch
    return entry.rollback_to if unsettled and entry.rollback_to is not None else entry.epoch


def _undoing(store: Store, state: State, lost: Lost) -> dict[str, SinkOutput]:
    """Name the sinks that may have followed a rollback that was lost: all that are known, and can undo."""
    known = [*(load_if_sound(store, entry) for entry in state.live), *lost.manifests]
    outputs = [output for manifest in known if manifest for output in manifest.sinks.items()]
    return {name: output for name, output in outputs if output.can_undo}


def _choose(
    store: Store, state: State, settings: Settings, lost: Lost, *, bound: int, why: str, forced: Collection[str]
) -> _Target:
    """Choose the newest checkpoint within the bound that can be restored, every byte verified.

    Where there is none left, and the user has told every sink to keep its rows (none is ``forced`` to undo), choose the
    newest beyond it.
    """
    within = [entry for entry in reversed(state.branch) if _position(state, entry) <= bound]
    beyond = [entry for entry in reversed(state.branch) if entry not in within]
    passed_over: list[LeftOut] = []
    for entry in within if forced else within + beyond:
        try:
            content = verify_restorable(store, entry, settings)
        except DAMAGE as error:
            passed_over.append(LeftOut(epoch=entry.epoch, reason=error.message))
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
            why=f"{why}; nothing that old is left, and all sinks keep their rows" if entry in beyond else why,
        )
    found = "; ".join(f"epoch {passed.epoch}: {passed.reason}" for passed in passed_over)
    if not (forced and beyond):
        raise _impossible(f"no checkpoint of the record before it can be restored ({found})", lost)
    untried = ", ".join(str(entry.epoch) for entry in reversed(beyond))
    names = " ".join(f"--keep {name}" for name in sorted(forced))
    raise _impossible(
        f"sinks must be taken back to epoch {bound} at least ({why}), and nothing that old can be restored ({found}); "
        f"newer ones were not tried: {untried}",
        lost,
        f"{names} goes on from the newest of those that is sound and leaves the sinks' rows as they are: what is read "
        "again comes a second time, and what a lost rollback has taken back does not come again",
    )


def _impossible(why: str, lost: Lost, otherwise: str = "") -> Corrupt:
    otherwise = otherwise or "only a new pipeline under another name goes on, and reads its sources anew"
    return Corrupt(
        f"the log record {lost.number} is damaged, and cannot be passed by: {why}",
        code="repair.impossible",
        hint=f"restore {record_key(lost.number)}, or the objects that are missing, from a copy and run this again; "
        f"without one, {otherwise}",
        damaged=lost.numbers,
        before=lost.before.number if lost.before else None,
    )


# --- its sinks


def _outputs(store: Store, state: State, lost: Lost, content: Manifest) -> dict[str, SinkOutput]:
    """Name every sink that may have rows to be undone, or that lacks the target's output: that one with it."""
    outputs = sinks_since(content, _later(store, state, lost, content))
    if content.epoch > state.settled_epoch:
        outputs |= content.sinks
    return dict(sorted(outputs.items()))


def _later(store: Store, state: State, lost: Lost, content: Manifest) -> list[Manifest | None]:
    """List what may have come after a checkpoint: it was live, or a damaged record may have made it so."""
    unknown: list[Manifest | None] = [None] if lost.unreadable else []
    may_be = sorted(lost.manifests, key=lambda manifest: manifest.epoch)
    return [*manifests_after(store, state, content.epoch), *may_be, *unknown]


def _newest_epoch(open_sink: OpenSink, outputs: dict[str, SinkOutput]) -> int:
    """Ask every sink for its epoch. The plan says of one that cannot be asked that it was not looked at."""
    newest = 0
    for name, output in outputs.items():
        with suppress(SlackwaterError):
            sink = open_sink(name, output)
            newest = max(newest, sink.epoch() if sink else 0)
    return newest


# --- what it will do


def _plan(
    store: Store,
    before: Record,
    lost: Lost,
    target: _Target,
    *,
    document: Manifest,
    open_sink: OpenSink,
    keep_older: bool,
) -> RepairPlan:
    state = before.state
    rollback = document.rollback
    keep = rollback.keep if rollback else []
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
        from_number=before.number,
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
