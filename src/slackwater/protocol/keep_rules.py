"""Which checkpoints leave, and why: pure plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from ..formats.state import LiveCheckpoint, State

# Deletes that keep failing must not make the state grow without bound.
_MAX_WAITING = 1_000


def plan_retire(state: State, keep_last: int, deleted: Collection[int] = ()) -> list[int]:
    """Plan which epochs leave when one more checkpoint is added: all but the newest ``keep_last`` and savepoints.

    Undone ones do not crowd out those that a rollback can go to: they leave when as many newer ones are on the branch.
    ``deleted`` are retired ones that the same record says are gone.
    """
    room = max(0, _MAX_WAITING - sum(entry.epoch not in deleted for entry in state.retired))
    branch = [entry.epoch for entry in state.branch]
    kept = set(branch[max(0, len(branch) + 1 - keep_last) :])
    kept |= _newest_undone(state, kept, keep_last) | {savepoint.epoch for savepoint in state.labels}
    return [entry.epoch for entry in state.live if entry.epoch not in kept][:room]


def _newest_undone(state: State, kept: set[int], keep_last: int) -> set[int]:
    oldest = min(kept, default=state.epoch + 1)
    undone = [entry.epoch for entry in state.live if entry.undone and entry.epoch > oldest]
    return set(undone[-keep_last:])


class KeepRules(msgspec.Struct, frozen=True, kw_only=True):
    """What stays: a checkpoint that any of these keeps. Times are counted back from the head's, so no clock decides.

    Savepoints stay in any case; ``labels`` are those that must be there, lest one be misspelt.
    """

    last: Annotated[int, Meta(ge=1)] | None = None
    hourly: Annotated[int, Meta(ge=1)] | None = None
    daily: Annotated[int, Meta(ge=1)] | None = None
    within_ms: Annotated[int, Meta(ge=1)] | None = None
    labels: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a checkpoint stays, and every reason for it."""

    epoch: int
    checkpoint_id: str
    created_at_ms: int
    keep: bool
    reasons: list[str]


_PERIODS_MS = {"hourly": 3_600_000, "daily": 86_400_000}


def plan_forget(state: State, rules: KeepRules) -> list[Verdict]:
    """Plan which live checkpoints stay by rule: the newest of each of the last hours or days that have one, and so on.

    An undone one is no hour's or day's, and takes no room from the branch. The head and savepoints stay in any case.
    """
    reasons: dict[int, list[str]] = {entry.epoch: _standing(state, entry) for entry in state.live}
    if rules.last is not None:
        newest = {entry.epoch for entry in state.branch[-rules.last :]}
        for epoch in sorted(newest | _newest_undone(state, newest, rules.last)):
            reasons[epoch].append(f"last {rules.last}")
    for name, most in (("hourly", rules.hourly), ("daily", rules.daily)):
        if most is not None:
            # Later ones replace earlier ones: the newest of each period stays.
            periods = {entry.created_at_ms // _PERIODS_MS[name]: entry for entry in state.branch}
            for period in sorted(periods)[-most:]:
                reasons[periods[period].epoch].append(f"{name} {_name_period(period, name)}")
    if rules.within_ms is not None and state.head is not None:
        for entry in state.live:
            if entry.created_at_ms >= state.head.created_at_ms - rules.within_ms:
                reasons[entry.epoch].append("within the time")
    return [_judge(entry, bool(reasons[entry.epoch]), reasons[entry.epoch], "no rule") for entry in state.live]


def plan_forget_one(state: State, checkpoint_id: str) -> list[Verdict]:
    """Plan that one checkpoint leaves and the others stay; the head and a savepoint stay even if named."""
    verdicts = []
    for entry in state.live:
        standing = _standing(state, entry)
        named = entry.checkpoint_id == checkpoint_id
        verdicts.append(_judge(entry, bool(standing) or not named, standing or ["not named"], "named"))
    return verdicts


def plan_retire_forgotten(state: State, verdicts: Sequence[Verdict]) -> list[int]:
    """Plan which of those that shall leave do so now; the others when fewer wait for their deletion."""
    return [verdict.epoch for verdict in verdicts if not verdict.keep][: max(0, _MAX_WAITING - len(state.retired))]


def _standing(state: State, entry: LiveCheckpoint) -> list[str]:
    """Say why a checkpoint stays whatever the rules are."""
    labels = [f"savepoint {savepoint.label}" for savepoint in state.labels if savepoint.epoch == entry.epoch]
    return ["head", *labels] if entry is state.head else labels


def _judge(entry: LiveCheckpoint, keep: bool, reasons: list[str], otherwise: str) -> Verdict:
    return Verdict(
        epoch=entry.epoch,
        checkpoint_id=entry.checkpoint_id,
        created_at_ms=entry.created_at_ms,
        keep=keep,
        reasons=reasons if keep else [otherwise],
    )


def _name_period(period: int, name: str) -> str:
    """Name an hour or a day of UTC.

    >>> _name_period(20_000, "daily"), _name_period(480_005, "hourly")
    ('2024-10-04', '2024-10-04T05')
    """
    try:
        time = datetime.fromtimestamp(period * _PERIODS_MS[name] // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(period)
    return time.strftime("%Y-%m-%dT%H" if name == "hourly" else "%Y-%m-%d")
