"""From a streaming DataFrame to a running pipeline, in the words of PySpark's own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import InvalidInput, Unsupported
from ..formats.layout import format_name
from ..inspect.pipelines import join_url
from ..settings import Settings
from .query import PipelineQuery
from .sinks import Sink
from .start import Job, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SETTINGS = set(Settings.__struct_fields__)
_OWN = {"store", "workdir"}


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
        return start(
            Job(
                frame=self._frame,
                writer=self._writer,
                name=name,
                url=url,
                output_mode=self._output_mode,
                sinks=self._sinks,
                settings=settings,
                store_options={k.removeprefix("store."): v for k, v in self._options.items() if k.startswith("store.")},
                workdir=self._options.get("workdir"),
            )
        )

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
