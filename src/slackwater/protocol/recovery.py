"""Backward: from the newest record to a running state.

survey ─ read ─ claim ─ load manifest ─ re-drive sinks: commit, or undo ─ restore, every byte verified

``checkpointer.py`` is this page mirrored; the sweep of what crashed attempts left is in ``retention.py``, what follows
when the head is damaged in ``fallback.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from ..clock import Clock
from ..errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Claim, Settlement
from ..formats.keys import CHECKPOINTS, LATEST, manifest_key
from ..formats.manifest import Manifest
from ..formats.state import LiveCheckpoint, RetiredCheckpoint, State
from ..ops.refs import UNDONE, LeftOut
from ..settings import Settings
from ..store import Store
from .artifacts import Holdings, Write, get_artifacts
from .checkpoint import CommittingSink, drive_sinks, find_absent
from .latest import refuse_lost_records
from .log import Log

# What is wrong with stored things, as opposed to a store that does not answer.
DAMAGE = (Corrupt, InvalidInput, NotFound, Unsupported)

Read = TypeVar("Read")


class Survey(msgspec.Struct, frozen=True):
    """What lay in the store and at the sinks before the claim: only of this may the sweep delete anything."""

    keys: list[str]
    attempts: dict[str, list[str]]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's claim, and what it had surveyed before."""

    state: State
    survey: Survey


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint to go on from, which all sinks now have, and how it was settled if that is news."""

    manifest: Manifest
    settlement: Settlement | None


def claim(
    store: Store, log: Log, clock: Clock, *, pipeline: str, driver: str, sinks: Mapping[str, CommittingSink]
) -> Claimed:
    """Become the pipeline's driver: every older one is fenced."""
    # Before the claim, so that nothing of a newer driver is in it.
    keys = [entry.key for entry in store.list(CHECKPOINTS)]
    # What is known may be old: the claim comes after the newest record all the same. But that there is nothing must be
    # read after the keys: objects follow a claim.
    state = log.state or log.read()
    refuse_missing_log(state, keys)
    if LATEST in keys:
        refuse_lost_records(store, log)
    uid = state.uid if state else clock.random_id()
    for name, sink in sinks.items():
        sink.bind(pipeline, name, uid)
    attempts = {name: sink.staged() for name, sink in sinks.items()} if state else {}
    survey = Survey(keys, attempts)
    reach("claim.before")
    state = log.append(lambda _state: Claim(uid=uid, driver=driver))
    reach("claim.after")
    if state.uid != uid:
        for name, sink in sinks.items():
            sink.bind(pipeline, name, state.uid)
    return Claimed(state=state, survey=survey)


def refuse_missing_log(state: State | None, keys: Collection[str]) -> None:
    """Refuse a store with objects and without a record, rule 6: only an empty one is a fresh start."""
    if state is None and keys:
        raise Corrupt(
            f"the store holds {len(keys)} objects of checkpoints, and no log that says which of them count",
            code="log.missing",
            hint="restore the folder log/ from a backup or a replica; nothing was changed",
        )


def redrive(
    store: Store, log: Log, state: State, sinks: Mapping[str, CommittingSink], dropped: Collection[str] = ()
) -> Head | None:
    """Drive the head into every sink, before anything else happens: commit it, or undo what a rollback undoes."""
    if state.head is None:
        return None
    with log.unless_fenced(state.generation):
        head = load_manifest(store, state.head)
        return Head(manifest=head, settlement=_redrive(state, head, sinks, dropped))


def twice(read: Callable[[], Read]) -> Read:
    """Do again what finds damage, before that is believed: nothing is given up for good because of one bad read."""
    with suppress(*DAMAGE):
        return read()
    return read()


def load_manifest(store: Store, entry: LiveCheckpoint | RetiredCheckpoint) -> Manifest:
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


def load_if_sound(store: Store, entry: LiveCheckpoint) -> Manifest | None:
    """Load a manifest; None when it cannot be had, whatever is wrong with it."""
    with suppress(*DAMAGE):
        return twice(lambda: load_manifest(store, entry))
    return None


def refuse_renamed(manifest: Manifest, name: str) -> None:
    """Refuse a start under another name: sinks remember epochs under the pipeline's, and would find none of theirs."""
    if manifest.pipeline != name:
        raise InvalidInput(
            f"the folder of {name!r} holds the pipeline {manifest.pipeline!r}",
            code="pipeline.renamed",
            hint=f"rename the folder back, and start it as {manifest.pipeline!r}; another name begins anew",
        )


def _redrive(
    state: State, head: Manifest, sinks: Mapping[str, CommittingSink], dropped: Collection[str]
) -> Settlement | None:
    for name, sink in sinks.items():
        if sink.epoch() > state.epoch:
            raise Conflict(
                f"the sink {name!r} has committed epoch {sink.epoch()}, the log ends at {state.epoch}",
                code="sink.ahead",
                hint="the log is older than the sink: was the store restored from a backup?",
            )
    settled = state.settled_epoch == state.epoch
    left = find_absent(head, sinks) - set(dropped)
    if left and not settled:
        name, what = min(left), "rows to take back" if head.rollback else "output to commit"
        output = head.sinks[name]
        now = f"at {sinks[name].address} ({sinks[name].kind})" if name in sinks else "not"
        raise Conflict(
            f"the sink {name!r} has {what} for epoch {state.epoch} at {output.address} ({output.kind}), and is {now} "
            "in the pipeline",
            code="sink.missing",
            hint="start once with the sink as it was; or once without it, and with the option "
            f"drop_sink=[{name!r}], which gives this up on record",
        )
    settlement = drive_sinks(head, sinks)
    return None if settled else settlement


def restore(store: Store, head: Manifest, settings: Settings, write: Write) -> Holdings:
    """Hand every file of the checkpoint, verified, to ``write``."""
    return get_artifacts(store, head, settings, write)


def verify_restorable(store: Store, entry: LiveCheckpoint, settings: Settings) -> Manifest:
    """Read every byte that the checkpoint needs, verified, and keep but the manifest."""

    def verify() -> Manifest:
        manifest = load_manifest(store, entry)
        restore(store, manifest, settings, lambda path, parts: None)
        return manifest

    return twice(verify)


def newest_verified(
    entries: Sequence[LiveCheckpoint],
    try_out: Callable[[LiveCheckpoint], object],
    *,
    damage: tuple[type[SlackwaterError], ...] = DAMAGE,
) -> tuple[LiveCheckpoint | None, list[LeftOut]]:
    """Find the newest of these that was not undone and can be restored; say what was passed over, newest first.

    ``try_out`` restores a checkpoint byte for byte, and raises what is wrong with it.
    """
    passed: list[LeftOut] = []
    for entry in reversed(entries):
        try:
            if not entry.undone:
                try_out(entry)
                return entry, passed
            reason = UNDONE
        except damage as error:
            reason = error.message
        passed.append(LeftOut(epoch=entry.epoch, reason=reason))
    return None, passed
