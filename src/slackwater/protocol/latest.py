"""The pointer ``_latest``: only a hint. Where it is ahead of the log, records were lost."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import Corrupt, InvalidInput, NotFound, Unsupported
from ..formats import manifest as manifests
from ..formats.ids import parse_checkpoint_id
from ..formats.keys import LATEST, manifest_key
from ..formats.state import State
from ..store import Store
from .log import Log
from .log_damage import MAX_EPOCH


class _Told(msgspec.Struct):
    """What a manifest says of itself, whatever release wrote the rest."""

    checkpoint_id: str
    uid: str
    epoch: Annotated[int, Meta(le=MAX_EPOCH)]


def read_pointer(store: Store) -> str | None:
    """Read ``_latest``; None when it says nothing."""
    try:
        return parse_checkpoint_id(store.get(LATEST, max_bytes=100).decode("ascii", "replace"))
    except (Corrupt, InvalidInput, NotFound, Unsupported):
        return None


def epoch_ahead(store: Store, state: State, pointer: str) -> int | None:
    """Tell the epoch of a checkpoint that the log does not know, and that is newer than all that it knows.

    The pointer is written after the record, so it is never ahead: where it is, records are gone. No record vouches for
    what its manifest says, so this is to refuse by, and never to go on from.
    """
    if pointer in state.checkpoint_ids:
        return None
    try:
        data = store.get(manifest_key(pointer), max_bytes=manifests.MAX_MANIFEST_BYTES)
        told = msgspec.json.decode(data, type=_Told)
    except (Corrupt, InvalidInput, NotFound, Unsupported, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    ours = (told.checkpoint_id, told.uid) == (pointer, state.uid)
    return told.epoch if ours and told.epoch > state.epoch else None


def refuse_lost_records(store: Store, log: Log) -> None:
    """Refuse a log whose newest records are gone: who goes on from an older state deletes what the lost ones name.

    Rule 6: the hint chooses no state. One that is missing, old, or leads to nothing that is readable refuses nothing.
    """
    state, pointer = log.state, read_pointer(store)
    if state is None or pointer is None or epoch_ahead(store, state, pointer) is None:
        return
    # A driver that runs may have appended it meanwhile.
    state = log.read()
    if state is not None and (epoch := epoch_ahead(store, state, pointer)) is not None:
        raise Corrupt(
            f"{LATEST} names epoch {epoch}, and the log ends at {state.epoch}: newer records have been lost",
            code="log.records_lost",
            hint=f"restore log/ from a copy; to go on from epoch {state.epoch} all the same, and lose what came after "
            f"it, delete {LATEST}. Nothing was changed",
            epoch=epoch,
        )
