"""Rollback as users call it: by a pipeline's URL, with its sinks looked at."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import cast

from .. import recovery
from ..errors import Conflict, Corrupt, NotFound
from ..failpoints import reach
from ..formats.manifest import SinkOutput
from ..formats.records import LiveCheckpoint, Release, State, find_target
from ..inspect.pipelines import Pipeline, open_pipeline
from ..labels import resolve
from ..rewind import RollbackPlan, newest_verified, roll_back, verify_restorable
from ..rewind import plan_rollback as plan
from ..settings import Settings
from ..world import RealWorld
from .sinks import Sink, open_sink

NEWEST_VERIFIED = "newest-verified"


def plan_rollback(
    url: str,
    to: str,
    *,
    keep: Iterable[str] = (),
    sinks: Mapping[str, Sink] | None = None,
    settings: Settings | None = None,
) -> RollbackPlan:
    """Plan a rollback of the pipeline ``{store}/{name}``: what each sink will do, from where sources are read again.

    ``to`` is a REF, or ``newest-verified``. ``sinks`` by name are those that need options to be opened.
    """
    settings = settings or Settings()
    return _plan(open_pipeline(url, settings), to, list(keep), sinks or {}, settings)


def rollback(
    url: str,
    to: str,
    *,
    keep: Iterable[str] = (),
    sinks: Mapping[str, Sink] | None = None,
    settings: Settings | None = None,
) -> RollbackPlan:
    """Roll a pipeline back, on record; its next start undoes in the sinks. A driver that runs is fenced.

    ``keep`` names sinks whose rows shall stay. Refused, with nothing changed, where a sink says that it would refuse.
    """
    settings = settings or Settings()
    pipeline, keep = open_pipeline(url, settings), list(keep)
    planned = _plan(pipeline, to, keep, sinks or {}, settings)
    if planned.done:
        return planned
    if planned.refused:
        raise Conflict(
            "; ".join(f"the sink {sink.name!r} would refuse: {sink.detail}" for sink in planned.refused),
            code="rollback.refused",
            hint=f"keep={[sink.name for sink in planned.refused]} (--keep NAME) leaves their rows as they are",
        )
    world, log = RealWorld(), pipeline.log
    driver = f"{socket.gethostname()}:{os.getpid()} rollback"
    # Whatever puts state into a pipeline is a driver: a running one is fenced here, and cannot add an epoch.
    state = recovery.claim(pipeline.store, log, world, pipeline=pipeline.name, driver=driver, sinks={}).state
    roll_back(pipeline.store, log, world, planned.to_epoch, keep=keep)
    reach("rollback.release.before")
    log.append(
        lambda _state: Release(generation=state.generation, settled=None, deleted=[]), generation=state.generation
    )
    return planned


def _plan(pipeline: Pipeline, to: str, keep: list[str], sinks: Mapping[str, Sink], settings: Settings) -> RollbackPlan:
    target = find(pipeline, to, settings)
    try:
        verify_restorable(pipeline.store, target, settings)
    except Corrupt:
        # A driver that runs may have retired it meanwhile: that is no damage.
        find_target(cast(State, pipeline.log.read()), target.epoch)
        raise

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        sink = sinks.get(name) or open_sink(output.kind, output.address)
        if sink is not None:
            sink.bind(pipeline.name, name, pipeline.state.uid)
        return sink

    return plan(pipeline.store, pipeline.state, target.epoch, open_one, keep=keep)


def find(pipeline: Pipeline, to: str, settings: Settings) -> LiveCheckpoint:
    """Find the checkpoint that ``to`` names: a REF, or the newest one that verifies."""
    if to != NEWEST_VERIFIED:
        return resolve(pipeline.state, to)
    return require_verified(newest_verified(pipeline.store, pipeline.state, settings), pipeline.state)


def require_verified(found: LiveCheckpoint | None, state: State) -> LiveCheckpoint:
    """Refuse to go on when no checkpoint of the branch can be restored."""
    if state.head is None:
        raise NotFound(
            "the pipeline has no checkpoint yet", code="checkpoint.none", hint="start it: a micro-batch makes one"
        )
    if found is None:
        raise Corrupt(
            f"none of the {len(state.branch)} live checkpoints can be restored",
            code="head.none_verifies",
            hint="slackwater verify URL --read-data names every damaged object; restore those from a copy",
        )
    return found
