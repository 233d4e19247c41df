"""Retention deletes bytes: those of checkpoints that the log has retired, and what crashed attempts left.

The record comes first, the deletes after it, manifests last. What leaves is planned in ``keep_rules.py`` and retired
with a checkpoint's own record, or by ``ops/forget.py``; a crash in between repeats the deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import cast

import msgspec

from ..errors import Corrupt
from ..failpoints import reach
from ..formats.keys import CHECKPOINTS, LATEST, checkpoint_folder, manifest_key, parse_key
from ..formats.manifest import references
from ..formats.state import LiveCheckpoint, RetiredCheckpoint, State
from ..parallel import in_parallel
from ..store import Store
from .log import Permit
from .pipeline import Pipeline
from .sinks import CommittingSink
from .state import require_current
from .verified_reads import DAMAGE, load_manifest


class Needed(msgspec.Struct, frozen=True):
    """What live checkpoints need. One whose manifest cannot be read may need whatever no newer checkpoint has written.

    ``blind``: there is such a one. ``newer`` are the folders of all that the log knows to be newer than it.
    """

    keys: set[str]
    blind: bool = False
    newer: tuple[str, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.keys or (self.blind and not key.startswith(self.newer))


class References:
    """The objects that each checkpoint needs; manifests never change, so each is read once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._known: dict[str, frozenset[str]] = {}

    def know(self, checkpoint_id: str, keys: frozenset[str]) -> None:
        """Take the word of who has just written the manifest."""
        self._known[checkpoint_id] = keys

    def of(self, entry: LiveCheckpoint | RetiredCheckpoint) -> frozenset[str]:
        known = self._known.get(entry.checkpoint_id)
        if known is None:
            known = self._known[entry.checkpoint_id] = references(load_manifest(self._pipeline.store, entry))
        return known

    def of_live(self, state: State) -> Needed:
        jobs = [partial(self._of_live, entry) for entry in state.live]
        found = dict(zip(state.live, in_parallel(jobs, self._pipeline.settings.concurrency), strict=True))
        ids = set(state.checkpoint_ids)
        self._known = {checkpoint_id: keys for checkpoint_id, keys in self._known.items() if checkpoint_id in ids}
        keys: set[str] = set().union(*(keys for keys in found.values() if keys is not None))
        if not (unreadable := [entry.epoch for entry, keys in found.items() if keys is None]):
            return Needed(keys)
        entries: list[LiveCheckpoint | RetiredCheckpoint] = [*state.live, *state.retired]
        newer = [entry.checkpoint_id for entry in entries if entry.epoch > max(unreadable)]
        return Needed(keys, True, tuple(map(checkpoint_folder, newer)))

    def needed(self, permit: Permit | None) -> tuple[State, Needed]:
        """Find what live checkpoints need, and the state that this is said of. Who is no driver has no permit."""
        state = self._pipeline.state
        while (needed := self.of_live(state)).blind:
            # That manifest may have been deleted by somebody who retired it meanwhile. If this was a newer driver, all
            # of this is its own to judge.
            known, state = state, cast(State, self._pipeline.log.read())
            if permit is not None:
                require_current(state, permit.generation)
            if state is known:
                break
        return state, needed

    def _of_live(self, entry: LiveCheckpoint) -> frozenset[str] | None:
        with suppress(*DAMAGE):
            return self.of(entry)
        return None


class Doomed(msgspec.Struct, frozen=True):
    """What goes with the retired checkpoints: objects that no live one needs, and after them the manifests."""

    epochs: list[int]
    objects: list[str]
    manifests: list[str]


def find_doomed(state: State, needed: Needed, references: References) -> Doomed:
    """Find what the retired checkpoints of a state leave behind."""
    objects: set[str] = set()
    for entry in state.retired:
        # Manifests go last: without it, everything of this checkpoint is gone already. What a damaged one names, nobody
        # can tell; nothing needs it, so the next start sweeps it.
        with suppress(Corrupt):
            objects |= {key for key in references.of(entry) if key not in needed}
    manifests = [manifest_key(entry.checkpoint_id) for entry in state.retired]
    return Doomed([entry.epoch for entry in state.retired], sorted(objects), manifests)


def find_all_doomed(permit: Permit | None, references: References) -> Doomed:
    """Find what the retired checkpoints of the newest state leave behind."""
    state, needed = references.needed(permit)
    return find_doomed(state, needed, references)


def delete_doomed(store: Store, doomed: Doomed) -> None:
    store.delete(doomed.objects)
    reach("delete.between")
    store.delete(doomed.manifests)
    reach("delete.after")


def delete_retired(pipeline: Pipeline, permit: Permit, references: References) -> list[int]:
    """Delete the bytes of retired checkpoints that no live one needs; return the epochs that are gone for good."""
    if not pipeline.state.retired:
        return []
    doomed = find_all_doomed(permit, references)
    delete_doomed(pipeline.store, doomed)
    return doomed.epochs


class Survey(msgspec.Struct, frozen=True):
    """What lay in the store and at the sinks before the claim: only of this may the sweep delete anything."""

    keys: list[str]
    attempts: dict[str, list[str]]


def sweep(
    pipeline: Pipeline,
    permit: Permit,
    survey: Survey,
    sinks: Mapping[str, CommittingSink],
    references: References,
) -> int:
    """Delete, of what was there before the claim, what no checkpoint names; return how many things went."""
    store, state = pipeline.store, pipeline.state
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
        state, needed = references.needed(permit)
        for entry in state.retired:
            # The deleter's, who records that they are gone.
            with suppress(Corrupt):
                needed.keys.update(references.of(entry))
        strays = [key for key in strays if key not in needed]
    store.delete(strays)
    # Those of the log are the trim's: one listing less for each start.
    count += len(strays) + store.remove_unfinished(CHECKPOINTS)
    reach("sweep.after")
    return count


def _is_ours(key: str) -> bool:
    """A file that somebody else put into the folder is not ours to delete."""
    try:
        parse_key(key)
    except Corrupt:
        return False
    return True
