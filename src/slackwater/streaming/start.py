"""Start of a Spark query: claim, recover the newest checkpoint, then let Spark go on from it."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ..clock import this_process
from ..errors import Corrupt
from ..failpoints import reach
from ..formats.manifest import Manifest
from ..formats.positions import acknowledged_of
from ..protocol.artifacts import Holdings
from ..protocol.driver import Claimed, Driver, open_driver
from ..protocol.kinds import refuse_renamed
from ..protocol.pipeline import Pipeline, locate
from ..protocol.recovery import Agree
from ..protocol.state import epochs_after
from ..sources.acknowledgement import Acknowledgements
from ..sources.query_inboxes import refuse_dropped
from ..spark.hydrate import checkpoint_location
from ..spark.session import micro_batches_ahead
from ..spark.working_directory import WorkingDirectory, working_place
from .checks import Definition, QueryFacts, check_newest, examine, refuse_changed
from .coordinator import Coordinator
from .query import PipelineQuery, refuse_second, register
from .workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("slackwater")


def start(definition: Definition) -> PipelineQuery:
    """Claim the pipeline, recover its newest checkpoint, and let Spark go on from it."""
    # Whatever we can refuse is refused before the claim, which fences a driver that runs.
    facts, options, spark = examine(definition), definition.options, definition.frame.sparkSession
    pipeline = locate(definition.url, options.settings, options.store_options)
    store, clock = pipeline.store, pipeline.clock
    refuse_second(store.url)
    check_newest(definition, facts, pipeline)
    began, preparing = clock.monotonic(), _Preparing(definition, pipeline)
    driver: Driver | None = None
    workspace: Workspace | None = None
    try:
        driver, directory = open_driver(
            pipeline,
            this_process(),
            hydrate=preparing.hydrate,
            sinks=definition.sinks,
            dropped=options.drop_sink,
            fallback=_agree(definition, facts, pipeline) if options.fallback else None,
            query=facts.description,
            pipeline_hash=facts.hash,
        )
        reach("hydrate.after")
        acknowledgements = Acknowledgements(
            store,
            facts.inboxes,
            up_to=options.acknowledge,
            acknowledged=acknowledged_of(driver.head.source_offsets) if driver.head else {},
        )
        acknowledgements.acknowledge(driver.state)
        logger.log(
            logging.INFO if facts.delivery.startswith("exactly once") else logging.WARNING,
            "pipeline %s, generation %d: %s in %d ms; swept %d leftovers; delivery is %s",
            definition.name,
            driver.permit.generation,
            _describe(driver.head),
            round(1000 * (clock.monotonic() - began)),
            driver.swept,
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
        preparing.remove()
        if driver is not None:
            driver.end(error)
        raise
    handle = PipelineQuery(running._jsq, pipeline, coordinator)
    coordinator.start(running)
    register(store.url, handle)
    return handle


class _Preparing:
    """The working directory of a start: made after the claim, which numbers it, and filled with what is recovered."""

    def __init__(self, definition: Definition, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._place = working_place(definition.options.workdir, pipeline.store.url, definition.name)
        context = definition.frame.sparkSession.sparkContext
        self._jvm_pid = context._jvm.java.lang.ProcessHandle.current().pid()
        self._directory: WorkingDirectory | None = None

    def hydrate(self, manifest: Manifest | None, claimed: Claimed) -> tuple[WorkingDirectory, Holdings]:
        if self._directory is None:
            self._directory = WorkingDirectory.make(self._place, claimed.permit.generation, self._jvm_pid)
        if manifest is None:
            return self._directory, {}
        store, settings = self._pipeline.store, self._pipeline.settings
        return self._directory, self._directory.hydrate(store, manifest, settings)

    def remove(self) -> None:
        if self._directory is not None:
            self._directory.remove()


def _agree(definition: Definition, facts: QueryFacts, pipeline: Pipeline) -> Agree:
    """Make what a fallback asks before it rolls back."""

    def agree(damage: Corrupt, target: Manifest) -> None:
        refuse_renamed(target, definition.name)
        refuse_changed(definition, facts, target)
        refuse_dropped(facts.inboxes, target)
        lost = epochs_after(pipeline.state, target.epoch)
        logger.warning("epoch %d is damaged (%s): rolling back to %d; epochs %s are undone, and their rows are read "
                       "again", lost[-1], damage.message, target.epoch, lost)  # fmt: skip

    return agree


def _describe(head: Manifest | None) -> str:
    if head is None:
        return "starts fresh"
    rolled_back = f", rolled back to {head.rollback.to_epoch}," if head.rollback else ""
    return f"recovered epoch {head.epoch}{rolled_back}"


def _start_spark(writer: DataStreamWriter, coordinator: Coordinator, workspace: Workspace) -> StreamingQuery:
    workspace.tables.start(coordinator.has_open_epoch)
    location = checkpoint_location(workspace.directory.checkpoint)
    return writer.foreachBatch(coordinator.stage).option("checkpointLocation", location).start()
