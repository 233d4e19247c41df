"""What a checkpoint costs when state grows and the change stays the same."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from .big_state import CHANGED_ROWS, BigState, Cost, costs, fill
from .lines import print_case, say
from .workload import run_block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SKIP = 3


def measure(
    spark: SparkSession, folder: Path, large: Path, *, state_bytes: int, rounds: int, micro_batches: int
) -> None:
    """Run the pipeline that ``large`` holds, filled, and one with a tenth of its state in turn; print both cases."""
    sizes = {"1x": fill(spark, folder / "1x", state_bytes // 10), "10x": state_bytes}
    sides = {"1x": BigState(spark, folder / "1x"), "10x": BigState(spark, large)}
    measured: dict[str, list[list[Cost]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in ("1x", "10x") if number % 2 else ("10x", "1x"):
            run_block(sides[name], SKIP, micro_batches)
            measured[name].append(costs(sides[name].folder, micro_batches))
            said = ", ".join(f"{cost.total_ms} ms {cost.new_bytes} B" for cost in measured[name][-1])
            say(f"{name} state, round {number + 1}: {said}")
    size = " and ".join(f"{sizes[name] / 1e6:.0f} MB" for name in sides)
    for case, unit, field in (("", "ms", "total_ms"), ("-bytes", "B", "new_bytes")):
        medians = {
            name: [statistics.median(getattr(cost, field) for cost in block) for block in blocks]
            for name, blocks in measured.items()
        }
        whole = {
            name: [getattr(cost, field) for block in blocks for cost in block] for name, blocks in measured.items()
        }
        print_case(
            f"pipeline/checkpoint-10x-state{case}",
            pairs=list(zip(medians["10x"], medians["1x"], strict=True)),
            ours=statistics.median(whole["10x"]),
            unit=unit,
            reference=f"the same pipeline with a tenth of the state; {size}, {CHANGED_ROWS} rows change",
            reference_value=statistics.median(whole["1x"]),
            goal=0.83,
            means={name: round(statistics.mean(values)) for name, values in whole.items()},
        )
