"""Fallback: what a start does about a damaged head. It stops, or rolls back to the newest checkpoint that is sound.

re-drive sinks ─ hydrate ─ damaged twice: hydrate the newest older that can be ─ ask the sinks ─ roll back ─ re-drive
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar, cast

from ..clock import Clock
from ..errors import Conflict, Corrupt, NotFound
from ..formats.keys import manifest_key
from ..formats.manifest import Manifest
from ..formats.state import LiveCheckpoint, State
from ..store import Store
from .log import Log
from .recovery import Head, load_if_sound, load_manifest, newest_verified, redrive, twice
from .rollback import roll_back, targets
from .sinks import CommittingSink
from .state import epochs_after, require_current

logger = logging.getLogger("slackwater")

Hydrated = TypeVar("Hydrated")
# Hears of the damage and the target before a rollback, and refuses by raising.
Agree = Callable[[Corrupt, Manifest], None]


def recover(
    store: Store,
    log: Log,
    clock: Clock,
    sinks: Mapping[str, CommittingSink],
    *,
    hydrate: Callable[[Manifest], Hydrated],
    dropped: Collection[str] = (),
    fallback: Agree | None = None,
) -> tuple[Head, Hydrated] | None:
    """Drive the head into the sinks and hydrate it; None when there is none. The caller has claimed.

    A head that is damaged whenever it is read is an error; with ``fallback``, the newest older checkpoint that is sound
    is rolled back to, unless a sink refuses: then nothing is changed.
    """

    generation = cast(State, log.state).generation
    hydrated: Hydrated | None = None

    def drive() -> tuple[Head, Hydrated] | None:
        state = cast(State, log.state)
        head = redrive(store, log, state, sinks, dropped)
        if head is None:
            return None
        with log.unless_fenced(state.generation):
            return head, hydrate(head.manifest) if hydrated is None else hydrated

    def try_out(entry: LiveCheckpoint) -> None:
        # Bytes that verify may still not be whole to Spark; and a rollback has its target's content, so this serves it.
        nonlocal hydrated
        hydrated = twice(lambda: hydrate(load_manifest(store, entry)))

    try:
        return twice(drive)
    except Corrupt as damage:
        if damage.code == "log.corrupt":
            raise  # A newer driver may have retired the head: nobody can tell.
        while True:
            state = cast(State, log.state)
            head = cast(LiveCheckpoint, state.head)
            target, _ = newest_verified([entry for entry in targets(state) if entry is not head], try_out)
            try:
                with log.unless_fenced(generation):
                    if fallback is None or target is None:
                        raise _head_damaged(damage, state, head, target) from damage
                    keep = _kept(store, head)
                    if refused := _refusals(sinks, target.epoch, keep):
                        raise _head_damaged(damage, state, head, target, refused=refused, keep=keep) from damage
                    fallback(damage, twice(partial(load_manifest, store, target)))
                roll_back(store, log, clock, target.epoch, keep=keep)
            except (Corrupt, NotFound):
                now = cast(State, log.read())
                require_current(now, generation)
                if target is None or now.find(target.epoch) is not None:
                    raise
                # Somebody has forgotten the target meanwhile: look for another one.
            else:
                return twice(drive)


def tell_fallback(damage: Corrupt, target: Manifest) -> None:
    """Agree to any rollback, and log it."""
    logger.warning("the newest checkpoint is damaged (%s): rolling back to epoch %d", damage.message, target.epoch)


def _kept(store: Store, head: LiveCheckpoint) -> list[str]:
    """Name the sinks whose rows stay: the user has said so when the head was rolled back to."""
    manifest = load_if_sound(store, head)
    return list(manifest.rollback.keep) if manifest and manifest.rollback else []


def _refusals(sinks: Mapping[str, CommittingSink], to_epoch: int, keep: Collection[str]) -> dict[str, str]:
    """Ask every sink that would undo; return why some refuse."""
    refused: dict[str, str] = {}
    for name, sink in sinks.items():
        if sink.can_undo and name not in keep:
            try:
                sink.plan_undo(to_epoch)
            except Conflict as error:
                if error.code != "sink.undo_refused":
                    raise
                refused[name] = error.message
    return refused


def _head_damaged(
    damage: Corrupt,
    state: State,
    head: LiveCheckpoint,
    target: LiveCheckpoint | None,
    *,
    refused: Mapping[str, str] | None = None,
    keep: Collection[str] = (),
) -> Corrupt:
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
    if target is not None and refused:
        way_out += "".join(f"; the sink {name!r} would refuse that: {why}" for name, why in refused.items())
        options = " ".join(f"--keep {name}" for name in sorted({*keep, *refused}))
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
