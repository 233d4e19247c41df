"""What a pipeline asks of a sink. ``docs/spec/sinks.md`` is normative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ...checkpointer import CommittingSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sink(CommittingSink, Protocol):
    """A sink that stages output, invisibly, and commits it with an epoch."""

    @property
    def kind(self) -> str: ...

    @property
    def address(self) -> str:
        """Where the output goes, without secrets: it is kept in manifests and shown."""
        ...

    @property
    def can_undo(self) -> bool: ...

    @property
    def delivery(self) -> str:
        """The guarantee that holds: ``exactly-once`` or ``at-least-once``."""
        ...

    def stage(self, frame: DataFrame, attempt: str) -> dict[str, Any]:
        """Write the frame, in exactly one Spark action, durably and invisibly; return what ``commit`` will need.

        An attempt may stage several frames, one after the other. Before a query's first frame the sink was bound.
        """
        ...
