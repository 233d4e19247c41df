"""A pipeline's start: recover what it was, then let Spark go on from there."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from .. import recovery
from ..checkpointer import Checkpointer
from ..errors import Corrupt, NotFound, SlackwaterError
from ..failpoints import reach
from ..log import Log
from ..retention import References, sweep
from ..settings import Settings
from ..spark.hydrate import hydrate
from ..spark.plan import pipeline_hash, source_types
from ..spark.session import check_session
from ..store import Store, open_store
from ..world import RealWorld
from .coordinator import Coordinator
from .query import PipelineQuery, refuse_second, register
from .sinks import Sink
from .workdir import WorkingDirectory, working_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("slackwater")

# Sources whose rows are gone once they were read.
_NO_REPLAY = {"socket", "textsocket"}


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


def start(job: Job) -> PipelineQuery:
    """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
    frame: DataFrame = job.frame
    spark, settings = frame.sparkSession, job.settings
    # Whatever we can refuse is refused before the claim, which fences a driver that runs.
    check_session(spark, settings)
    world, store = RealWorld(), open_store(job.url, settings, **job.store_options)
    refuse_second(store.url)
    place = working_place(job.workdir, store.url, job.name)
    sources = source_types(frame)
    kinds = [f"{name}:{sink.kind}" for name, sink in job.sinks.items()]
    query_hash = pipeline_hash(frame, job.output_mode, kinds)
    began = world.monotonic()
    log = Log(store, world, settings)
    claimed = recovery.claim(
        store, log, world, pipeline=job.name, driver=f"{socket.gethostname()}:{os.getpid()}", sinks=job.sinks
    )
    references = References(store, settings)
    swept = _sweep(store, log, claimed, job.sinks, references)
    jvm_pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    work = WorkingDirectory.make(place, claimed.state.generation, jvm_pid)
    try:
        with log.unless_fenced(claimed.state.generation):
            holdings = hydrate(store, claimed.head, work.checkpoint, settings) if claimed.head else {}
        reach("hydrate.after")
        checkpointer = Checkpointer(
            store=store,
            log=log,
            world=world,
            settings=settings,
            pipeline=job.name,
            pipeline_hash=query_hash,
            sinks=job.sinks,
            holdings=holdings,
            settlement=claimed.settlement,
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
            f"recovered epoch {claimed.head.epoch}" if claimed.head else "starts fresh",
            round(1000 * (world.monotonic() - began)),
            swept,
            guarantee(sources, job.sinks),
        )
        running = _start_spark(job.writer, coordinator, work)
    except BaseException:
        work.remove()
        raise
    query = PipelineQuery(running._jsq, store.url, coordinator, lambda: Log(store, world, settings))
    coordinator.start(running)
    register(query)
    return query


def _start_spark(writer: DataStreamWriter, coordinator: Coordinator, work: WorkingDirectory) -> StreamingQuery:
    writer = writer.foreachBatch(coordinator.stage).option("checkpointLocation", work.checkpoint.as_uri())
    try:
        return writer.start()
    except Exception:
        # Spark refuses some queries only now: this generation has ended in order.
        with suppress(SlackwaterError):
            coordinator.checkpointer.release()
        raise


def _sweep(store: Store, log: Log, claimed: recovery.Claimed, sinks: dict[str, Sink], references: References) -> int:
    try:
        with log.unless_fenced(claimed.state.generation):
            return sweep(store, claimed.state, claimed.survey, sinks, references)
    except (Corrupt, NotFound) as error:
        # A damaged old checkpoint must not keep a sound newest one from running; nothing is deleted then.
        logger.warning("what crashed attempts left was not swept: %s", error)
        return 0


def guarantee(sources: list[str], sinks: dict[str, Sink]) -> str:
    """Say the delivery that these sources and sinks really give."""
    lossy = sorted({source for source in sources if source in _NO_REPLAY})
    weak = sorted(name for name, sink in sinks.items() if sink.delivery != "exactly-once")
    if lossy:
        return f"at most once (the source {lossy[0]} cannot replay)"
    return f"at least once (the sink {weak[0]})" if weak else "exactly once"
