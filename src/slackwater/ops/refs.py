"""How a label, a time, an epoch or an id becomes a checkpoint: the forms of a REF."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

from ..errors import InvalidInput, NotFound
from ..formats.state import LiveCheckpoint, State
from ..protocol.labels import ID_PREFIX, MAX_LABEL, REF_WORDS, find_label, newest
from ..protocol.state import UNDONE, LeftOut

LATEST_REF, NEWEST_VERIFIED = REF_WORDS
_MIN_PREFIX = 4
_MAX_CANDIDATES = 10
_EPOCH = re.compile(r"[0-9]{1,16}")
_BEGINNING = datetime.fromtimestamp(0, UTC)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that a REF has led to, and which ones were passed over on the way, newest first."""

    epoch: int
    checkpoint_id: str
    created_at_ms: int
    passed_over: list[LeftOut]


def choose(state: State, ref: str) -> Choice:
    """Find the checkpoint that ``ref`` names, and say how it came to that one."""
    entry = resolve(state, ref)
    return Choice(
        epoch=entry.epoch,
        checkpoint_id=entry.checkpoint_id,
        created_at_ms=entry.created_at_ms,
        passed_over=passed_over(state, ref, entry),
    )


def resolve(state: State, ref: str) -> LiveCheckpoint:
    """Find the live checkpoint that ``ref`` names.

    Tried in this order: ``latest``, ``@TIME`` (the newest checkpoint not after it, of those that were not undone), a
    label, an epoch, an id or the beginning of one. The rules for labels keep these apart; only a label of hex digits
    can hide the beginning of an id.
    """
    head = newest(state)
    if ref == LATEST_REF:
        return head
    if ref.startswith("@"):
        return _resolve_time(state.branch, ref)
    savepoint = find_label(state, ref)
    number = savepoint.epoch if savepoint else int(ref) if _EPOCH.fullmatch(ref) else None
    if number == 0:
        raise InvalidInput("there is no epoch 0: they begin at 1", code="ref.invalid", hint="slackwater list URL")
    entry = state.find(number) if number is not None else None
    retired = entry is None and number is not None and 0 < number <= state.epoch
    # Too few digits for an id, and an epoch that there was: that is what was meant.
    if entry is None and not (retired and len(ref) < _MIN_PREFIX) and ID_PREFIX.fullmatch(ref.lower()):
        entry = _resolve_id(state, ref.lower())
    if entry is None:
        raise NotFound(
            f"epoch {number} is no longer kept" if retired else f"no checkpoint is named {ref[:MAX_LABEL]!r}",
            code="checkpoint.not_found",
            hint="slackwater list URL",
        )
    return entry


def parse_time(ref: str) -> datetime:
    """Parse ``@2026-11-15T10:00Z``; a time without a zone comes back without one, and counts as UTC."""
    try:
        return datetime.fromisoformat(ref.removeprefix("@"))
    except ValueError:
        raise InvalidInput(
            f"{ref[:60]!r} is not a time", code="ref.invalid", hint="write ISO 8601, like @2026-11-15T10:00Z"
        ) from None


def format_zone(ref: str) -> str:
    """Say what a time without a zone is taken for."""
    return "" if parse_time(ref).tzinfo else " (no zone was given: read as UTC)"


def passed_over(state: State, ref: str, entry: LiveCheckpoint) -> list[LeftOut]:
    """Say which checkpoints were passed over on the way from ``ref`` to the one that it names, newest first."""
    if ref.startswith("@"):
        at_ms = _to_ms(ref)
        passed = [e for e in state.live if e.undone and e.epoch > entry.epoch and e.created_at_ms <= at_ms]
    elif ref == LATEST_REF and entry.rollback_to is not None:
        passed = [e for e in state.live if e.undone and e.epoch > entry.rollback_to]
    else:
        passed = []
    return [LeftOut(epoch=e.epoch, reason=UNDONE) for e in reversed(passed)]


def _to_ms(ref: str) -> int:
    """Tell the last millisecond that a time means: written without a fraction, it is all of its second."""
    time = parse_time(ref)
    at_ms = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _BEGINNING) // timedelta(milliseconds=1)
    return at_ms if "." in ref or "," in ref else at_ms + 999


def _resolve_time(candidates: list[LiveCheckpoint], ref: str) -> LiveCheckpoint:
    at_ms = _to_ms(ref)
    entry = next((entry for entry in reversed(candidates) if entry.created_at_ms <= at_ms), None)
    if entry is None:
        raise NotFound(
            f"no checkpoint that is kept, and not undone, was made at {ref[1:]}{format_zone(ref)} or before it",
            code="checkpoint.not_found",
            hint="slackwater list URL",
        )
    return entry


def _resolve_id(state: State, prefix: str) -> LiveCheckpoint | None:
    found = [entry for entry in state.live if entry.checkpoint_id.startswith(prefix)]
    if found and len(prefix) < _MIN_PREFIX:
        raise InvalidInput(
            f"{prefix!r} is too short for the beginning of an id",
            code="ref.invalid",
            hint=f"give at least {_MIN_PREFIX} characters",
        )
    if len(found) > 1:
        some = ", ".join(f"{entry.checkpoint_id} (epoch {entry.epoch})" for entry in found[-_MAX_CANDIDATES:])
        raise InvalidInput(
            f"{len(found)} checkpoints begin with {prefix!r}: {'… ' if len(found) > _MAX_CANDIDATES else ''}{some}",
            code="ref.invalid",
            hint="give more characters of the id, or the epoch",
            candidates=[entry.checkpoint_id for entry in found],
        )
    return found[0] if found else None
