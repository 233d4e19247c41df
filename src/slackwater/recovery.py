"""Backward: from the newest record to a running state.

survey ─ read ─ claim ─ load manifest ─ re-drive sinks ─ restore, every byte verified

``checkpointer.py`` is this page mirrored; the sweep of what crashed attempts left is in ``retention.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from .artifacts import Holdings, get_artifacts
from .checkpointer import CommittingSink, commit_sinks
from .errors import Conflict, Corrupt, NotFound
from .failpoints import reach
from .formats import manifest as manifests
from .formats.layout import CHECKPOINTS, manifest_key
from .formats.manifest import Manifest
from .formats.records import Claim, LiveCheckpoint, Settlement, State
from .log import Log
from .settings import Settings
from .store import Store
from .world import World


class Survey(msgspec.Struct, frozen=True):
    """What lay in the store and at the sinks before the claim: only of this may the sweep delete anything."""

    keys: list[str]
    attempts: dict[str, list[str]]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's start: its state, what it surveyed, and the head that all sinks now have."""

    state: State
    survey: Survey
    head: Manifest | None
    settlement: Settlement | None


def claim(
    store: Store, log: Log, world: World, *, pipeline: str, driver: str, sinks: Mapping[str, CommittingSink]
) -> Claimed:
    """Become the pipeline's driver: every older one is fenced, and every sink has the head's epoch."""
    # Before the claim, so that nothing of a newer driver is in it; before the read, because objects follow a claim.
    keys = [entry.key for entry in store.list(CHECKPOINTS)]
    state = log.read()
    if state is None and keys:
        raise Corrupt(
            f"the store holds {len(keys)} objects of checkpoints, and no log that says which of them count",
            code="log.missing",
            hint="restore the folder log/ from a backup or a replica; nothing was changed",
        )
    uid = state.uid if state else world.random_id()
    for name, sink in sinks.items():
        sink.bind(pipeline, name, uid)
    survey = Survey(keys, {name: sink.staged() for name, sink in sinks.items()} if state else {})
    reach("claim.before")
    state = log.append(lambda _state: Claim(uid=uid, driver=driver))
    reach("claim.after")
    if state.uid != uid:
        for name, sink in sinks.items():
            sink.bind(pipeline, name, state.uid)
    if state.head is None:
        return Claimed(state=state, survey=survey, head=None, settlement=None)
    with log.unless_fenced(state.generation):
        head = load_manifest(store, state.head)
        return Claimed(state=state, survey=survey, head=head, settlement=_redrive(state, head, sinks))


def load_manifest(store: Store, entry: LiveCheckpoint) -> Manifest:
    """Load the manifest that the log vouches for."""
    try:
        data = store.get(manifest_key(entry.checkpoint_id), max_bytes=manifests.MAX_MANIFEST_BYTES)
    except NotFound:
        raise Corrupt(
            f"the manifest of epoch {entry.epoch}, checkpoint {entry.checkpoint_id}, is missing",
            code="manifest.missing",
            hint="slackwater verify URL says what else is; restore it from a copy",
        ) from None
    return manifests.decode(data, sha256=entry.manifest_sha256, checkpoint_id=entry.checkpoint_id)


def _redrive(state: State, head: Manifest, sinks: Mapping[str, CommittingSink]) -> Settlement | None:
    """Commit the head wherever it is not committed yet, before anything else happens."""
    for name, sink in sinks.items():
        if sink.epoch() > state.epoch:
            raise Conflict(
                f"the sink {name!r} has committed epoch {sink.epoch()}, the log ends at {state.epoch}",
                code="sink.ahead",
                hint="the log is older than the sink: was the store restored from a backup?",
            )
    settled = state.settled_epoch == state.epoch
    if gone := head.sinks.keys() - sinks.keys():
        if not settled:
            raise Conflict(
                f"the sink {min(gone)!r} has output of epoch {state.epoch} to commit, and is not in the pipeline",
                code="sink.missing",
                hint="start once with the sink, so that it gets its output",
            )
        return None
    settlement = commit_sinks(head, sinks)
    return None if settled else settlement


def restore(store: Store, head: Manifest, settings: Settings, write: Callable[[str, bytes], None]) -> Holdings:
    """Hand every file of the checkpoint, verified, to ``write``."""
    return get_artifacts(store, head, settings, write)
