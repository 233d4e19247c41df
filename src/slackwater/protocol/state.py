"""Which change fits a pipeline's state, and the state after it. Pure; a second driver is fenced here."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ..errors import Code, Conflict, InvalidInput, NotFound
from ..formats.change import (
    Change,
    Checkpoint,
    Claim,
    Deleted,
    Label,
    NewCheckpoint,
    Release,
    Repair,
    Retire,
    Rollback,
    Settlement,
    Unlabel,
)
from ..formats.state import MAX_LABELS, MAX_LIVE, LiveCheckpoint, RetiredCheckpoint, Savepoint, State

# The last of the room is for rollbacks, so that a pipeline that is full can still be put right.
ROOM_FOR_ROLLBACKS = 100
UNDONE = "undone by a rollback"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is passed over, or retired, and why."""

    epoch: int
    reason: str


def apply(state: State | None, change: Change, *, number: int, append_id: str, at_ms: int) -> State:
    """Apply a change; refuse, with a typed error, one that does not fit the state."""
    at_ms = max(at_ms, state.at_ms) if state else at_ms
    if isinstance(change, Claim):
        return _apply_claim(state, change, number=number, append_id=append_id, at_ms=at_ms)
    if state is None:
        raise NotFound(
            "the pipeline has no records yet", code=Code.PIPELINE_NOT_FOUND, hint="slackwater pipelines STORE"
        )
    state = msgspec.structs.replace(state, at_ms=at_ms)
    match change:
        case Checkpoint():
            after = _apply_checkpoint(state, change, append_id)
        case Rollback():
            after = _apply_rollback(state, change, append_id)
        case Label():
            after = _apply_label(state, change, append_id)
        case Unlabel():
            after = _apply_unlabel(state, change)
        case Release():
            require_current(state, change.generation)
            settled = _settle(_forget(state, change.deleted), change.settled)
            after = msgspec.structs.replace(settled, release_append_id=append_id)
        case Retire():
            after = _retire(state, change.epochs)
        case Deleted():
            after = _forget(state, change.epochs)
        case Repair():
            after = _apply_repair(state, change, number, append_id)
    return after


def _apply_claim(state: State | None, change: Claim, *, number: int, append_id: str, at_ms: int) -> State:
    if state is not None:
        return msgspec.structs.replace(
            state, generation=number, claim_append_id=append_id, release_append_id=None, at_ms=at_ms
        )
    return State(
        uid=change.uid,
        generation=number,
        claim_append_id=append_id,
        release_append_id=None,
        epoch=0,
        settled_epoch=0,
        at_ms=at_ms,
        live=[],
        labels=[],
        retired=[],
    )


def require_current(state: State, generation: int) -> None:
    """Refuse a driver that another one has fenced."""
    if state.generation != generation:
        raise Conflict(
            f"another driver has taken over: generation {state.generation}, this one is {generation}",
            code=Code.DRIVER_FENCED,
            hint="run one driver a pipeline; this one has stopped and left everything to the other",
            generation=generation,
            current=state.generation,
        )


def _apply_checkpoint(state: State, change: Checkpoint, append_id: str) -> State:
    _require_next(state, change)
    state = _settle(_forget(state, change.deleted), change.settled)
    if state.settled_epoch != state.epoch:
        raise Conflict(
            f"epoch {change.epoch} cannot count before every sink has committed epoch {state.epoch}",
            code="checkpoint.unsettled",
        )
    # Those that it retires make room for it.
    return _bounded(_retire(_add(state, change, append_id), change.retire), MAX_LIVE - ROOM_FOR_ROLLBACKS)


def _apply_rollback(state: State, change: Rollback, append_id: str) -> State:
    """Nothing has to be committed before it is undone, so the epochs after the target may be unsettled."""
    _require_next(state, change)
    target = find_target(state, change.to_epoch)
    if target.epoch > state.settled_epoch:
        # A rollback commits nothing and undoes only what came after its target: the rest of this one would be lost.
        raise Conflict(
            f"epoch {target.epoch} is the newest, and not every sink has committed it",
            code="checkpoint.unsettled",
            hint="it is what the next start goes on from; there is nothing to roll back",
        )
    return _bounded(_add(_undo(state, target.epoch), change, append_id), MAX_LIVE)


def _apply_repair(state: State, change: Repair, number: int, append_id: str) -> State:
    """Its epoch leaves out those of the damaged records; its target may be the head, settled or not."""
    head = state.head
    if head is None or change.epoch <= state.epoch or change.parent_id != head.checkpoint_id:
        raise _does_not_follow(state, change)
    # A rollback that no sink has followed yet is repaired by doing its own undo.
    if not (state.settled_epoch < head.epoch and change.to_epoch == head.rollback_to):
        find_target(state, change.to_epoch)
    state = msgspec.structs.replace(state, generation=number, claim_append_id=append_id, release_append_id=append_id)
    return _bounded(_retire(_add(_undo(state, change.to_epoch), change, append_id), change.retire), MAX_LIVE)


def _undo(state: State, to_epoch: int) -> State:
    live = [msgspec.structs.replace(entry, undone=True) if entry.epoch > to_epoch else entry for entry in state.live]
    return msgspec.structs.replace(state, live=live)


def find_target(state: State, epoch: int) -> LiveCheckpoint:
    """Find the checkpoint to roll back to; refuse one that is gone, or off the current branch."""
    target = _find_live(state, epoch)
    if target.undone:
        raise Conflict(
            f"epoch {epoch} was undone by a rollback, and sinks cannot go back to what they have taken back",
            code="rollback.impossible",
            hint="slackwater list URL shows the epochs that are not undone; slackwater restore URL --at "
            f"{epoch} --to DIR gives this one's state as a directory",
        )
    return target


def _find_live(state: State, epoch: int) -> LiveCheckpoint:
    entry = state.find(epoch)
    if entry is None:
        raise NotFound(
            f"epoch {epoch} is not a live checkpoint", code="checkpoint.not_found", hint="slackwater list URL"
        )
    return entry


def _require_next(state: State, change: Checkpoint | Rollback) -> None:
    require_current(state, change.generation)
    parent = state.head.checkpoint_id if state.head else None
    if change.epoch != state.epoch + 1 or change.parent_id != parent:
        raise _does_not_follow(state, change)


def _does_not_follow(state: State, change: NewCheckpoint) -> Conflict:
    return Conflict(
        f"epoch {change.epoch} does not follow epoch {state.epoch}",
        code="checkpoint.out_of_order",
        epoch=change.epoch,
        newest=state.epoch,
    )


def _add(state: State, change: NewCheckpoint, append_id: str) -> State:
    entry = LiveCheckpoint(
        epoch=change.epoch,
        checkpoint_id=change.checkpoint_id,
        manifest_sha256=change.manifest_sha256,
        manifest_size_bytes=change.manifest_size_bytes,
        parent_id=change.parent_id,
        created_at_ms=state.at_ms,
        append_id=append_id,
        undone=False,
        rollback_to=change.to_epoch if isinstance(change, Rollback | Repair) else None,
        repair=isinstance(change, Repair),
    )
    return msgspec.structs.replace(state, epoch=change.epoch, live=[*state.live, entry])


def _bounded(state: State, most: int) -> State:
    if len(state.live) > most:
        raise Conflict(
            f"{len(state.live)} checkpoints would be live, and {most} can be: old ones were not deleted for long",
            code="checkpoint.too_many",
            hint="see that the store allows deletes, and start the pipeline again: it deletes first",
        )
    return state


def _settle(state: State, settled: Settlement | None) -> State:
    if settled is None:
        return state
    if settled.epoch != state.epoch:
        raise Conflict(f"epoch {settled.epoch} is not the newest, {state.epoch}", code="checkpoint.out_of_order")
    done = all(sink.status in ("Committed", "Dropped") for sink in settled.sinks.values())
    return msgspec.structs.replace(state, settled_epoch=settled.epoch) if done else state


def _retire(state: State, epochs: list[int]) -> State:
    if not epochs:
        return state
    head = state.head
    kept = {savepoint.epoch for savepoint in state.labels} | ({head.epoch} if head else set())
    leaving = set(epochs)
    if leaving & kept or not leaving <= {entry.epoch for entry in state.live}:
        raise Conflict(
            f"epochs {sorted(leaving)} cannot be retired: one is the head, labelled, or not live",
            code="retire.not_allowed",
        )
    retired = [
        RetiredCheckpoint(epoch=e.epoch, checkpoint_id=e.checkpoint_id, manifest_sha256=e.manifest_sha256)
        for e in state.live
        if e.epoch in leaving
    ]
    return msgspec.structs.replace(
        state,
        live=[entry for entry in state.live if entry.epoch not in leaving],
        retired=[*state.retired, *retired],
    )


def _forget(state: State, epochs: list[int]) -> State:
    """Drop epochs whose bytes are deleted; naming one that is already dropped is harmless."""
    if not epochs:
        return state
    return msgspec.structs.replace(state, retired=[entry for entry in state.retired if entry.epoch not in epochs])


def _apply_label(state: State, change: Label, append_id: str) -> State:
    _find_live(state, change.epoch)
    if any(savepoint.label == change.label for savepoint in state.labels):
        raise Conflict(
            f"the label {change.label!r} is taken",
            code="label.taken",
            hint="choose another, or see slackwater savepoint list URL",
        )
    if len(state.labels) >= MAX_LABELS:
        raise InvalidInput(f"a pipeline holds {MAX_LABELS} savepoints at the most", code="log.state_too_large")
    savepoint = Savepoint(label=change.label, epoch=change.epoch, created_at_ms=state.at_ms, append_id=append_id)
    return msgspec.structs.replace(state, labels=[*state.labels, savepoint])


def _apply_unlabel(state: State, change: Unlabel) -> State:
    labels = [savepoint for savepoint in state.labels if savepoint.label != change.label]
    if len(labels) == len(state.labels):
        raise NotFound(
            f"there is no savepoint {change.label!r}", code="label.not_found", hint="slackwater savepoint list URL"
        )
    return msgspec.structs.replace(state, labels=labels)


def epochs_after(state: State, epoch: int) -> list[int]:
    """Name the epochs of the branch that a rollback to ``epoch`` undoes."""
    return [entry.epoch for entry in state.branch if entry.epoch > epoch]


def labels_of(state: State, epochs: Collection[int]) -> list[str]:
    return [savepoint.label for savepoint in state.labels if savepoint.epoch in epochs]
