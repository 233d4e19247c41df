"""A driver without Spark: the real log, checkpointer and store, on a cut that is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slackwater.clock import SystemClock
from slackwater.protocol import recovery
from slackwater.protocol.checkpoint import Checkpointer, CheckpointReport
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.protocol.log import Log
from slackwater.protocol.sinks import Attempt
from slackwater.settings import Settings
from slackwater.store import Store, open_store


class Driver:
    """One pipeline without sinks in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(str(folder))
        self.clock, settings = SystemClock(), Settings()
        self.log = Log(self.store, self.clock, settings)
        recovery.claim(self.store, self.log, self.clock, pipeline="bench", driver="bench", sinks={})
        self._checkpointer = Checkpointer(
            store=self.store, log=self.log, clock=self.clock, settings=settings, pipeline="bench"
        )

    def checkpoint(self, cut: Cut) -> CheckpointReport:
        return self._checkpointer.checkpoint(cut, Attempt(checkpoint_id=self.clock.checkpoint_id(), outputs={}))


def cut_of(sources: Sequence[bytes | Path]) -> Cut:
    """One partition a source, with one file."""
    sizes = [len(source) if isinstance(source, bytes) else source.stat().st_size for source in sources]
    partitions = [
        CutPartition(
            partition=number,
            path=f"state/0/{number}",
            version=1,
            unique_id="a",
            snapshot=[CutFile(f"state/0/{number}/1_a.zip", source, size)],
            deltas=[],
        )
        for number, (source, size) in enumerate(zip(sources, sizes, strict=True))
    ]
    operator = CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=partitions)
    return Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[operator], files=[])
