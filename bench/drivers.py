"""A driver without Spark: the real one, on a cut that is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slackwater.protocol.checkpoint import CheckpointReport
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.pipeline import locate
from slackwater.protocol.sinks import Attempt


class Driver:
    """One pipeline without sinks in a new folder."""

    def __init__(self, folder: Path) -> None:
        pipeline = locate(str(folder))
        self.store, self.log, self._clock = pipeline.store, pipeline.log, pipeline.clock
        self._driver = claim_driver(pipeline, "bench")

    def checkpoint(self, cut: Cut) -> CheckpointReport:
        return self._driver.checkpoint(cut, Attempt(checkpoint_id=self._clock.checkpoint_id(), outputs={}))


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
