"""Repair as users call it: by a pipeline's URL, with its sinks looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .. import repairing
from ..errors import Conflict, Corrupt
from ..formats.manifest import SinkOutput
from ..inspect.pipelines import open_pipeline
from ..log import Log
from ..repairing import RepairPlan
from ..settings import Settings
from ..store import open_store
from ..world import RealWorld, this_process
from .sinks.sink import Sink, open_sink


def plan_repair(
    url: str | os.PathLike[str],
    *,
    keep: Iterable[str] = (),
    keep_older: bool = False,
    sinks: Mapping[str, Sink] | None = None,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RepairPlan | None:
    """Plan how to go on from the record before a damaged newest one; None when there is nothing to repair.

    ``sinks`` by name are those that need options to be opened; ``storage_options`` are the store's own.
    """
    return _run(url, keep, keep_older, sinks=sinks or {}, storage_options=storage_options, settings=settings, act=False)


def repair(
    url: str | os.PathLike[str],
    *,
    keep: Iterable[str] = (),
    keep_older: bool = False,
    sinks: Mapping[str, Sink] | None = None,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RepairPlan | None:
    """Go on from the record before a damaged newest one; the next start brings the sinks there. A driver is fenced.

    ``keep`` names sinks whose rows shall stay. ``keep_older`` says that nobody else is at work on the pipeline: then
    older checkpoints stay, too, beside savepoints. Refused, with nothing changed, where a sink would refuse. None:
    there was nothing to repair, or somebody else was first.
    """
    return _run(url, keep, keep_older, sinks=sinks or {}, storage_options=storage_options, settings=settings, act=True)


def _run(
    url: str | os.PathLike[str],
    keep: Iterable[str],
    keep_older: bool,
    *,
    sinks: Mapping[str, Sink],
    storage_options: Mapping[str, str] | None,
    settings: Settings | None,
    act: bool,
) -> RepairPlan | None:
    url, settings = os.fspath(url), settings or Settings()
    try:
        open_pipeline(url, settings, storage_options)
        return None
    except Corrupt as damage:
        if damage.code != "log.corrupt":
            raise
    world, store = RealWorld(), open_store(url, settings, **(storage_options or {}))
    log = Log(store, world, settings)

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        return sinks.get(name) or open_sink(output.kind, output.address)

    keep = [keep] if isinstance(keep, str) else list(keep)
    prepared = repairing.prepare(store, log, settings, open_one, keep=keep, keep_older=keep_older)
    if prepared is None or not act:
        return prepared.plan if prepared else None
    if refused := prepared.plan.refused:
        raise Conflict(
            "; ".join(f"the sink {sink.name!r} would refuse: {sink.detail}" for sink in refused),
            code="repair.refused",
            hint=f"keep={[sink.name for sink in refused]} (--keep NAME) leaves their rows as they are",
        )
    done = repairing.repair(store, log, world, settings, prepared, driver=this_process("repair"))
    return prepared.plan if done else None
