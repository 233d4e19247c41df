"""What a start does when the newest checkpoint is sound, damaged, or not yet in every sink.

It is decided from what was read, purely: ``recovery.py`` reads, asks this, and acts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ..errors import Conflict, Corrupt, SlackwaterError
from ..formats.keys import manifest_key
from ..formats.manifest import Manifest
from ..formats.state import LiveCheckpoint, State
from .sinks import find_absent
from .state import epochs_after


class SinkStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where one of the program's sinks is, and the newest epoch that it has committed."""

    kind: str
    address: str
    epoch: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before the decision.

    Either ``head`` is the newest checkpoint's manifest, or ``damage`` says what is wrong with that checkpoint; both are
    None when there is none. The rest of the second block is read only when there is damage.
    """

    state: State
    head: Manifest | None = None
    sinks: Mapping[str, SinkStanding] = {}
    # Sinks whose open output the user gives up.
    dropped: Collection[str] = ()

    damage: Corrupt | None = None
    # What the program goes on with if it has the newest state itself, and no sinks.
    own_state: object | None = None
    may_fall_back: bool = False
    # The newest older checkpoint that can be restored.
    target: LiveCheckpoint | None = None
    # Sinks that keep their rows when it is rolled back to, and why others refuse to undo theirs.
    keep: Collection[str] = ()
    refusals: Mapping[str, str] = {}


class Fresh(msgspec.Struct, frozen=True):
    """There is no checkpoint yet."""


class GoOn(msgspec.Struct, frozen=True):
    """Every sink has the newest checkpoint, and a record says so. To drive them again does no harm."""

    head: Manifest


class CommitAgain(msgspec.Struct, frozen=True):
    """A sink may lack the newest checkpoint's rows."""

    head: Manifest


class Undo(msgspec.Struct, frozen=True):
    """The newest checkpoint is a rollback: sinks take back what came after its target. ``settled``: they have."""

    head: Manifest
    settled: bool


class GoOnWithoutHead(msgspec.Struct, frozen=True):
    """The newest checkpoint is damaged, and the program does not need it."""

    own_state: object


class FallBack(msgspec.Struct, frozen=True):
    """The newest checkpoint is damaged: roll back to ``target``."""

    damage: Corrupt
    target: LiveCheckpoint
    keep: Collection[str]


class Refuse(msgspec.Struct, frozen=True):
    """A person has to decide, and nothing is changed."""

    error: SlackwaterError


Outcome = Fresh | GoOn | CommitAgain | Undo | GoOnWithoutHead | FallBack | Refuse


def decide(found: Found) -> Outcome:
    """Choose what a start does. The caller has claimed, and what it read is of that state."""
    state, head = found.state, found.head
    if found.damage is not None:
        return _decide_damaged(found, found.damage)
    if head is None:
        return Fresh()
    for name, sink in found.sinks.items():
        if sink.epoch > state.epoch:
            return Refuse(_sink_ahead(name, sink, state))
    settled = state.settled_epoch == state.epoch
    if not settled and (left := find_absent(head, found.sinks) - set(found.dropped)):
        return Refuse(_sink_missing(min(left), head, found.sinks))
    if head.rollback is not None:
        return Undo(head, settled)
    return GoOn(head) if settled else CommitAgain(head)


def _decide_damaged(found: Found, damage: Corrupt) -> Outcome:
    if found.own_state is not None:
        return GoOnWithoutHead(found.own_state)
    if not found.may_fall_back or found.target is None or found.refusals:
        return Refuse(_head_damaged(found, damage))
    return FallBack(damage, found.target, found.keep)


def _sink_ahead(name: str, sink: SinkStanding, state: State) -> Conflict:
    return Conflict(
        f"the sink {name!r} has committed epoch {sink.epoch}, but the log ends at epoch {state.epoch}",
        code="sink.ahead",
        hint="put the newest log/ and checkpoints/ back: the store is older than the sink, as one from a backup is",
    )


def _sink_missing(name: str, head: Manifest, sinks: Mapping[str, SinkStanding]) -> Conflict:
    output, what = head.sinks[name], "rows to take back" if head.rollback else "output to commit"
    now = f"at {sinks[name].address} ({sinks[name].kind})" if name in sinks else "not"
    return Conflict(
        f"the sink {name!r} has {what} for epoch {head.epoch} at {output.address} ({output.kind}), and is {now} "
        "in the pipeline",
        code="sink.missing",
        hint="start once with the sink as it was; or once without it, and with the option "
        f"drop_sink=[{name!r}], which gives this up on record",
    )


def _head_damaged(found: Found, damage: Corrupt) -> Corrupt:
    state, target = found.state, found.target
    head = state.live[-1]
    lost = epochs_after(state, target.epoch if target else 0)
    if target is None:
        way_out, hint = "no older checkpoint can be restored either", "slackwater verify URL --read-data"
    else:
        named = f"epoch {lost[0]} is" if len(lost) == 1 else f"epochs {lost[0]} to {lost[-1]} are"
        way_out = f"the newest that verifies is epoch {target.epoch}; {named} lost with a rollback to it"
        hint = (
            f"the option fallback (newest-verified), or slackwater rollback URL --to {target.epoch} --yes, rolls back "
            "to it, sinks too, and reads the rest again; or restore the object from a copy"
        )
    if target is not None and found.refusals:
        way_out += "".join(f"; the sink {name!r} would refuse that: {why}" for name, why in found.refusals.items())
        options = " ".join(f"--keep {name}" for name in sorted({*found.keep, *found.refusals}))
        hint = (
            f"slackwater rollback URL --to {target.epoch} {options} --yes leaves their rows as they are, and what is "
            "read again comes a second time; or restore the object from a copy"
        )
    return Corrupt(
        f"the newest checkpoint, epoch {head.epoch}, cannot be restored: {damage.message}; {way_out}",
        code="head.damaged",
        hint=hint,
        epoch=head.epoch,
        key=damage.details.get("key", manifest_key(head.checkpoint_id)),
        lost=lost,
        newest_verified=target.epoch if target else None,
    )
