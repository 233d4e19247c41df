"""The pipeline against plain Spark: CPU, wall time, requests, growth of state, restart.

``docs/performance.md`` says what is compared with what, and where the time goes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from . import big_state, growth, microbatch, puts, restart
from .lines import say
from .workload import Shape, start_spark

CASES = ("microbatch", "puts", "growth", "recovery")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    # The empty list is there because argparse checks the default, too.
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all, unless some are named")
    parser.add_argument("--stores", type=int, nargs="+", default=[8, 64], help="state stores: two a partition")
    parser.add_argument("--rows", type=int, default=10_000, help="rows a micro-batch")
    parser.add_argument("--rounds", type=int, default=4, help="how often the sides take turns")
    parser.add_argument("--state-mb", type=int, default=200, help="state of the large pipeline")
    parser.add_argument("--scratch", type=Path, help="a folder for what is written; a temporary one unless named")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=args.scratch))
    try:
        run(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(args: argparse.Namespace, folder: Path) -> None:
    cases = args.cases or CASES
    spark, state_bytes, large = start_spark(), args.state_mb * 1_000_000, folder / "large"
    if "microbatch" in cases:
        for stores in args.stores:
            shape = Shape(partitions=stores // 2, rows=args.rows)
            # As many as make some ten seconds.
            count = max(6, 120 // stores)
            microbatch.measure(spark, shape, folder / f"stores-{stores}", rounds=args.rounds, micro_batches=count)
    if "puts" in cases:
        puts.measure(spark, Shape(partitions=32, rows=args.rows), folder / "puts", micro_batches=4)
    if "growth" in cases or "recovery" in cases:
        say("filling the large pipeline")
        state_bytes = big_state.fill(spark, large, state_bytes)
    kept = folder / "kept"
    if "recovery" in cases:
        shutil.copytree(large, kept)
    if "growth" in cases:
        growth.measure(spark, folder, large, state_bytes=state_bytes, rounds=args.rounds, micro_batches=8)
    spark.stop()
    if "recovery" in cases:
        restart.measure(kept, large, state_bytes=state_bytes, rounds=args.rounds)


if __name__ == "__main__":
    main()
