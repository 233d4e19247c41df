"""Pure plans: where new files go, which checkpoints leave, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from ..settings import Settings
from .batch import MAX_ENTRIES
from .records import LiveCheckpoint, State

# Deletes that keep failing must not make the state grow without bound.
_MAX_WAITING = 1_000


class NewFile(msgspec.Struct, frozen=True):
    """A file to be stored. ``group`` is the partition that it belongs to; None for the files beside the state."""

    path: str
    size_bytes: int
    group: str | None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    inline: list[str]
    batches: list[list[str]]
    objects: dict[str, list[str]]


def plan_placement(files: Sequence[NewFile], settings: Settings) -> Placement:
    """Plan by size: a large partition gets an object, the rest goes into batches, and what is tiny goes inline.

    State goes inline only if all of it fits, because inline bytes are carried again by every later checkpoint that
    needs them; a batch is referenced.

    >>> plan_placement([NewFile("offsets/0", 100, None), NewFile("state/0/0/1.zip", 2**21, "0")], Settings()).objects
    {'0': ['state/0/0/1.zip']}
    """
    sizes: dict[str, int] = {}
    for file in files:
        if file.group is not None:
            sizes[file.group] = sizes.get(file.group, 0) + file.size_bytes
    objects: dict[str, list[str]] = {}
    small: list[NewFile] = []
    for file in files:
        if file.group is not None and sizes[file.group] >= settings.object_min_bytes:
            objects.setdefault(file.group, []).append(file.path)
        else:
            small.append(file)
    inline = _fit_inline([file for file in small if file.group is None], settings.inline_budget_bytes, settings)
    state = [file for file in small if file.group is not None]
    left = settings.inline_budget_bytes - sum(_inline_bytes(file) for file in inline)
    tiny = _fit_inline(state, left, settings)
    if len(tiny) == len(state):
        inline += tiny
    taken = {file.path for file in inline}
    batches: list[list[str]] = []
    room = 0
    for file in small:
        if file.path in taken:
            continue
        if not batches or file.size_bytes > room or len(batches[-1]) == MAX_ENTRIES:
            batches.append([])
            room = settings.batch_target_bytes
        batches[-1].append(file.path)
        room -= file.size_bytes
    return Placement(inline=sorted(taken), batches=batches, objects=objects)


def _fit_inline(files: Sequence[NewFile], budget: int, settings: Settings) -> list[NewFile]:
    fitting = []
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        budget -= _inline_bytes(file)
        if file.size_bytes > settings.inline_max_bytes or budget < 0:
            break
        fitting.append(file)
    return fitting


def _inline_bytes(file: NewFile) -> int:
    return 4 * ((file.size_bytes + 2) // 3)  # base64


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
    """What stays: a checkpoint that any of these keeps. Times are counted back from the head's, so no clock decides."""

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
