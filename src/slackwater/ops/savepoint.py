"""Savepoints: labels on checkpoints that are to stay. Make, list and delete them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ..errors import NotFound
from ..formats.change import Unlabel
from ..formats.state import LiveCheckpoint, Savepoint, State
from ..protocol.labels import MAX_LABEL, find_label, label_checkpoint
from ..protocol.log import Log
from ..protocol.state import LeftOut
from ..settings import Settings
from .pipelines import read_pipeline
from .refs import LATEST_REF, passed_over, resolve


class SavepointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A label, and the checkpoint that has it. Of an undone one the state can be had, and nothing goes on from it."""

    label: str
    epoch: int
    checkpoint_id: str
    created_at_ms: int
    checkpoint_created_at_ms: int
    undone: bool


class CreatedSavepoint(SavepointSummary, frozen=True, kw_only=True):
    """A new savepoint, and which checkpoints were passed over on the way to its own, newest first."""

    passed_over: list[LeftOut]


def savepoint(
    url: str | os.PathLike[str],
    label: str,
    at: str | int = LATEST_REF,
    *,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> CreatedSavepoint:
    """Give the checkpoint that ``at`` names a label, so that it stays until that is deleted.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> savepoint(f"{store}/orders", "before-upgrade", at=2).epoch
    2
    >>> [(found.label, found.epoch) for found in savepoints(f"{store}/orders")]
    [('before-upgrade', 2)]
    >>> delete_savepoint(f"{store}/orders", "before-upgrade").epoch
    2
    """
    log, ref = read_pipeline(url, settings, storage_options).log, str(at)
    created = create_label(log, label, ref)
    state = cast(State, log.state)
    entry = cast(LiveCheckpoint, state.find(created.epoch))
    return CreatedSavepoint(**_facts(created, entry), passed_over=passed_over(state, ref, entry))


def savepoints(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> list[SavepointSummary]:
    """List the savepoints of a pipeline, in the order in which they were made."""
    state = read_pipeline(url, settings, storage_options).state
    entries = {entry.epoch: entry for entry in state.live}
    return [SavepointSummary(**_facts(savepoint, entries[savepoint.epoch])) for savepoint in state.labels]


def _facts(savepoint: Savepoint, entry: LiveCheckpoint) -> dict[str, Any]:
    return {
        "label": savepoint.label,
        "epoch": savepoint.epoch,
        "checkpoint_id": entry.checkpoint_id,
        "created_at_ms": savepoint.created_at_ms,
        "checkpoint_created_at_ms": entry.created_at_ms,
        "undone": entry.undone,
    }


def delete_savepoint(
    url: str | os.PathLike[str],
    label: str,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Savepoint:
    """Take a label away, and return what it was; its checkpoint stays until retention drops it."""
    pipeline = read_pipeline(url, settings, storage_options)
    return get_label(pipeline.state, label) if dry_run else delete_label(pipeline.log, label)


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
            f"there is no savepoint {str(label)[:MAX_LABEL]!r}",
            code="label.not_found",
            hint="slackwater savepoint list URL",
        )
    return savepoint
