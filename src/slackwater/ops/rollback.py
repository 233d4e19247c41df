"""Rollback as users call it: by a pipeline's URL, with its sinks looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

from ..clock import SystemClock, this_process
from ..errors import Conflict, Corrupt, SlackwaterError
from ..failpoints import reach
from ..formats.manifest import SinkOutput
from ..formats.state import LiveCheckpoint, State
from ..protocol import recovery
from ..protocol import rollback as rewind
from ..protocol.checkpoint import release
from ..protocol.pipeline import Pipeline
from ..protocol.rollback import Plan, RollbackPlan
from ..protocol.state import LeftOut, find_target
from ..settings import Settings
from ..sinks.registry import Sink, open_sink
from .pipelines import read_pipeline
from .refs import NEWEST_VERIFIED, passed_over, resolve


def plan_rollback(
    url: str | os.PathLike[str],
    to: str | int,
    *,
    keep: Iterable[str] = (),
    sinks: Mapping[str, Sink] | None = None,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RollbackPlan:
    """Plan a rollback of the pipeline ``{store}/{name}``: what each sink will do, from where sources are read again.

    ``to`` is a REF, or ``newest-verified``. ``sinks`` by name are those that need options to be opened;
    ``storage_options`` are the store's own.
    """
    settings = settings or Settings()
    pipeline = read_pipeline(os.fspath(url), settings, storage_options)
    return _plan(pipeline, str(to), listed(keep), sinks or {}, settings)


def rollback(
    url: str | os.PathLike[str],
    to: str | int,
    *,
    keep: Iterable[str] = (),
    sinks: Mapping[str, Sink] | None = None,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RollbackPlan:
    """Roll a pipeline back, on record; its next start undoes in the sinks. A driver that runs is fenced.

    ``keep`` names sinks whose rows shall stay. Refused, with nothing changed, where a sink says that it would refuse.
    With ``done`` in the plan that is returned, nothing was done: a driver that runs goes on.
    """
    settings = settings or Settings()
    pipeline, keep = read_pipeline(os.fspath(url), settings, storage_options), listed(keep)
    planned = _plan(pipeline, str(to), keep, sinks or {}, settings)
    if planned.done:
        return planned
    check_refused(planned, code="rollback.refused")
    clock, log = SystemClock(), pipeline.log
    driver = this_process("rollback")
    # Whatever puts state into a pipeline is a driver: a running one is fenced here, and cannot add an epoch.
    state = recovery.claim(pipeline.store, log, clock, pipeline=pipeline.name, driver=driver, sinks={}).state
    try:
        rewind.roll_back(pipeline.store, log, clock, planned.to_epoch, keep=keep)
    except SlackwaterError:
        with suppress(SlackwaterError):  # the first error is the one to tell
            release(log, state.generation)
        raise
    reach("rollback.release.before")
    release(log, state.generation)
    return planned


def listed(keep: Iterable[str]) -> list[str]:
    """Take one name for a list of it."""
    return [keep] if isinstance(keep, str) else list(keep)


def check_refused(plan: Plan, *, code: str) -> None:
    """Stop before anything is changed where a sink would refuse."""
    if refused := plan.refused:
        raise Conflict(
            "; ".join(f"the sink {sink.name!r} would refuse: {sink.detail}" for sink in refused),
            code=code,
            hint=f"keep={[sink.name for sink in refused]} (--keep NAME) leaves their rows as they are",
        )


def _plan(pipeline: Pipeline, to: str, keep: list[str], sinks: Mapping[str, Sink], settings: Settings) -> RollbackPlan:
    target, passed = _find(pipeline, to, settings)
    try:
        manifest = recovery.verify_restorable(pipeline.store, target, settings)
    except Corrupt:
        # A driver that runs may have retired it meanwhile: that is no damage.
        find_target(cast(State, pipeline.log.read()), target.epoch)
        raise

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        sink = sinks.get(name) or open_sink(output.kind, output.address)
        if sink is not None:
            # Its name is in the manifest; the URL may lead here through a link.
            sink.bind(manifest.pipeline, name, pipeline.state.uid)
        return sink

    return rewind.plan_rollback(pipeline.store, pipeline.state, target.epoch, open_one, keep=keep, passed_over=passed)


def _find(pipeline: Pipeline, to: str, settings: Settings) -> tuple[LiveCheckpoint, list[LeftOut]]:
    """Find the checkpoint that ``to`` names, a REF or the newest one that verifies; and what that has passed over."""
    state = pipeline.state
    if to == NEWEST_VERIFIED:
        return rewind.get_newest_verified(
            state, rewind.targets(state), lambda entry: recovery.verify_restorable(pipeline.store, entry, settings)
        )
    target = resolve(state, to)
    return target, passed_over(state, to, target)
