"""Kill a payments pipeline again and again, then flip a bit of its state, and compare what it wrote with an oracle."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo import damaged, joined, judge, killed, unnoticed
from demo.jvm import spare_archive
from demo.lives import Sizes
from demo.oracle import expected_totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--act", choices=["1", "2", "all"], default="all", help="the kills, the flipped bits, or both")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rows-per-batch", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=len(killed.KILLS), help="how many of the kills to do")
    parser.add_argument("--folder", type=Path, help="new, empty, or of an earlier demo; by default a temporary one")
    parser.add_argument("--take-a-row", action="store_true", help="take one row out of a sink, to see it noticed")
    parser.add_argument(
        "--age-a-risk", action="store_true", help="give one row the risk of one change before, to see it noticed"
    )
    args = parser.parse_args()
    if args.act == "all" and args.kills < 1:
        parser.error("act two goes on from a kill: --kills 1 or more, or --act 1")
    console = Console()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="slackwater-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if args.act == "2" and not (folder / killed.KEPT).is_dir():
        console.print("act two goes on from a kill: play act one first, and give its --folder", style="red")
        return 2
    if any(folder.iterdir()) and not (folder / "store" / "payments").is_dir():
        console.print(f"{folder} is not empty", style="red")
        return 2
    spare_archive(folder, starts=(0 if args.act == "2" else args.kills + 1) + (0 if args.act == "1" else 3))
    sizes = Sizes(args.rows, args.rows_per_batch)
    faults = [judge.take_a_row] * args.take_a_row + [joined.age_a_risk] * args.age_a_risk
    passed = args.act == "2" or act_one(console, folder, sizes, args.kills, faults)
    if args.act != "1" and passed:
        passed = act_two(console, folder, sizes)
    for left in ("work", "plain"):
        shutil.rmtree(folder / left, ignore_errors=True)
    for archive in folder.glob("classes.*"):
        archive.unlink()
    console.print(f"Look around:  .venv/bin/slackwater list {folder}/store/payments", soft_wrap=True)
    return 0 if passed else 1


def act_one(console: Console, folder: Path, sizes: Sizes, kills: int, faults: Sequence[Callable[[Path], None]]) -> bool:
    """Run the pipeline to its end, killed on the way; tell whether both sinks have every row once, with its risk."""
    what = "Payments by merchant and window, with the merchant's risk, into Delta and Parquet"
    console.print(f"{what}, killed {kills} times.  Folder: {folder}")
    began = time.monotonic()
    lives = killed.play(console, folder, sizes, kills)
    if lives is None:
        return False
    for do in faults:
        do(folder)
    verdict = judge.judge(folder, sizes.rows)
    killed.report(console, lives)
    judge.report(console, verdict, sizes.rows)
    console.print(f"{kills} kills, {time.monotonic() - began:.0f} s")
    return verdict.exact


def act_two(console: Console, folder: Path, sizes: Sizes) -> bool:
    """Flip one bit under plain Spark and one under Slackwater; tell whether each did what the demo says of it."""
    began = time.monotonic()
    console.print("One bit of a state file is flipped, under plain Spark:")
    spark = unnoticed.play(console, folder, sizes.rows // 2)
    if spark is None:
        return False
    console.print("And under Slackwater, in the pipeline as the last kill left it:")
    killed.bring_back(folder)
    ours = damaged.play(console, folder, sizes)
    console.print(side_by_side(spark, ours, len(expected_totals(sizes.rows))))
    console.print(f"2 flipped bits, {time.monotonic() - began:.0f} s")
    return unnoticed.as_said(console, spark) and ours.proper


def side_by_side(spark: unnoticed.Outcome, ours: damaged.Outcome, expected: int) -> Table:
    table = Table("", f"plain Spark {spark.spark}", "Slackwater", title="One flipped bit in a state file")
    sinks = ours.verdict.sinks if ours.verdict else {}
    lost = sum(len(found.lost) for found in sinks.values())
    surplus = sum(found.surplus for found in sinks.values())
    amiss = sum(ours.verdict.joined.amiss.values()) if ours.verdict else 0
    stopped = "stopped, and named it" if ours.stopped else "DID NOT NAME IT"
    table.add_row("error", spark.error or "none", f"{ours.code}, exit code {ours.refused.exit_code}")
    table.add_row("over the damaged file", "stopped" if spark.error else "went on", stopped)
    table.add_row("told to", "", f"rolled back to epoch {ours.to_epoch}, sinks too, and went on")
    table.add_row("rows lost", f"{spark.lost} of {spark.expected}", f"{lost} of {expected}, in {len(sinks)} sinks")
    table.add_row("rows repeated or wrong", str(spark.surplus), str(surplus))
    table.add_row("rows joined amiss", "", str(amiss))
    silent = "[red]rows gone, no error[/]" if spark.silent else "[yellow]not what was said[/]"
    table.add_row("verdict", silent, "[green]exactly once[/]" if ours.proper else "[red]NOT AS PROMISED[/]")
    return table


if __name__ == "__main__":
    sys.exit(main())
