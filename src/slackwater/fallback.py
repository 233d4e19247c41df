"""Fallback: what a start does about a damaged head. It stops, or rolls back to the newest checkpoint that is sound.

re-drive sinks ─ hydrate ─ when damaged: verify older ones ─ roll back ─ re-drive sinks ─ hydrate
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar, cast

from .checkpointer import CommittingSink
from .errors import Corrupt
from .formats.layout import manifest_key
from .formats.manifest import Manifest
from .formats.records import LiveCheckpoint, State
from .log import Log
from .recovery import Head, load_manifest, redrive
from .rewind import epochs_after, newest_verified, roll_back
from .settings import Settings
from .store import Store
from .world import World

Hydrated = TypeVar("Hydrated")
# Hears of the damage and the target before a rollback, and refuses by raising.
Agree = Callable[[Corrupt, Manifest], None]


def recover(
    store: Store,
    log: Log,
    world: World,
    settings: Settings,
    sinks: Mapping[str, CommittingSink],
    *,
    hydrate: Callable[[Manifest], Hydrated],
    dropped: Collection[str] = (),
    fallback: Agree | None = None,
) -> tuple[Head, Hydrated] | None:
    """Drive the head into the sinks and hydrate it; None when there is none. The caller has claimed.

    A damaged head is an error; with ``fallback``, the newest older checkpoint that is sound is rolled back to.
    """

    def drive() -> tuple[Head, Hydrated] | None:
        state = cast(State, log.state)
        head = redrive(store, log, state, sinks, dropped)
        if head is None:
            return None
        with log.unless_fenced(state.generation):
            return head, hydrate(head.manifest)

    try:
        return drive()
    except Corrupt as damage:
        state = cast(State, log.state)
        head = cast(LiveCheckpoint, state.head)
        target = newest_verified(store, state, settings, below=head.epoch)
        with log.unless_fenced(state.generation):
            if fallback is None or target is None:
                raise _head_damaged(damage, state, head, target) from damage
            fallback(damage, load_manifest(store, target))
        roll_back(store, log, world, target.epoch)
        return drive()


def _head_damaged(damage: Corrupt, state: State, head: LiveCheckpoint, target: LiveCheckpoint | None) -> Corrupt:
    lost = epochs_after(state, target.epoch if target else 0)
    if target is None:
        way_out, hint = "no older checkpoint can be restored either", "slackwater verify URL --read-data"
    else:
        named = f"epoch {lost[0]} is" if len(lost) == 1 else f"epochs {lost[0]} to {lost[-1]} are"
        way_out = f"the newest that verifies is epoch {target.epoch}; {named} lost with a rollback to it"
        hint = (
            f'.option("fallback", "newest-verified") or slackwater rollback URL --to {target.epoch} --yes rolls back '
            "to it, sinks too, and reads the rest again; or restore the object from a copy"
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
