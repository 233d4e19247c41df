"""A damaged newest record: what it may have said, and the sound one before it. ``ops/repair.py`` goes on from that."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress
from typing import cast

import msgspec

from ..errors import Code, Corrupt, NotFound, Unsupported
from ..formats import manifest as manifests
from ..formats import record as records
from ..formats.keys import CHECKPOINTS, ManifestKey, manifest_key, parse_key, record_key
from ..formats.manifest import Manifest
from ..formats.record import Record
from ..formats.state import State
from ..store import Store

# Half of all numbers: no pipeline gets there, and one that went on from a manifest that says more would soon end.
MAX_EPOCH = 2**52
_TRACELESS = "a claim, a release, a savepoint, checkpoints retired or deleted"


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The damaged records, and what tells something of them.

    ``seen`` tells the bytes that were read of each damaged record. ``manifests`` are those that the record before does
    not name, newer than its epoch: written for one of the damaged records, or for one that was never appended.
    ``unreadable`` are checkpoints that it does not name, either, and whose manifests cannot be read, or not be right.
    """

    seen: dict[int, str]
    before: Record | None
    before_sha256: str | None
    manifests: list[Manifest]
    unreadable: list[str]

    @property
    def numbers(self) -> list[int]:
        return sorted(self.seen)

    @property
    def number(self) -> int:
        return max(self.seen)

    @property
    def state(self) -> State:
        """What there is to go on from, where a sound record was found."""
        return cast(Record, self.before).state

    @property
    def guesses(self) -> list[str]:
        """What the damaged records may have been."""
        found = [
            f"checkpoint {manifest.epoch}"
            if manifest.rollback is None
            else f"a rollback to {manifest.rollback.to_epoch} as epoch {manifest.epoch}"
            for manifest in sorted(self.manifests, key=lambda manifest: manifest.epoch)
        ]
        found += [f"the checkpoint {checkpoint_id}, which cannot be made out" for checkpoint_id in self.unreadable]
        return [*found, _TRACELESS]


def look_back(store: Store, number: int, *, kept_records: int) -> Lost:
    """Look for the newest sound record from ``number`` on downwards, and for what it does not name.

    Only among records that are never trimmed: a writer that slept may have put another in the place of an older one.
    """
    seen: dict[int, str] = {}
    before: Record | None = None
    while number > 0 and len(seen) < kept_records:
        fingerprint, before = read_record(store, number)
        # Of a missing one nobody can tell what stood there, nor who may still put something there.
        if before is not None or fingerprint is None:
            break
        seen[number] = fingerprint
        number -= 1
    sha256 = fingerprint if before else None
    if before is None or not seen:
        return Lost(seen=seen, before=before, before_sha256=sha256, manifests=[], unreadable=[])
    found: list[Manifest] = []
    unreadable: list[str] = []
    known = set(before.state.checkpoint_ids)
    for checkpoint_id in _stored(store):
        if checkpoint_id not in known:
            with suppress(NotFound):
                manifest = _read(store, checkpoint_id) or _read(store, checkpoint_id)
                if manifest is None or manifest.uid != before.state.uid or manifest.epoch > MAX_EPOCH:
                    unreadable.append(checkpoint_id)
                elif manifest.epoch > before.state.epoch:
                    found.append(manifest)
    # No record vouches for these. What says how far sinks went back is there twice, as an epoch and as an id.
    pairs = {(entry.epoch, entry.checkpoint_id) for entry in before.state.live}
    pairs |= {(manifest.epoch, manifest.checkpoint_id) for manifest in found}
    wrong = [m for m in found if m.rollback and (m.rollback.to_epoch, m.rollback.to_id) not in pairs]
    found = [manifest for manifest in found if manifest not in wrong]
    unreadable += [manifest.checkpoint_id for manifest in wrong]
    return Lost(seen=seen, before=before, before_sha256=sha256, manifests=found, unreadable=unreadable)


def read_record(store: Store, number: int) -> tuple[str | None, Record | None]:
    """Read a record and its digest; of a damaged one what tells its bytes from others, of a missing one nothing."""
    try:
        data = store.get(record_key(number), max_bytes=records.MAX_RECORD_BYTES)
    except NotFound:
        return None, None
    except Corrupt as damage:
        if damage.code != Code.STORE_TOO_LARGE:
            raise  # It was not read, and may be sound.
        return hashlib.sha256(damage.code.encode()).hexdigest(), None
    try:
        record = records.decode(data, number=number)
    except Corrupt:
        return hashlib.sha256(data).hexdigest(), None
    return records.digest(data), record


def refuse_missing_log(state: State | None, keys: Collection[str]) -> None:
    """Refuse a store with objects and without a record, rule 6: only an empty one is a fresh start."""
    if state is None and keys:
        raise Corrupt(
            f"the store holds {len(keys)} objects of checkpoints, and no log that says which of them count",
            code=Code.LOG_MISSING,
            hint="restore the folder log/ from a backup or a replica; nothing was changed",
        )


def explain(lost: Lost, damage: Corrupt) -> Corrupt:
    """Say what was lost with the damaged records, and what can be done."""
    before, first = lost.before, lost.numbers[0]
    if before is None:
        what = f"no sound record was found before it, and the log cannot go on from an older one than {first}"
        hint = "keep the store as it is; restore log/ from a backup or a replica"
    else:
        which = "it" if len(lost.numbers) == 1 else f"each of the records {first} to {lost.number}, all damaged,"
        what = f"{which} may have been {' or '.join(lost.guesses)}; record {before.number} before it "
        what += f"ends at epoch {before.state.epoch}"
        hint = f"slackwater repair URL shows how to go on from record {before.number}; or restore log/ from a copy"
    return Corrupt(
        f"{damage.message}; {what}",
        code=Code.LOG_CORRUPT,
        hint=hint,
        number=lost.number,
        damaged=lost.numbers,
        before=before.number if before else None,
        epoch=before.state.epoch if before else None,
        may_have_been=lost.guesses if before else [],
    )


def _stored(store: Store) -> list[str]:
    """Name the checkpoints whose manifests are in the store, whoever wrote them."""
    ids = []
    for listed in store.list(CHECKPOINTS):
        with suppress(Corrupt):
            if isinstance(key := parse_key(listed.key), ManifestKey):
                ids.append(key.checkpoint_id)
    return ids


def _read(store: Store, checkpoint_id: str) -> Manifest | None:
    """Read a manifest that no record vouches for; None when it is damaged."""
    with suppress(Corrupt, Unsupported):
        data = store.get(manifest_key(checkpoint_id), max_bytes=manifests.MAX_MANIFEST_BYTES)
        return manifests.decode(data, sha256=hashlib.sha256(data).hexdigest(), checkpoint_id=checkpoint_id)
    return None
