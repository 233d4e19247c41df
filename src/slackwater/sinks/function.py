"""A function as a sink: called with every micro-batch, at least once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("slackwater")


class FunctionSink:
    """A function of a frame and its micro-batch's number, as Spark's ``foreachBatch`` takes it.

    At least once: what is done again, after a crash or a rollback, is given to it again; nothing is undone.

    Never skip a number that was seen before. Unlike under plain Spark, after a crash a number may come with other rows:
    the micro-batch is planned anew from the newest checkpoint. Whoever skips it loses rows; deduplicate by keys.
    """

    kind = "function"
    can_undo = False
    delivery = "at-least-once"

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function
        named: Any = function
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        self.address = f"{named.__module__}.{named.__qualname__}"

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Say what does not hold: a function remembers no epochs."""
        logger.info("the sink %s is a function: after a crash a number n may come with other rows; "
                    "do not skip by n, deduplicate by keys", sink)  # fmt: skip

    def serve(self, output_mode: str) -> None:
        """Take every output mode: what a row means is for the function to know."""

    def epoch(self) -> int:
        """Tell 0: nothing is ever committed."""
        return 0

    def stage(self, frame: DataFrame, attempt: str, micro_batch: int) -> dict[str, Any]:
        """Call the function. What it raises goes up as it is."""
        self._function(frame, micro_batch)
        return {"attempt": attempt, "micro_batch": micro_batch}

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Do nothing: the function has written when it was called."""

    def staged(self) -> list[str]:
        """List nothing."""
        return []

    def discard(self, attempts: Iterable[str]) -> None:
        """Do nothing: what the function wrote is not known here."""

    def undo(self, to_epoch: int, epoch: int) -> None:
        """Do nothing, as the plan says."""

    def keep(self, epoch: int) -> None:
        """Do nothing: every row stays anyway."""

    def plan_undo(self, to_epoch: int) -> str:
        """Say that nothing is undone."""
        return "nothing is undone: rows that the function wrote stay, and come again"
