"""The state of a pipeline as a value: what each log record holds, and what in it contradicts itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .ids import CheckpointId, Count, Name, RandomId, Sha256

MAX_LIVE = 5_000
MAX_LABELS = 1_000


class LiveCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A checkpoint that can be restored. An undone one is off the current branch; ``rollback_to`` is a rollback's.

    A ``repair`` is a rollback whose target may be unsettled: the next start commits that first.
    """

    epoch: Count
    checkpoint_id: CheckpointId
    manifest_sha256: Sha256
    manifest_size_bytes: Count
    parent_id: CheckpointId | None
    created_at_ms: Count
    append_id: RandomId
    undone: bool
    rollback_to: Count | None
    repair: bool = False


class Savepoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    label: Name
    epoch: Count
    created_at_ms: Count
    append_id: RandomId


class RetiredCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gone from history; its bytes may still be there. The digest lets the deleter trust its manifest."""

    epoch: Count
    checkpoint_id: CheckpointId
    manifest_sha256: Sha256


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uid: RandomId
    generation: Count
    claim_append_id: RandomId
    release_append_id: RandomId | None
    epoch: Count
    settled_epoch: Count
    at_ms: Count
    live: Annotated[list[LiveCheckpoint], Meta(max_length=MAX_LIVE)]
    labels: Annotated[list[Savepoint], Meta(max_length=MAX_LABELS)]
    retired: Annotated[list[RetiredCheckpoint], Meta(max_length=MAX_LIVE)]

    @property
    def head(self) -> LiveCheckpoint | None:
        """The checkpoint to resume from: the newest one."""
        return self.live[-1] if self.live else None

    @property
    def branch(self) -> list[LiveCheckpoint]:
        """The live checkpoints that the head is built on, itself the last."""
        return [entry for entry in self.live if not entry.undone]

    @property
    def checkpoint_ids(self) -> list[str]:
        """The ids of all that the log knows, live or retired."""
        return [entry.checkpoint_id for entry in self.live] + [entry.checkpoint_id for entry in self.retired]

    def find(self, epoch: int) -> LiveCheckpoint | None:
        return next((entry for entry in self.live if entry.epoch == epoch), None)

    def has(self, append_id: str) -> bool:
        """Tell whether an append of this id has counted, however its answer was lost."""
        return (
            append_id in (self.claim_append_id, self.release_append_id)
            or any(entry.append_id == append_id for entry in self.live)
            or any(savepoint.append_id == append_id for savepoint in self.labels)
        )


# --- what fits


def find_contradiction(state: State, number: int) -> str | None:
    """Say what in a state no sequence of changes could have made."""
    live = [entry.epoch for entry in state.live]
    retired = [entry.epoch for entry in state.retired]
    ids = state.checkpoint_ids
    labels = [savepoint.label for savepoint in state.labels]
    late = [entry for entry in state.live if entry.epoch > state.settled_epoch + 1]
    # The target of a repair, alone, may be the one checkpoint that is not settled.
    rollbacks = [
        (entry.epoch, entry.rollback_to, state.settled_epoch + entry.repair)
        for entry in state.live
        if entry.rollback_to is not None
    ]
    wrong = {
        "its live checkpoints are not in order up to the newest epoch": live != sorted(set(live))
        or (live[-1] if live else 0) != state.epoch,
        "it names a checkpoint twice": len(set(ids)) != len(ids) or bool(set(live) & set(retired)),
        "it has a label twice, or on a checkpoint that is not live": len(set(labels)) != len(labels)
        or not {savepoint.epoch for savepoint in state.labels} <= set(live),
        "it has a settled epoch or a generation that cannot be": state.settled_epoch > state.epoch
        or state.generation > number,
        # Only a rollback may follow an epoch that no sink has settled.
        "it has a checkpoint that counts before the one before it": any(e.rollback_to is None for e in late),
        "it has a rollback that goes nowhere": any(not 0 < to <= newest or to >= e for e, to, newest in rollbacks),
        "it has a repair that goes back to nothing": any(e.repair and e.rollback_to is None for e in state.live),
        "it has a checkpoint that a rollback has undone, and that is not": _missed(state.live),
        "its head was undone": bool(state.live) and state.live[-1].undone,
    }
    return next((what for what, holds in wrong.items() if holds), None)


def _missed(live: list[LiveCheckpoint]) -> bool:
    """Tell whether a checkpoint between a rollback and its target is not marked as undone."""
    target = live[-1].epoch if live else 0
    for entry in reversed(live):
        if entry.epoch > target and not entry.undone:
            return True
        if entry.rollback_to is not None:
            target = min(target, entry.rollback_to)
    return False
