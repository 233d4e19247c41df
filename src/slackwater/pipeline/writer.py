"""From a streaming DataFrame to a running pipeline, in the words of PySpark's own writer."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from .. import recovery
from ..checkpointer import Checkpointer
from ..errors import Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from ..failpoints import reach
from ..formats.layout import format_name
from ..inspect.pipelines import join_url
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

logger = logging.getLogger("slackwater")

_SETTINGS = set(Settings.__struct_fields__)
_OWN = {"store", "workdir"}
# Sources whose rows are gone once they were read.
_NO_REPLAY = {"socket", "textsocket"}


def writeStream(frame: DataFrame) -> PipelineWriter:
    """Write a streaming DataFrame through Slackwater: ``sw.writeStream(df)`` for ``df.writeStream``."""
    if not frame.isStreaming:
        raise InvalidInput(
            "the DataFrame is not a streaming one", code="pipeline.not_streaming", hint="read it with spark.readStream"
        )
    return PipelineWriter(frame)


class PipelineWriter:
    """Collects what the pipeline is; ``start()`` runs it."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._writer = frame.writeStream
        self._name: str | None = None
        self._output_mode = "append"
        self._options: dict[str, Any] = {}
        self._sinks: dict[str, Sink] = {}

    def queryName(self, queryName: str) -> PipelineWriter:
        """Name the pipeline; the name is a part of its address, ``{store}/{name}``."""
        format_name(queryName)
        self._writer.queryName(queryName)
        self._name = queryName
        return self

    def outputMode(self, outputMode: str) -> PipelineWriter:
        if outputMode.lower() != "append":
            raise Unsupported(
                f"the sinks append, so the output mode {outputMode!r} would write rows again that they have",
                code="output_mode.unsupported",
                hint='.outputMode("append"), with a watermark where the query aggregates',
            )
        self._writer.outputMode(outputMode)
        self._output_mode = outputMode
        return self

    def trigger(self, **trigger: Any) -> PipelineWriter:
        """Set the trigger: ``processingTime=``, ``availableNow=True`` or ``once=True``."""
        if unserved := trigger.keys() - {"processingTime", "availableNow", "once"}:
            raise Unsupported(
                f"the trigger {min(unserved)!r} has no micro-batches to checkpoint",
                code="trigger.unsupported",
                hint='use processingTime="…" or availableNow=True',
            )
        self._writer.trigger(**trigger)
        return self

    def option(self, key: str, value: Any) -> PipelineWriter:
        """Set ``store``, ``workdir``, a field of ``Settings``, or ``store.NAME`` for the object store's client."""
        if key == "checkpointLocation":
            raise InvalidInput(
                "the pipeline's checkpoints are in its store; Spark's own location is Slackwater's to choose",
                code="option.checkpoint_location",
                hint='.option("store", URL) in its place; .option("workdir", DIR) says where Spark may work',
            )
        if key not in _SETTINGS | _OWN and not key.startswith("store."):
            raise InvalidInput(
                f"there is no option {key!r}",
                code="option.unknown",
                hint=f"options are {', '.join(sorted(_SETTINGS | _OWN))}, and store.NAME for the store's client",
            )
        self._options[key] = value
        return self

    def options(self, **options: Any) -> PipelineWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def to(self, name: str, sink: Sink) -> PipelineWriter:
        """Add a sink under a name that stays the same from run to run."""
        format_name(name)
        if name in self._sinks:
            raise InvalidInput(
                f"there are two sinks named {name!r}",
                code="sink.name_taken",
                hint="give each a name of its own, which stays the same from run to run",
            )
        self._sinks[name] = sink
        return self

    def start(self) -> PipelineQuery:
        """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
        name, settings, url = self._check()
        # Whatever we can refuse is refused before the claim, which fences a driver that runs.
        spark = self._frame.sparkSession
        check_session(spark, settings)
        options = {key.removeprefix("store."): v for key, v in self._options.items() if key.startswith("store.")}
        world, store = RealWorld(), open_store(url, settings, **options)
        refuse_second(store.url)
        place = working_place(self._options.get("workdir"), store.url, name)
        sources = source_types(self._frame)
        kinds = [f"{sink}:{it.kind}" for sink, it in self._sinks.items()]
        query_hash = pipeline_hash(self._frame, self._output_mode, kinds)
        began = world.monotonic()
        log = Log(store, world, settings)
        claimed = recovery.claim(
            store, log, world, pipeline=name, driver=f"{socket.gethostname()}:{os.getpid()}", sinks=self._sinks
        )
        references = References(store, settings)
        swept = self._sweep(store, log, claimed, references)
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
                pipeline=name,
                pipeline_hash=query_hash,
                sinks=self._sinks,
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
                sinks=self._sinks,
                work=work,
                source_types=sources,
            )
            logger.info(
                "pipeline %s, generation %d: %s in %d ms; swept %d leftovers; delivery is %s",
                name,
                claimed.state.generation,
                f"recovered epoch {claimed.head.epoch}" if claimed.head else "starts fresh",
                round(1000 * (world.monotonic() - began)),
                swept,
                guarantee(sources, self._sinks),
            )
            running = self._start_spark(coordinator, work)
        except BaseException:
            work.remove()
            raise
        query = PipelineQuery(running._jsq, store.url, coordinator, lambda: Log(store, world, settings))
        coordinator.start(running)
        register(query)
        return query

    def _start_spark(self, coordinator: Coordinator, work: WorkingDirectory) -> StreamingQuery:
        writer = self._writer.foreachBatch(coordinator.stage).option("checkpointLocation", work.checkpoint.as_uri())
        try:
            return writer.start()
        except Exception:
            # Spark refuses some queries only now: this generation has ended in order.
            with suppress(SlackwaterError):
                coordinator.checkpointer.release()
            raise

    def _sweep(self, store: Store, log: Log, claimed: recovery.Claimed, references: References) -> int:
        try:
            with log.unless_fenced(claimed.state.generation):
                return sweep(store, claimed.state, claimed.survey, self._sinks, references)
        except (Corrupt, NotFound) as error:
            # A damaged old checkpoint must not keep a sound newest one from running; nothing is deleted then.
            logger.warning("what crashed attempts left was not swept: %s", error)
            return 0

    def _check(self) -> tuple[str, Settings, str]:
        missing = [
            line
            for line, given in (
                ('.queryName("…")', self._name),
                ('.option("store", "…")', self._options.get("store")),
                ('.to("…", sw.DeltaSink("…"))', self._sinks),
            )
            if not given
        ]
        if missing:
            raise InvalidInput(
                "the pipeline is not complete", code="pipeline.incomplete", hint=f"add {' and '.join(missing)}"
            )
        try:
            tuned = {key: value for key, value in self._options.items() if key in _SETTINGS}
            settings = msgspec.convert(tuned, Settings, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                f"an option is out of bounds: {error}",
                code="option.out_of_bounds",
                hint="the bounds are in slackwater.settings.Settings",
            ) from None
        name = str(self._name)
        return name, settings, join_url(str(self._options["store"]), format_name(name))


def guarantee(sources: list[str], sinks: dict[str, Sink]) -> str:
    """Say the delivery that these sources and sinks really give."""
    lossy = sorted({source for source in sources if source in _NO_REPLAY})
    weak = sorted(name for name, sink in sinks.items() if sink.delivery != "exactly-once")
    if lossy:
        return f"at most once (the source {lossy[0]} cannot replay)"
    return f"at least once (the sink {weak[0]})" if weak else "exactly once"
