"""A pipeline's start: recover what it was, then let Spark go on from there."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from .. import recovery
from ..artifacts import Holdings
from ..checkpointer import Checkpointer
from ..errors import Conflict, Corrupt, NotFound, SlackwaterError, Unavailable, Unsupported
from ..failpoints import reach
from ..formats.layout import manifest_key
from ..formats.manifest import Manifest
from ..formats.query import Query, differences
from ..formats.records import LiveCheckpoint, Release, State
from ..log import Log
from ..retention import References, sweep
from ..rewind import newest_verified, roll_back
from ..settings import Settings
from ..spark.hydrate import hydrate
from ..spark.plan import describe_query, pipeline_hash, source_types
from ..spark.session import check_session
from ..store import Store, open_store
from ..world import RealWorld, World
from .coordinator import Coordinator
from .query import PipelineQuery, refuse_second, register
from .rollback import NEWEST_VERIFIED
from .sinks import Sink
from .workdir import WorkingDirectory, working_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("slackwater")

# Sources whose rows are gone once they were read.
_NO_REPLAY = {"socket", "textsocket"}
_DELIVERY = ("at-most-once", "at-least-once", "exactly-once")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, complete: all that a writer collects."""

    frame: Any
    writer: Any
    name: str
    url: str
    output_mode: str
    sinks: dict[str, Sink]
    settings: Settings
    store_options: dict[str, Any]
    workdir: str | None
    # What to do when the newest checkpoint is damaged; None is to stop.
    fallback: Literal["newest-verified"] | None = None
    # Sinks that are gone, and whose open output is given up.
    drop_sinks: list[str] = []
    # Go on with the state of a query that was another.
    accept_changes: bool = False
    delivery: str | None = None
    metrics: str | None = None


def start(job: Job) -> PipelineQuery:
    """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
    frame: DataFrame = job.frame
    spark, settings = frame.sparkSession, job.settings
    # Whatever we can refuse is refused before the claim, which fences a driver that runs.
    check_session(spark, settings)
    sources = source_types(frame)
    delivery = check_delivery(sources, job.sinks, job.delivery)
    world, store = RealWorld(), open_store(job.url, settings, **job.store_options)
    refuse_second(store.url)
    place = working_place(job.workdir, store.url, job.name)
    kinds = [f"{name}:{sink.kind}" for name, sink in job.sinks.items()]
    query = describe_query(frame, job.output_mode)
    query_hash = pipeline_hash(frame, job.output_mode, kinds)
    log = Log(store, world, settings)
    _check_query(job, store, log.read(), query, query_hash)
    began = world.monotonic()
    driver = f"{socket.gethostname()}:{os.getpid()}"
    claimed = recovery.claim(store, log, world, pipeline=job.name, driver=driver, sinks=job.sinks)
    work: WorkingDirectory | None = None
    try:
        jvm_pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
        work = WorkingDirectory.make(place, claimed.state.generation, jvm_pid)
        head, holdings = _recover(job, store, log, world, work)
        references = References(store, settings)
        swept = _sweep(store, log, claimed, job.sinks, references)
        reach("hydrate.after")
        checkpointer = Checkpointer(
            store=store,
            log=log,
            world=world,
            settings=settings,
            pipeline=job.name,
            pipeline_hash=query_hash,
            query=query,
            sinks=job.sinks,
            holdings=holdings,
            settlement=head.settlement if head else None,
        )
        coordinator = Coordinator(
            checkpointer=checkpointer,
            store=store,
            log=log,
            references=references,
            world=world,
            settings=settings,
            sinks=job.sinks,
            work=work,
            source_types=sources,
        )
        logger.info(
            "pipeline %s, generation %d: %s in %d ms; swept %d leftovers; delivery is %s",
            job.name,
            claimed.state.generation,
            _describe(head),
            round(1000 * (world.monotonic() - began)),
            swept,
            delivery,
        )
        running = _start_spark(job.writer, coordinator, work)
    except BaseException as error:
        if work is not None:
            work.remove()
        _release(log, claimed.state.generation, error)
        raise
    handle = PipelineQuery(running._jsq, store.url, coordinator, lambda: Log(store, world, settings))
    coordinator.start(running)
    register(handle)
    return handle


def _recover(
    job: Job, store: Store, log: Log, world: World, work: WorkingDirectory
) -> tuple[recovery.Head | None, Holdings]:
    """Drive the head into the sinks and hydrate it; if it is damaged, stop, or roll back as the user has said."""
    try:
        return _drive_and_hydrate(job, store, log, work)
    except Corrupt as damage:
        state = cast(State, log.state)
        if state.head is None:
            raise
        target = newest_verified(store, state, job.settings, below=state.head.epoch)
        if job.fallback is None or target is None:
            with log.unless_fenced(state.generation):
                raise _head_damaged(damage, state, target) from damage
        manifest = recovery.load_manifest(store, target)
        _refuse_changed(job, manifest, describe_query(job.frame, job.output_mode))
        lost = [entry.epoch for entry in state.branch if entry.epoch > target.epoch]
        logger.warning("epoch %d is damaged (%s): rolling back to %d; epochs %s are undone, and their rows are read "
                       "again", state.head.epoch, damage.message, target.epoch, lost)  # fmt: skip
        roll_back(store, log, world, target.epoch)
        return _drive_and_hydrate(job, store, log, work)


def _drive_and_hydrate(
    job: Job, store: Store, log: Log, work: WorkingDirectory
) -> tuple[recovery.Head | None, Holdings]:
    state = cast(State, log.state)
    head = recovery.redrive(store, log, state, job.sinks, job.drop_sinks)
    if head is None:
        return None, {}
    with log.unless_fenced(state.generation):
        return head, hydrate(store, head.manifest, work.checkpoint, job.settings)


def _head_damaged(damage: Corrupt, state: State, target: LiveCheckpoint | None) -> Corrupt:
    head = cast(LiveCheckpoint, state.head)
    if target is None:
        way_out, hint = "no older checkpoint can be restored either", "slackwater verify URL --read-data"
        lost = [entry.epoch for entry in state.branch]
    else:
        lost = [entry.epoch for entry in state.branch if entry.epoch > target.epoch]
        named = f"epoch {lost[0]} is" if len(lost) == 1 else f"epochs {lost[0]} to {lost[-1]} are"
        way_out = f"the newest that verifies is epoch {target.epoch}; {named} lost with a rollback to it"
        hint = (
            f'.option("fallback", "{NEWEST_VERIFIED}") or slackwater rollback URL --to {target.epoch} --yes rolls back '
            "to it, sinks too, and reads the rest again; or restore the object from a copy"
        )
    return Corrupt(
        f"the newest checkpoint, epoch {head.epoch}, cannot be restored: {damage.message}; {way_out}",
        code="head.damaged",
        hint=hint,
        epoch=head.epoch,
        key=damage.details.get("key", manifest_key(head.checkpoint_id)),
        lost=lost,
        newest_verified=target.epoch if target else None,
    )


def _check_query(job: Job, store: Store, state: State | None, query: Query, query_hash: str) -> None:
    """Compare the query with the one whose state it would take over."""
    if state is None or state.head is None:
        return
    try:
        before = recovery.load_manifest(store, state.head)
    except Corrupt:
        return  # Recovery says what is wrong with it.
    _refuse_changed(job, before, query)
    if before.pipeline_hash not in (None, query_hash):
        logger.info("the query has changed since epoch %d, in ways that its state does not depend on", before.epoch)


def _refuse_changed(job: Job, before: Manifest, query: Query) -> None:
    changed = differences(before.query, query) if before.query else []
    if changed and not job.accept_changes:
        raise Unsupported(
            f"the query is not the one that made epoch {before.epoch}: {'; '.join(changed)}",
            code="query.changed",
            hint="change it back, or begin anew under another queryName; "
            '.option("accept_changes", True) lets Spark try it with the old state',
            differences=changed,
        )


def _describe(head: recovery.Head | None) -> str:
    if head is None:
        return "starts fresh"
    rolled_back = f", rolled back to {head.manifest.rollback.to_epoch}," if head.manifest.rollback else ""
    return f"recovered epoch {head.manifest.epoch}{rolled_back}"


def _release(log: Log, generation: int, error: BaseException) -> None:
    """Say on record that this start has ended; not when the store is away, nor when another driver has taken over."""
    if isinstance(error, Exception) and not isinstance(error, Conflict | Unavailable):
        with suppress(SlackwaterError):
            log.append(lambda state: Release(generation=generation, settled=None, deleted=[]), generation=generation)


def _start_spark(writer: DataStreamWriter, coordinator: Coordinator, work: WorkingDirectory) -> StreamingQuery:
    return writer.foreachBatch(coordinator.stage).option("checkpointLocation", work.checkpoint.as_uri()).start()


def _sweep(store: Store, log: Log, claimed: recovery.Claimed, sinks: dict[str, Sink], references: References) -> int:
    try:
        with log.unless_fenced(claimed.state.generation):
            return sweep(store, cast(State, log.state), claimed.survey, sinks, references)
    except (Corrupt, NotFound) as error:
        # A damaged old checkpoint must not keep a sound newest one from running; nothing is deleted then.
        logger.warning("what crashed attempts left was not swept: %s", error)
        return 0


def check_delivery(sources: list[str], sinks: dict[str, Sink], wanted: str | None) -> str:
    """Say the delivery that these sources and sinks really give; refuse a stronger one that was asked for."""
    lossy = sorted({source for source in sources if source in _NO_REPLAY})
    weak = sorted(name for name, sink in sinks.items() if sink.delivery != "exactly-once")
    level = "at-most-once" if lossy else "at-least-once" if weak else "exactly-once"
    why = f" (the source {lossy[0]} cannot replay)" if lossy else f" (the sink {weak[0]})" if weak else ""
    if wanted is not None and _DELIVERY.index(wanted) > _DELIVERY.index(level):
        raise Unsupported(
            f"this pipeline delivers {level}{why}, not {wanted}",
            code="delivery.weaker",
            hint="use a source that can replay" if lossy else "write through sw.DeltaSink or sw.FileSink",
        )
    return level.replace("-", " ") + why
