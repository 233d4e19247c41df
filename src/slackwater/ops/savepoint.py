"""Savepoints: labels on checkpoints that are to stay, made and removed."""

from __future__ import annotations

from ..errors import NotFound
from ..formats.change import Unlabel
from ..formats.state import Savepoint, State
from ..protocol.labels import MAX_LABEL, find_label, label_checkpoint
from ..protocol.log import Log
from .refs import LATEST_REF, resolve


def create_label(log: Log, label: str, ref: str = LATEST_REF) -> Savepoint:
    """Give the checkpoint that ``ref`` names a label, so that retention keeps it."""
    return label_checkpoint(log, label, lambda state: resolve(state, ref))


def delete_label(log: Log, label: str) -> Savepoint:
    """Take a label away; its checkpoint stays until retention drops it."""
    found: Savepoint | None = None

    def decide(state: State | None) -> Unlabel | None:
        nonlocal found
        here = find_label(state, label) if state else None
        if found is not None and (here is None or here.append_id != found.append_id):
            return None  # An earlier try has counted, though its answer was lost.
        found = get_label(state, label)
        return Unlabel(label=label)

    log.append(decide)
    if found is None:
        raise AssertionError("an append returns only after a decision")
    return found


def get_label(state: State | None, label: str) -> Savepoint:
    """Find a savepoint that must be there."""
    savepoint = find_label(state, label) if state else None
    if savepoint is None:
        raise NotFound(
            f"there is no savepoint {label[:MAX_LABEL]!r}", code="label.not_found", hint="slackwater savepoint list URL"
        )
    return savepoint
