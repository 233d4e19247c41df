"""Reads a checkpoint: its manifest and its bytes, verified. Damage is believed when it was read twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ..errors import Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from ..formats import manifest as manifests
from ..formats.keys import manifest_key
from ..formats.manifest import Manifest
from ..formats.state import LiveCheckpoint, RetiredCheckpoint
from ..settings import Settings
from ..store import Store
from .artifacts import get_artifacts
from .state import UNDONE, LeftOut

# What is wrong with stored things, as opposed to a store that does not answer.
DAMAGE = (Corrupt, InvalidInput, NotFound, Unsupported)

Read = TypeVar("Read")


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


def verify_restorable(store: Store, entry: LiveCheckpoint, settings: Settings) -> Manifest:
    """Read every byte that the checkpoint needs, verified, and keep only the manifest."""

    def verify() -> Manifest:
        manifest = load_manifest(store, entry)
        get_artifacts(store, manifest, settings, lambda path, parts: None)
        return manifest

    return twice(verify)


def newest_verified(
    entries: Sequence[LiveCheckpoint],
    try_out: Callable[[LiveCheckpoint], object],
    *,
    damage: tuple[type[SlackwaterError], ...] = DAMAGE,
) -> tuple[LiveCheckpoint | None, list[LeftOut]]:
    """Find the newest of these that was not undone and can be restored; say which were skipped and why, newest first.

    ``try_out`` restores a checkpoint byte for byte, and raises what is wrong with it.
    """
    skipped: list[LeftOut] = []
    for entry in reversed(entries):
        try:
            if not entry.undone:
                try_out(entry)
                return entry, skipped
            reason = UNDONE
        except damage as error:
            reason = error.message
        skipped.append(LeftOut(epoch=entry.epoch, reason=reason))
    return None, skipped
