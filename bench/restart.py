"""How long a restart takes: Spark on its own checkpoint directory against Slackwater from its store.

Each restart is a process of its own, ``python -m bench.restart``. Both begin with the very same state files: Spark's
directory is restored from the store. The clock runs from ``start()`` to the commit of the first micro-batch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.clock import SystemClock
from slackwater.protocol.log import Log
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.spark.hydrate import hydrate
from slackwater.store import open_store

from .big_state import CHANGED_ROWS, PARTITIONS, BigState, distinct
from .lines import print_case, say
from .workload import FORMAT, ROCKSDB, Shape, Side, commits, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TIMEOUT_S = 300


class PlainBigState(Side):
    """The same query by plain Spark: a foreachBatch with one Parquet write."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        conf = {**ROCKSDB, FORMAT: "2"}
        super().__init__("plain Spark", spark, Shape(partitions=PARTITIONS, rows=CHANGED_ROWS), folder, conf)

    def start(self) -> StreamingQuery:
        writer = distinct(self.spark, self.shape.rows).writeStream.outputMode("append").foreachBatch(self._write)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def _write(self, frame: DataFrame, micro_batch: int) -> None:
        frame.write.mode("append").parquet(str(self.folder / "one"))

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"


def measure(kept: Path, live: Path, *, state_bytes: int, rounds: int) -> None:
    """Restart a pipeline, made in ``live`` and kept in ``kept``, and plain Spark on the same state; print the case."""
    plain = kept.with_name("plain")
    _restore(kept, plain / "checkpoint")
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        taken: dict[str, float] = {}
        for side in ("slackwater", "plain") if number % 2 else ("plain", "slackwater"):
            # Every start finds the same, in the folder that the pipeline was made in.
            shutil.rmtree(live, ignore_errors=True)
            shutil.copytree(plain if side == "plain" else kept, live)
            taken[side] = _restart(side, live)
            say(f"restart {number + 1}, {side}: {taken[side]:.2f} s")
        pairs.append((taken["slackwater"], taken["plain"]))
    print_case(
        "pipeline/recovery",
        pairs=pairs,
        ours=statistics.median(mine for mine, _ in pairs),
        unit="s",
        reference=f"plain Spark's restart on its own directory with the same {state_bytes / 1e6:.0f} MB of state files",
        reference_value=statistics.median(theirs for _, theirs in pairs),
        goal=0.91,
    )


def _restore(pipeline: Path, directory: Path) -> None:
    store, settings = open_store(str(pipeline / "store" / "bench")), Settings()
    state = Log(store, SystemClock(), settings).read()
    assert state is not None
    assert state.head is not None
    hydrate(store, load_manifest(store, state.head), directory, settings)


def _restart(side: str, folder: Path) -> float:
    command = [sys.executable, "-m", "bench.restart", side, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=True)
    return float(json.loads(done.stdout)["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["slackwater", "plain"])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    spark = start_spark()
    side = BigState(spark, args.folder) if args.side == "slackwater" else PlainBigState(spark, args.folder)
    began = time.time()
    running = side.start()
    # The clock ends when the file came into being, not when it was noticed.
    ended = next(commits(running, side.checkpoint))
    running.stop()
    print(json.dumps({"seconds": ended - began}))


if __name__ == "__main__":
    main()
