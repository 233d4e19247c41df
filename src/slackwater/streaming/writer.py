"""From a streaming DataFrame to a running pipeline, in the words of PySpark's own writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ..errors import InvalidInput
from ..formats.keys import format_name
from ..protocol.address import join_url
from ..protocol.sinks import Sink
from ..sinks.function import FunctionSink
from ..sinks.target import shared
from . import unsupported
from .checks import Definition
from .metrics import serve
from .options import OPTIONS, find_near, parse_options
from .query import PipelineQuery
from .start import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MODES = ("append", "update", "complete")


def writeStream(frame: DataFrame) -> PipelineWriter:
    """Write a streaming DataFrame through Slackwater: ``sw.writeStream(df)`` for ``df.writeStream``."""
    if not hasattr(frame, "isStreaming"):
        raise InvalidInput(
            f"{frame!r:.100} is not a DataFrame", code="option.invalid", hint="read one with spark.readStream"
        )
    if not frame.isStreaming:
        raise InvalidInput(
            "the DataFrame is not a streaming one", code="option.invalid", hint="read it with spark.readStream"
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
        """Set ``append``, ``update`` or ``complete``; not every sink serves each, and ``start()`` says so."""
        if outputMode.lower() not in _MODES:
            raise InvalidInput(
                f"there is no output mode {outputMode[:100]!r}",
                code="option.invalid",
                hint=f"output modes are {', '.join(_MODES)}",
            )
        self._writer.outputMode(outputMode.lower())
        self._output_mode = outputMode.lower()
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        realTime: str | None = None,
    ) -> PipelineWriter:
        """Set the trigger: ``processingTime=``, ``availableNow=True`` or ``once=True``."""
        for name, given in (("continuous", continuous), ("realTime", realTime)):
            if given is not None:
                raise unsupported.refuse_trigger(name)
        self._writer.trigger(processingTime=processingTime, availableNow=availableNow, once=once)  # type: ignore[call-overload]
        return self

    def option(self, key: str, value: Any) -> PipelineWriter:
        """Set an option of Slackwater's, a field of ``Settings``, or ``store.NAME`` for the object store's client."""
        if key.lower() == "checkpointlocation":
            raise InvalidInput(
                "the pipeline's checkpoints are in its store; Spark's own location is Slackwater's to choose",
                code="option.invalid",
                hint='.option("store", URL) in its place; .option("workdir", DIR) says where Spark may work. To go on '
                'from a checkpoint that is there, once before the start: sw.adopt("DIR", store=URL, pipeline=NAME)',
            )
        if key.lower() == "path":
            raise unsupported.refuse_path()
        if key not in OPTIONS and not key.startswith("store."):
            near = find_near(key)
            raise InvalidInput(
                f"there is no option {key!r}",
                code="option.invalid",
                hint=(f"did you mean {near}? " if near else "")
                + f"options are {', '.join(sorted(OPTIONS))}, and store.NAME for the store's client",
            )
        self._options[key] = value
        return self

    def options(self, **options: Any) -> PipelineWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def to(self, name: str, sink: Sink | Callable[[DataFrame, int], object]) -> PipelineWriter:
        """Add a sink under a name that stays the same from run to run.

        A function gets each micro-batch's frame and number, as from ``foreachBatch``. It is called again after a crash,
        perhaps with other rows under the same number: do not skip by that, deduplicate by keys.
        """
        format_name(name)
        if name in self._sinks:
            raise InvalidInput(
                f"there are two sinks named {name!r}",
                code="sink.invalid",
                hint="give each a name of its own, which stays the same from run to run",
            )
        if isinstance(sink, type) or not (hasattr(sink, "stage") or callable(sink)):
            raise InvalidInput(
                f"{name!r} is given {sink!r:.100}, which is neither a sink nor a function",
                code="sink.invalid",
                hint="sw.DeltaSink(PATH), sw.FileSink(PATH), or a function of a DataFrame and a number",
            )
        if twin := next((other for other, there in self._sinks.items() if there is sink), None):
            raise shared(f"the sink object that {name!r} is given is the sink {twin!r}")
        added = cast(Sink, sink) if hasattr(sink, "stage") else FunctionSink(sink)
        if isinstance(added, FunctionSink) or not (twin := self._find_at(added)):
            self._sinks[name] = added
            return self
        raise InvalidInput(
            f"the sinks {twin!r} and {name!r} are one: both write to {added.address}",
            code="sink.invalid",
            hint="every sink gets every row, so each would be there twice: name another target, or take one away",
        )

    def _find_at(self, wanted: Sink) -> str | None:
        place = (wanted.kind, wanted.address)
        return next((name for name, sink in self._sinks.items() if (sink.kind, sink.address) == place), None)

    def foreachBatch(self, func: Callable[[DataFrame, int], object]) -> PipelineWriter:
        """Add a function as the sink ``foreachBatch``; it is at-least-once."""
        return self.to("foreachBatch", func)

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name not in unsupported.METHODS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise unsupported.refuse_method(name)

        return refuse

    def start(self, *path: Any, **others: Any) -> PipelineQuery:
        """Recover, claim the pipeline, and let Spark run from its newest checkpoint on."""
        if path or others:
            raise unsupported.refuse_start("path" if path else next(iter(others)))
        definition = self._check()
        if definition.options.metrics is None:
            return start(definition)
        # Before the claim: an address that is taken must not fence a driver that runs.
        endpoint = serve(definition.options.metrics, definition.name)
        try:
            query = start(definition)
        except BaseException:
            endpoint.close()
            raise
        query.serve_metrics(endpoint)
        return query

    def _check(self) -> Definition:
        for sink in self._sinks.values():
            sink.serve(self._output_mode)
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
                "the pipeline is not complete", code="option.invalid", hint=f"add {' and '.join(missing)}"
            )
        options = parse_options(self._options)
        if both := sorted(set(options.drop_sink) & set(self._sinks)):
            raise InvalidInput(
                f"drop_sink names {both[0]!r}, which the pipeline has",
                code="option.invalid",
                hint='take the .to("…") line away, or the option',
            )
        name = str(self._name)
        return Definition(
            frame=self._frame,
            writer=self._writer,
            name=name,
            url=join_url(options.store, format_name(name)),
            output_mode=self._output_mode,
            sinks=self._sinks,
            options=options,
        )
