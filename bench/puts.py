"""How many objects a checkpoint puts: Spark's own files against Slackwater's requests."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.formats import record as records
from slackwater.formats.change import Settlement
from slackwater.formats.keys import LOG, RecordKey, parse_key
from slackwater.store import open_store

from .lines import print_case, say
from .workload import Ours, Plain, Shape, commits, run_block, unload_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SKIP = 3


def measure(spark: SparkSession, shape: Shape, folder: Path, *, micro_batches: int) -> None:
    """Print the case for this number of stores."""
    spark_puts = {}
    for version in (1, 2):
        side = Plain(spark, shape, folder / f"plain-{version}", version)
        spark_puts[side.name] = _new_files(side, micro_batches)
        say(f"{shape.stores} stores, {side.name}: {spark_puts[side.name]} files")
    ours = Ours(spark, shape, folder / "slackwater")
    run_block(ours, SKIP, micro_batches + 1)
    our_puts = [settled.requests["puts"] for settled in settlements(folder / "slackwater")][SKIP:][:micro_batches]
    say(f"{shape.stores} stores, slackwater: {our_puts} PUTs")
    fewest = min(spark_puts, key=lambda name: statistics.mean(spark_puts[name]))
    print_case(
        f"pipeline/puts-2x{shape.partitions}",
        pairs=list(zip(our_puts, spark_puts[fewest], strict=True)),
        ours=statistics.mean(our_puts),
        unit="PUTs a micro-batch",
        reference=f"files that {fewest} adds to its checkpoint directory, hidden ones not counted",
        reference_value=statistics.mean(spark_puts[fewest]),
        goal=16,
        sides={name: round(statistics.mean(files), 1) for name, files in spark_puts.items()},
    )


def _new_files(side: Plain, micro_batches: int) -> list[int]:
    """Count, micro-batch by micro-batch, the files that were not there before."""
    running = side.start()
    try:
        ends, added = commits(running, side.checkpoint), []
        for _ in range(SKIP):
            next(ends)
        seen = _files(side.checkpoint)
        for _ in range(micro_batches):
            next(ends)
            there = _files(side.checkpoint)
            added.append(len(there - seen))
            seen |= there
        return added
    finally:
        running.stop()
        unload_state(side.spark)


def _files(folder: Path) -> set[str]:
    return {f"{parent}/{name}" for parent, _, names in os.walk(folder) for name in names if not name.startswith(".")}


def settlements(folder: Path) -> list[Settlement]:
    """Read how each epoch of the pipeline in ``folder`` was settled, from its log."""
    store, found = open_store(str(folder / "store" / "bench")), []
    for listed in store.list(LOG):
        key = parse_key(listed.key)
        assert isinstance(key, RecordKey)
        change = records.decode(store.get(listed.key), number=key.number).change
        settled = getattr(change, "settled", None)
        if settled is not None:
            found.append(settled)
    return found
