"""Forget: retire checkpoints by rule or by name, beside a driver that may be running; retention deletes bytes.

plan ─ RETIRE ─ delete objects ─ delete manifests ─ DELETED

Whatever else waits for its deletion goes with them, so what was interrupted is run again. ``docs/spec/log.md``, rule 8,
says why no driver is disturbed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from math import isfinite
from typing import cast

import msgspec

from ..errors import Conflict, InvalidInput, NotFound
from ..failpoints import reach
from ..formats.change import Deleted, Retire
from ..formats.keys import CHECKPOINTS
from ..formats.state import LiveCheckpoint, State
from ..protocol.keep_rules import KeepRules, Verdict, plan_forget, plan_forget_one, plan_retire_forgotten
from ..protocol.latest import refuse_lost_records
from ..protocol.pipeline import Pipeline
from ..protocol.retention import Doomed, References, delete_doomed, find_all_doomed, find_doomed
from ..protocol.state import apply
from ..settings import Settings
from ..store import Store
from .pipelines import read_pipeline
from .refs import resolve
from .savepoint import get_label

# Chosen anew on each state: a label or a checkpoint may have come in between.
Choose = Callable[[State], list[Verdict]]


class Forgetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is forgotten, or would be. ``deleted_epochs`` were retired before by somebody, and their bytes waited."""

    checkpoints: list[Verdict]
    forgotten_epochs: list[int]
    deleted_epochs: list[int]
    freed_bytes: int


def forget(
    url: str | os.PathLike[str],
    ref: str | int | None = None,
    *,
    keep_last: int | None = None,
    keep_hourly: int | None = None,
    keep_daily: int | None = None,
    keep_within: float | timedelta | None = None,
    keep_labels: Iterable[str] = (),
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Forgetting:
    """Forget all checkpoints that no rule keeps, or the one that ``ref`` names, and free the bytes that were theirs.

    A checkpoint stays if any rule keeps it; ``keep_within`` is a time in seconds. The newest and savepoints always
    stay: ``keep_labels`` only sees that these are there. Interrupted at any point, the same call goes on.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> forget(f"{store}/orders", keep_last=1, dry_run=True).forgotten_epochs
    [1, 2]
    >>> forget(f"{store}/orders", 1).forgotten_epochs
    [1]
    """
    rules = _rules(
        last=keep_last,
        hourly=keep_hourly,
        daily=keep_daily,
        within_ms=None if keep_within is None else _milliseconds(keep_within),
        labels=[keep_labels] if isinstance(keep_labels, str) else list(keep_labels),
    )
    if ref is not None and rules != KeepRules():
        raise InvalidInput(
            "a checkpoint to forget is named, and rules say what to keep",
            code="option.invalid",
            hint="give the one or the other",
        )
    choose = by_rules(rules) if ref is None else by_ref(str(ref))
    pipeline = read_pipeline(url, settings, storage_options)
    return (plan_forgetting if dry_run else forget_chosen)(pipeline, choose)


def _milliseconds(time: float | timedelta) -> int | float:
    milliseconds = 1000 * (time.total_seconds() if isinstance(time, timedelta) else time)
    return round(milliseconds) if isfinite(milliseconds) else milliseconds


def _rules(**given: object) -> KeepRules:
    try:
        return msgspec.convert(given, KeepRules)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the rules are not valid: {error}",
            code="option.invalid",
            hint="every rule is at least 1, or left out; slackwater forget --help",
        ) from None


def by_rules(rules: KeepRules) -> Choose:
    """Choose by what the rules keep; a label that they name must be there."""
    if rules == KeepRules():
        raise InvalidInput(
            "no rule says what to keep, and no checkpoint to forget is named",
            code="usage.wrong",
            hint="slackwater forget URL --keep-last 10 --dry-run, or slackwater forget URL REF",
        )

    def choose(state: State) -> list[Verdict]:
        for label in rules.labels:
            get_label(state, label)
        return plan_forget(state, rules)

    return choose


def by_ref(ref: str) -> Choose:
    """Choose one checkpoint. What ``ref`` names is settled on the first state; the head and savepoints are refused."""
    found: str | None = None

    def choose(state: State) -> list[Verdict]:
        nonlocal found
        if found is None:
            found = _resolve(state, ref)
        entry = next((entry for entry in state.live if entry.checkpoint_id == found), None)
        if entry is not None:
            _refuse_to_lose(state, entry)
        return plan_forget_one(state, found)

    return choose


def _resolve(state: State, ref: str) -> str:
    try:
        return resolve(state, ref).checkpoint_id
    except NotFound:
        for entry in state.retired:
            if ref.lower() in (str(entry.epoch), entry.checkpoint_id):
                return entry.checkpoint_id  # The record was made, and its deletes were interrupted.
        raise


def _refuse_to_lose(state: State, entry: LiveCheckpoint) -> None:
    label = next((savepoint.label for savepoint in state.labels if savepoint.epoch == entry.epoch), None)
    if entry is not state.head and label is None:
        return
    raise Conflict(
        f"epoch {entry.epoch} is "
        + ("the newest, which the pipeline goes on from" if entry is state.head else f"the savepoint {label!r}"),
        code="retire.not_allowed",
        hint="slackwater list URL shows the others"
        if entry is state.head
        else f"slackwater savepoint delete URL {shlex.quote(str(label))} first",
    )


def plan_forgetting(pipeline: Pipeline, choose: Choose) -> Forgetting:
    """Say what ``forget_chosen`` would do now. Nothing is changed."""
    store, state = pipeline.store, _read(pipeline)
    verdicts = choose(state)
    forgotten = [verdict.epoch for verdict in verdicts if not verdict.keep]
    after = apply(state, Retire(epochs=forgotten), number=0, append_id="", at_ms=0)
    references = References(pipeline)
    doomed = find_doomed(after, references.of_live(after), references)
    return Forgetting(
        checkpoints=verdicts,
        forgotten_epochs=forgotten,
        deleted_epochs=[entry.epoch for entry in state.retired],
        freed_bytes=_measure(store, doomed),
    )


def forget_chosen(pipeline: Pipeline, choose: Choose) -> Forgetting:
    """Retire what ``choose`` lets go, and delete its bytes. Interrupted at any point, the same call goes on."""
    references = References(pipeline)
    waiting = [entry.epoch for entry in _read(pipeline).retired]
    verdicts: dict[int, Verdict] = {}
    freed_bytes, more = 0, True

    def decide(state: State | None) -> Retire | None:
        nonlocal more
        now = choose(cast(State, state))
        verdicts.update({verdict.epoch: verdict for verdict in now})
        leaving = plan_retire_forgotten(cast(State, state), now)
        more = len(leaving) < sum(not verdict.keep for verdict in now)
        return Retire(epochs=leaving) if leaving else None

    while more:
        reach("forget.retire.before")
        pipeline.log.append(decide)
        reach("forget.retire.after")
        freed_bytes += _delete(pipeline, references)
    pipeline.log.trim()
    told = sorted(verdicts.values(), key=lambda verdict: verdict.epoch)
    return Forgetting(
        checkpoints=told,
        forgotten_epochs=[verdict.epoch for verdict in told if not verdict.keep],
        deleted_epochs=waiting,
        freed_bytes=freed_bytes,
    )


def _read(pipeline: Pipeline) -> State:
    """Read the newest state. Of an older one nothing is forgotten: newer checkpoints may need those bytes."""
    pipeline.log.read()
    refuse_lost_records(pipeline.store, pipeline.log)
    return pipeline.state


def _delete(pipeline: Pipeline, references: References) -> int:
    """Delete what is retired, say so on record, and return how many bytes went."""
    store, log = pipeline.store, pipeline.log
    if not pipeline.state.retired:
        return 0
    doomed = find_all_doomed(None, references)
    freed_bytes = _measure(store, doomed)
    delete_doomed(store, doomed)

    def decide(state: State | None) -> Deleted | None:
        # Whoever else deletes may have said so; then there is nothing left to say.
        left = {entry.epoch for entry in cast(State, state).retired} & set(doomed.epochs)
        return Deleted(epochs=sorted(left)) if left else None

    log.append(decide)
    reach("forget.deleted.after")
    return freed_bytes


def _measure(store: Store, doomed: Doomed) -> int:
    keys = {*doomed.objects, *doomed.manifests}
    return sum(entry.size_bytes for entry in store.list(CHECKPOINTS) if entry.key in keys) if keys else 0
