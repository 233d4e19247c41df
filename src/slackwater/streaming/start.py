"""A pipeline's start: recover what it was, then let Spark go on from there."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ..clock import Clock, SystemClock, this_process
from ..errors import Corrupt
from ..failpoints import reach
from ..formats.manifest import Manifest
from ..formats.positions import acknowledged_of
from ..formats.state import State
from ..protocol import recovery
from ..protocol.checkpoint import Checkpointer, release_failed
from ..protocol.fallback import recover
from ..protocol.log import Log
from ..protocol.retention import References, delete_old, sweep
from ..protocol.rollback import epochs_after
from ..sources.acknowledgement import Acknowledgements
from ..sources.inboxes_read import refuse_dropped
from ..spark.hydrate import checkpoint_location
from ..spark.session import micro_batches_ahead
from ..spark.working_directory import WorkingDirectory, working_place
from ..store import Store, open_store
from .checks import Definition, QueryFacts, check_newest, examine, refuse_changed
from .coordinator import Coordinator, DriverParts
from .query import PipelineQuery, refuse_second, register
from .workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("slackwater")


def start(definition: Definition) -> PipelineQuery:
    """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
    # Whatever we can refuse is refused before the claim, which fences a driver that runs.
    facts, options, spark = examine(definition), definition.options, definition.frame.sparkSession
    clock, store = SystemClock(), open_store(definition.url, options.settings, **options.store_options)
    refuse_second(store.url)
    log = Log(store, clock, options.settings)
    check_newest(definition, facts, store, log)
    place = working_place(options.workdir, store.url, definition.name)
    began = clock.monotonic()
    claimed = recovery.claim(store, log, clock, pipeline=definition.name, driver=this_process(), sinks=definition.sinks)
    directory: WorkingDirectory | None = None
    workspace: Workspace | None = None
    try:
        jvm_pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        directory = WorkingDirectory.make(place, claimed.state.generation, jvm_pid)
        driver, head, swept = _recover(definition, facts, claimed, directory, store=store, log=log, clock=clock)
        acknowledgements = Acknowledgements(
            store,
            facts.inboxes,
            up_to=options.acknowledge,
            acknowledged=acknowledged_of(head.manifest.source_offsets) if head else {},
        )
        acknowledgements.acknowledge(driver.checkpointer.state)
        logger.log(
            logging.INFO if facts.delivery.startswith("exactly once") else logging.WARNING,
            "pipeline %s, generation %d: %s in %d ms; swept %d leftovers; delivery is %s",
            definition.name,
            claimed.state.generation,
            _describe(head),
            round(1000 * (clock.monotonic() - began)),
            swept,
            facts.delivery,
        )
        workspace = Workspace(directory, facts.source_types, facts.tables)
        ahead = micro_batches_ahead(spark)
        coordinator = Coordinator(driver, definition.sinks, workspace, acknowledgements, ahead=ahead)
        running = _start_spark(definition.writer, coordinator, workspace)
    except BaseException as error:
        if workspace is not None:
            with suppress(Exception):  # the first error is the one to tell
                workspace.tables.close()
        if directory is not None:
            directory.remove()
        release_failed(log, claimed.state.generation, error)
        raise
    handle = PipelineQuery(running._jsq, definition.url, coordinator, lambda: Log(store, clock, options.settings))
    coordinator.start(running)
    register(store.url, handle)
    return handle


def _recover(
    definition: Definition,
    facts: QueryFacts,
    claimed: recovery.Claimed,
    directory: WorkingDirectory,
    *,
    store: Store,
    log: Log,
    clock: Clock,
) -> tuple[DriverParts, recovery.Head | None, int]:
    """Bring the working directory and the sinks to where the newest checkpoint is; count the leftovers swept."""
    settings = definition.options.settings

    def fall_back(damage: Corrupt, target: Manifest) -> None:
        recovery.refuse_renamed(target, definition.name)
        refuse_changed(definition, facts, target)
        refuse_dropped(facts.inboxes, target)
        lost = epochs_after(cast(State, log.state), target.epoch)
        logger.warning("epoch %d is damaged (%s): rolling back to %d; epochs %s are undone, and their rows are read "
                       "again", lost[-1], damage.message, target.epoch, lost)  # fmt: skip

    head, holdings = recover(
        store,
        log,
        clock,
        definition.sinks,
        hydrate=lambda manifest: directory.hydrate(store, manifest, settings),
        dropped=definition.options.drop_sink,
        fallback=fall_back if definition.options.fallback else None,
    ) or (None, {})
    references = References(store, settings)
    swept = sweep(store, log, claimed, definition.sinks, references)
    reach("hydrate.after")
    checkpointer = Checkpointer(
        store=store,
        log=log,
        clock=clock,
        settings=settings,
        pipeline=definition.name,
        pipeline_hash=facts.hash,
        query=facts.description,
        sinks=definition.sinks,
        holdings=holdings,
        settlement=head.settlement if head else None,
    )
    delete_old(store, log, checkpointer, references)
    driver = DriverParts(
        store=store, log=log, clock=clock, settings=settings, checkpointer=checkpointer, references=references
    )
    return driver, head, swept


def _describe(head: recovery.Head | None) -> str:
    if head is None:
        return "starts fresh"
    rolled_back = f", rolled back to {head.manifest.rollback.to_epoch}," if head.manifest.rollback else ""
    return f"recovered epoch {head.manifest.epoch}{rolled_back}"


def _start_spark(writer: DataStreamWriter, coordinator: Coordinator, workspace: Workspace) -> StreamingQuery:
    workspace.tables.start(coordinator.has_open_epoch)
    location = checkpoint_location(workspace.directory.checkpoint)
    return writer.foreachBatch(coordinator.stage).option("checkpointLocation", location).start()
