"""Repair as users call it: by a pipeline's URL, with its sinks looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..clock import SystemClock, this_process
from ..errors import Corrupt
from ..formats.manifest import SinkOutput
from ..protocol.log import Log
from ..settings import Settings
from ..sinks.registry import Sink, open_sink
from ..store import Store, open_store
from . import repair_core as repairing
from .pipelines import read_pipeline
from .repair_core import Prepared, RepairPlan
from .rollback import check_refused, listed


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
    settings = settings or Settings()
    found = _prepare(os.fspath(url), keep, keep_older, sinks or {}, storage_options=storage_options, settings=settings)
    return found[-1].plan if found else None


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
    settings = settings or Settings()
    found = _prepare(os.fspath(url), keep, keep_older, sinks or {}, storage_options=storage_options, settings=settings)
    if found is None:
        return None
    store, log, prepared = found
    check_refused(prepared.plan, code="repair.refused")
    done = repairing.repair(store, log, SystemClock(), settings, prepared, driver=this_process("repair"))
    return prepared.plan if done else None


def _prepare(
    url: str,
    keep: Iterable[str],
    keep_older: bool,
    sinks: Mapping[str, Sink],
    *,
    storage_options: Mapping[str, str] | None,
    settings: Settings,
) -> tuple[Store, Log, Prepared] | None:
    try:
        read_pipeline(url, settings, storage_options)
        return None
    except Corrupt as damage:
        if damage.code != "log.corrupt":
            raise
    store = open_store(url, settings, **(storage_options or {}))
    log = Log(store, SystemClock(), settings)

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        return sinks.get(name) or open_sink(output.kind, output.address)

    prepared = repairing.prepare(store, log, settings, open_one, keep=listed(keep), keep_older=keep_older)
    return (store, log, prepared) if prepared else None
