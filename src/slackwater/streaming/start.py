"""A pipeline's start: recover what it was, then let Spark go on from there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..clock import Clock, SystemClock, this_process
from ..errors import Corrupt, Unsupported
from ..failpoints import reach
from ..formats.manifest import Manifest
from ..formats.positions import acknowledged_of
from ..formats.query import Query, differences
from ..formats.state import State
from ..protocol import recovery
from ..protocol.address import refuse_pipeline
from ..protocol.checkpoint import Checkpointer, release_failed
from ..protocol.fallback import recover
from ..protocol.kinds import refuse_foreign
from ..protocol.log import Log
from ..protocol.retention import References, delete_old, sweep
from ..protocol.state import epochs_after
from ..sinks.registry import Sink
from ..sources.acknowledgement import Acknowledgements, inboxes_of, refuse_dropped, refuse_others
from ..sources.contracts import contract_of
from ..spark.hydrate import checkpoint_location
from ..spark.plan import describe_query, pipeline_hash, source_types
from ..spark.session import check_session, micro_batches_ahead
from ..spark.working_directory import WorkingDirectory, working_place
from ..store import Store, open_store
from ..tables.table import Table, tables_of
from ..tables.versions import Tables
from .coordinator import Coordinator
from .options import Options
from .query import PipelineQuery, refuse_second, register

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("slackwater")

_DELIVERY = ("at-most-once", "at-least-once", "exactly-once")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, complete: all that a writer collects."""

    frame: Any
    writer: Any
    name: str
    url: str
    output_mode: str
    sinks: dict[str, Sink]
    options: Options


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pipeline before it is claimed."""

    store: Store
    log: Log
    clock: Clock
    place: Path
    sources: list[str]
    query: Query
    query_hash: str
    delivery: str
    inboxes: dict[str, Path]
    tables: dict[str, Table]


def start(job: Job) -> PipelineQuery:
    """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
    # Whatever we can refuse is refused before the claim, which fences a driver that runs.
    ready = _prepare(job)
    store, log, clock = ready.store, ready.log, ready.clock
    began = clock.monotonic()
    claimed = recovery.claim(store, log, clock, pipeline=job.name, driver=this_process(), sinks=job.sinks)
    work: WorkingDirectory | None = None
    coordinator: Coordinator | None = None
    try:
        jvm_pid = job.frame.sparkSession.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        work = WorkingDirectory.make(ready.place, claimed.state.generation, jvm_pid)
        coordinator = _resume(job, ready, claimed, work, began)
        running = _start_spark(job.writer, coordinator, work)
    except BaseException as error:
        if coordinator is not None:
            with suppress(Exception):  # the first error is the one to tell
                coordinator.tables.close()
        if work is not None:
            work.remove()
        release_failed(log, claimed.state.generation, error)
        raise
    handle = PipelineQuery(running._jsq, job.url, coordinator, lambda: Log(store, clock, job.options.settings))
    coordinator.start(running)
    register(store.url, handle)
    return handle


def _prepare(job: Job) -> Prepared:
    """Check everything that can be checked without a claim."""
    options = job.options
    check_session(job.frame.sparkSession, options.settings)
    sources, tables = source_types(job.frame), tables_of(job.frame)
    fed_from = [kind for table in tables.values() for kind in table.feed.source_types()]
    delivery = check_delivery([*sources, *fed_from], job.sinks, options.delivery)
    clock, store = SystemClock(), open_store(job.url, options.settings, **options.store_options)
    refuse_second(store.url)
    kinds = [f"{name}:{sink.kind}" for name, sink in job.sinks.items()]
    ready = Prepared(
        store=store,
        log=Log(store, clock, options.settings),
        clock=clock,
        place=working_place(options.workdir, store.url, job.name),
        sources=sources,
        query=describe_query(job.frame, job.output_mode),
        query_hash=pipeline_hash(job.frame, job.output_mode, kinds),
        delivery=delivery,
        inboxes=inboxes_of(job.frame),
        tables=tables,
    )
    for table in tables.values():
        table.refuse_taken()
    _check_query(job, ready)
    refuse_others(ready.inboxes, ready.log.state.uid if ready.log.state else None)
    return ready


def _resume(job: Job, ready: Prepared, claimed: recovery.Claimed, work: WorkingDirectory, began: float) -> Coordinator:
    """Bring the working directory and the sinks to where the newest checkpoint is."""
    store, log, clock, settings = ready.store, ready.log, ready.clock, job.options.settings

    def fall_back(damage: Corrupt, target: Manifest) -> None:
        recovery.refuse_renamed(target, job.name)
        _refuse_changed(job, target, ready.query)
        refuse_dropped(ready.inboxes, target)
        lost = epochs_after(cast(State, log.state), target.epoch)
        logger.warning("epoch %d is damaged (%s): rolling back to %d; epochs %s are undone, and their rows are read "
                       "again", lost[-1], damage.message, target.epoch, lost)  # fmt: skip

    head, holdings = recover(
        store,
        log,
        clock,
        job.sinks,
        hydrate=lambda manifest: work.hydrate(store, manifest, settings),
        dropped=job.options.drop_sink,
        fallback=fall_back if job.options.fallback else None,
    ) or (None, {})
    references = References(store, settings)
    swept = sweep(store, log, claimed, job.sinks, references)
    reach("hydrate.after")
    checkpointer = Checkpointer(
        store=store,
        log=log,
        clock=clock,
        settings=settings,
        pipeline=job.name,
        pipeline_hash=ready.query_hash,
        query=ready.query,
        sinks=job.sinks,
        holdings=holdings,
        settlement=head.settlement if head else None,
    )
    delete_old(store, log, checkpointer, references)
    acknowledgements = Acknowledgements(
        store,
        ready.inboxes,
        up_to=job.options.acknowledge,
        acknowledged=acknowledged_of(head.manifest.source_offsets) if head else {},
    )
    acknowledgements.acknowledge(checkpointer.state)
    logger.log(
        logging.INFO if ready.delivery.startswith("exactly once") else logging.WARNING,
        "pipeline %s, generation %d: %s in %d ms; swept %d leftovers; delivery is %s",
        job.name,
        claimed.state.generation,
        _describe(head),
        round(1000 * (clock.monotonic() - began)),
        swept,
        ready.delivery,
    )
    return Coordinator(
        checkpointer=checkpointer,
        store=store,
        log=log,
        references=references,
        clock=clock,
        settings=settings,
        sinks=job.sinks,
        work=work,
        tables=Tables(ready.tables, work),
        source_types=ready.sources,
        ahead=micro_batches_ahead(job.frame.sparkSession),
        acknowledgements=acknowledgements,
    )


def _check_query(job: Job, ready: Prepared) -> None:
    """Refuse a pipeline that is not Spark's; compare the query with the one whose state it would take over."""
    before, state = refuse_foreign(ready.store, ready.log, job.name, "spark"), ready.log.state
    if state is None:
        refuse_pipeline(job.options.store, job.options.settings, job.options.store_options)
    if before is None or state is None or before.epoch != state.epoch:
        return  # There is none, or its manifest is damaged: recovery says what is wrong with it.
    _refuse_changed(job, before, ready.query)
    refuse_dropped(ready.inboxes, before)
    for what in _sink_changes(before, job.sinks):
        logger.warning("since epoch %d, %s", before.epoch, what)
    if before.pipeline_hash not in (None, ready.query_hash):
        logger.info("the query has changed since epoch %d, in ways that its state does not depend on", before.epoch)


def _sink_changes(before: Manifest, sinks: dict[str, Sink]) -> Iterator[str]:
    """Say what has become of sinks: each has rows of those epochs alone in which it was in the pipeline."""
    for name, output in before.sinks.items():
        if name not in sinks:
            yield f"the sink {name!r} has gone, and gets nothing of what comes from now on"
        elif output.can_undo and (sinks[name].kind, sinks[name].address) != (output.kind, output.address):
            yield f"the sink {name!r} has moved: what comes from now on goes to {sinks[name].address}"
    for name in sinks.keys() - before.sinks.keys():
        yield f"the sink {name!r} is new, and gets nothing of what came before"


def _refuse_changed(job: Job, before: Manifest, query: Query) -> None:
    changed = differences(before.query, query) if before.query else []
    if changed and not job.options.accept_changes:
        raise Unsupported(
            f"the query is not the one that made epoch {before.epoch}: {'; '.join(changed)}",
            code="query.changed",
            hint="change it back, or begin anew under another queryName and with new targets for its sinks, because "
            'all is read again; .option("accept_changes", True) lets Spark try it with the old state',
            differences=changed,
        )


def _describe(head: recovery.Head | None) -> str:
    if head is None:
        return "starts fresh"
    rolled_back = f", rolled back to {head.manifest.rollback.to_epoch}," if head.manifest.rollback else ""
    return f"recovered epoch {head.manifest.epoch}{rolled_back}"


def _start_spark(writer: DataStreamWriter, coordinator: Coordinator, work: WorkingDirectory) -> StreamingQuery:
    coordinator.tables.start(coordinator.has_open_epoch)
    location = checkpoint_location(work.checkpoint)
    return writer.foreachBatch(coordinator.stage).option("checkpointLocation", location).start()


def check_delivery(sources: list[str], sinks: dict[str, Sink], wanted: str | None) -> str:
    """Say the delivery that these sources and sinks really give; refuse a stronger one that was asked for."""
    contracts = {source: contract_of(source) for source in sorted(sources)}
    lossy = [source for source, contract in contracts.items() if contract.delivery == "at-most-once"]
    weak = sorted(name for name, sink in sinks.items() if sink.delivery != "exactly-once")
    level = "at-most-once" if lossy else "at-least-once" if weak else "exactly-once"
    if lossy:
        why = f" (the source {lossy[0]} {contracts[lossy[0]].why})"
    elif weak:
        why = f" (the sink {weak[0]})"
    else:
        why = "".join(f" {said}" for said in sorted({contract.why for contract in contracts.values()} - {""}))
    if wanted is not None and _DELIVERY.index(wanted) > _DELIVERY.index(level):
        raise Unsupported(
            f"this pipeline delivers {level}{why}, not {wanted}",
            code="delivery.weaker",
            hint="use a source that can replay, or a receiver: slackwater receive --help"
            if lossy
            else "write through sw.DeltaSink or sw.FileSink",
        )
    return level.replace("-", " ") + why
