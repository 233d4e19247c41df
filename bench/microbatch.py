"""What a micro-batch costs: plain Spark against Slackwater, in CPU seconds of all processes, in wall time."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from .lines import print_case, say
from .puts import settlements
from .workload import Block, Ours, Plain, Shape, Side, run_block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Before these, code is being compiled and state has not its full size.
WARM_UP = 15
# Of each block, until the query has read its state again and is in its stride.
SKIP = 3


def measure(spark: SparkSession, shape: Shape, folder: Path, *, rounds: int, micro_batches: int) -> None:
    """Run the three sides in turn, ``rounds`` times, and print both cases for this number of stores."""
    plain = [Plain(spark, shape, folder / f"plain-{version}", version) for version in (1, 2)]
    ours = Ours(spark, shape, folder / "slackwater")
    sides: list[Side] = [*plain, ours]
    blocks: dict[str, list[Block]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        # The order turns around, so that no side is always the one whose code is compiled the longest.
        for side in sides if number % 2 else sides[::-1]:
            block = run_block(side, SKIP if number else WARM_UP, micro_batches)
            say(
                f"{shape.stores} stores, {f'round {number}' if number else 'warm-up'}, {side.name}: "
                f"{block.cpu_s:.3f} CPU s, {block.wall_s:.3f} s a micro-batch"
            )
            if number:
                blocks[side.name].append(block)
    size = f"{shape.stores} stores, {shape.rows} rows a micro-batch"
    cpu_s = {name: statistics.mean(block.cpu_s for block in of_side) for name, of_side in blocks.items()}
    wall_s = {name: statistics.median(w for b in of_side for w in b.walls_s) for name, of_side in blocks.items()}
    for case, values, goal in (("cpu", cpu_s, 0.97), ("wall", wall_s, 0.95)):
        peer = min((side.name for side in plain), key=lambda name: values[name])
        mine, theirs = ([getattr(block, f"{case}_s") for block in blocks[name]] for name in (ours.name, peer))
        print_case(
            f"pipeline/microbatch-{case}-{shape.stores}",
            pairs=list(zip(mine, theirs, strict=True)),
            ours=values[ours.name],
            unit="CPU s" if case == "cpu" else "s",
            reference=f"{peer}, the faster of formats 1 and 2; {size}",
            reference_value=values[peer],
            goal=goal,
            sides={name: round(value, 4) for name, value in values.items()},
            **({} if case == "cpu" else {"phases_ms": _phases_ms(ours.folder)}),
        )


def _phases_ms(folder: Path) -> dict[str, float]:
    """Tell where the time of our checkpoints went: the median of each phase, from the log."""
    settled = [s for s in settlements(folder) if s.durations_ms]  # a start that commits an epoch anew has none
    return {phase: statistics.median(s.durations_ms[phase] for s in settled) for phase in settled[-1].durations_ms}
