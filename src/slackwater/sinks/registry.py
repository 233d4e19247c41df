"""The registry of sinks: the kinds that there are, by the contract that a new one must implement."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.sinks import CommittingSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Each in a folder of its own, which nothing but this imports.
_BY_KIND = {"delta": (".delta.sink", "DeltaSink"), "files": (".files.sink", "FileSink")}


class Sink(CommittingSink, Protocol):
    """What a pipeline asks of a sink; ``docs/spec/sinks.md`` says what it must hold to."""

    @property
    def delivery(self) -> str:
        """The guarantee that holds: ``exactly-once`` or ``at-least-once``."""
        ...

    def serve(self, output_mode: str) -> None:
        """Take the query's output mode (append, update, complete); refuse one that the sink cannot serve."""
        ...

    def stage(self, frame: DataFrame, attempt: str, micro_batch: int) -> dict[str, Any]:
        """Write the frame, in exactly one Spark action, durably and invisibly; return what ``commit`` will need.

        An attempt may stage several frames, one micro-batch after the other. Before a query's first frame the sink was
        bound and took the output mode.
        """
        ...


def open_sink(kind: str, address: str) -> Sink | None:
    """Open the sink that a manifest names, to plan with; None when that cannot be done by its address, or not here."""
    if kind not in _BY_KIND:
        return None
    module, name = _BY_KIND[kind]
    try:
        # Now, and not before: each brings its own heavy libraries, which are extras.
        opened = getattr(import_module(module, __package__), name)
    except ImportError:
        return None
    sink: Sink = opened(address)
    return sink
