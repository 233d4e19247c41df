"""Retention: delete what the log has retired, and sweep what crashed attempts left.

The record comes first, the deletes after it, manifests last. What leaves is planned in ``formats/plans.py`` and retired
with a checkpoint's own record; a crash in between repeats the deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from .artifacts import in_parallel
from .checkpointer import CommittingSink
from .errors import Corrupt
from .failpoints import reach
from .formats.layout import LATEST, manifest_key, parse_key
from .formats.manifest import references
from .formats.records import LiveCheckpoint, RetiredCheckpoint, State
from .log import Log
from .recovery import Claimed, load_manifest
from .settings import Settings
from .store import Store


class References:
    """The objects that each checkpoint needs; manifests never change, so each is read once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._known: dict[str, frozenset[str]] = {}

    def know(self, checkpoint_id: str, keys: frozenset[str]) -> None:
        """Take the word of who has just written the manifest."""
        self._known[checkpoint_id] = keys

    def of(self, entry: LiveCheckpoint | RetiredCheckpoint) -> frozenset[str]:
        known = self._known.get(entry.checkpoint_id)
        if known is None:
            known = self._known[entry.checkpoint_id] = references(load_manifest(self._store, entry))
        return known

    def of_live(self, state: State) -> set[str]:
        jobs = [partial(self.of, entry) for entry in state.live]
        live: set[str] = set().union(*in_parallel(jobs, self._settings.concurrency))
        ids = set(state.checkpoint_ids)
        self._known = {checkpoint_id: keys for checkpoint_id, keys in self._known.items() if checkpoint_id in ids}
        return live


def delete_retired(store: Store, log: Log, generation: int, references: References) -> list[int]:
    """Delete the bytes of retired checkpoints that no live one needs; return the epochs that are gone for good."""
    state = cast(State, log.state)
    if not state.retired:
        return []
    with log.unless_fenced(generation):
        live = references.of_live(state)
    doomed: set[str] = set()
    for entry in state.retired:
        # Manifests go last: without it, everything of this checkpoint is gone already. What a damaged one names, nobody
        # can tell; nothing needs it, so the next start sweeps it.
        with suppress(Corrupt):
            doomed |= references.of(entry) - live
    store.delete(sorted(doomed))
    reach("delete.between")
    store.delete([manifest_key(entry.checkpoint_id) for entry in state.retired])
    reach("delete.after")
    return [entry.epoch for entry in state.retired]


def sweep(store: Store, log: Log, claimed: Claimed, sinks: Mapping[str, CommittingSink], references: References) -> int:
    """Delete, of what was there before the claim, what no checkpoint names; return how many things went."""
    state, survey = cast(State, log.state), claimed.survey
    # Only the head may still have to be committed; the sinks first, because no damaged manifest can hinder them.
    head = {state.head.checkpoint_id} if state.head else set()
    count = 0
    for name, attempts in survey.attempts.items():
        abandoned = [attempt for attempt in attempts if attempt not in head]
        sinks[name].discard(abandoned)
        count += len(abandoned)
    kept = {LATEST, *(manifest_key(checkpoint_id) for checkpoint_id in state.checkpoint_ids)}
    strays = [key for key in survey.keys if key not in kept and _is_ours(key)]
    if strays:
        with log.unless_fenced(claimed.state.generation):
            needed = references.of_live(state)
        for entry in state.retired:
            # The deleter's, who records that they are gone.
            with suppress(Corrupt):
                needed |= references.of(entry)
        strays = [key for key in strays if key not in needed]
    store.delete(strays)
    count += len(strays)
    reach("sweep.after")
    return count


def _is_ours(key: str) -> bool:
    """A file that somebody else put into the folder is not ours to delete."""
    try:
        parse_key(key)
    except Corrupt:
        return False
    return True
