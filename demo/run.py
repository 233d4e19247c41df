"""Kill a payments pipeline again and again, then compare what it wrote with an oracle."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slackwater.failpoints import VARIABLE
from slackwater.pipeline.sinks.files import read_committed
from slackwater.testing.jvm import quick_start
from slackwater.testing.oracle import Comparison, compare, counts, expected_totals

# Where the driver dies, at which time that it comes there, and what that means.
KILLS = [
    ("stage.after@8", "both sinks hold output that nothing refers to"),
    ("capture.before@3", "Spark has committed, Slackwater has stored nothing"),
    ("manifest.after@3", "all bytes are stored, nothing counts yet"),
    ("append.after@3", "the checkpoint counts, no sink has its output"),
    ("commit.after@5", "one sink has its output, the other not"),
    ("delete.between@2", "old checkpoints are half deleted"),
]
_EPOCH = re.compile(
    r"epoch (\d+), micro-batch (\d+): (\d+) state files \((\d+) bytes\) stored as (\d+) bytes"
    r".*; (\d+) puts, (\d+) lists"
)
_READY = re.compile(r"generation \d+: (?:recovered epoch \d+|starts fresh) in (\d+) ms")


class Run(msgspec.Struct):
    """One life of the driver."""

    point: str
    epochs: int = 0
    state_files: int = 0
    file_bytes: int = 0
    stored_bytes: int = 0
    requests: int = 0
    recovered_ms: int | None = None
    first_epoch_s: float | None = None
    died_there: bool = False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rows-per-batch", type=int, default=2_000)
    parser.add_argument("--kills", type=int, default=len(KILLS), help="how many of the kills to do")
    parser.add_argument("--folder", type=Path, help="an empty or new folder; by default a temporary one")
    parser.add_argument("--take-a-row", action="store_true", help="take one row out of a sink, to see it noticed")
    args = parser.parse_args()
    console = Console()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="slackwater-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        console.print(f"{folder} is not empty", style="red")
        return 2
    console.print(
        f"Payments by merchant and window, into Delta and Parquet, killed {args.kills} times.  Folder: {folder}"
    )
    began = time.monotonic()
    runs = play(console, folder, args)
    if runs is None:
        return 1
    if args.take_a_row:
        take_a_row(folder)
    verdicts = judge(folder, args.rows)
    report(console, runs, verdicts, args.rows, time.monotonic() - began)
    shutil.rmtree(folder / "work", ignore_errors=True)
    for left in folder.glob("classes.*"):
        left.unlink()
    console.print(f"Look around:  .venv/bin/slackwater list {folder}/store/payments")
    return 0 if all(comparison.exact for comparison in verdicts.values()) else 1


def play(console: Console, folder: Path, args: argparse.Namespace) -> list[Run] | None:
    """Run the pipeline, killed at each point in turn, then once to its end."""
    micro_batches = -(-args.rows // args.rows_per_batch) + 1  # and one without data, which closes the last windows
    runs = []
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=micro_batches)
        for point, meaning in [*KILLS[: args.kills], ("", "")]:
            run = Run(point.partition("@")[0])
            progress.update(task, description=f"to die at {point}" if point else "to the end")
            code, tail = live(folder, args, point, run, lambda done: progress.update(task, completed=done))
            runs.append(run)
            expected = -signal.SIGKILL if point else 0
            if code != expected or (point and not run.died_there):
                console.print(f"exit code {code} where {expected} was expected\n{tail}", style="red", markup=False)
                return None
            if point:
                progress.console.print(f"  [red]SIGKILL[/] at {run.point}: {meaning}")
    return runs


def live(folder: Path, args: argparse.Namespace, point: str, run: Run, on_epoch) -> tuple[int, str]:  # type: ignore[no-untyped-def]
    """Let one driver live; return how it ended, and its last words."""
    command = [sys.executable, "-m", "slackwater.cli", "run", str(Path(__file__).with_name("pipeline.py")), str(folder)]
    command += ["--rows", str(args.rows), "--rows-per-batch", str(args.rows_per_batch)]
    environment = {**os.environ, **quick_start(folder), VARIABLE: f"{point}=kill" if point else ""}
    began = time.monotonic()
    driver = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    words: list[str] = []
    try:
        assert driver.stderr is not None
        for line in driver.stderr:
            words = [*words[-30:], line]
            run.died_there = run.died_there or line.startswith(f"failpoint {run.point}: kill")
            if match := _READY.search(line):
                run.recovered_ms = int(match[1])
            elif match := _EPOCH.search(line):
                run.epochs += 1
                run.state_files += int(match[3])
                run.file_bytes += int(match[4])
                run.stored_bytes += int(match[5])
                run.requests += int(match[6]) + int(match[7])
                run.first_epoch_s = run.first_epoch_s or time.monotonic() - began
                on_epoch(int(match[1]))
        return driver.wait(), "".join(words)
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()


def read_sinks(folder: Path) -> dict[str, Iterator[tuple[int, str, int, int]]]:
    """Read both sinks as their readers would."""

    def rows(tables) -> Iterator[tuple[int, str, int, int]]:  # type: ignore[no-untyped-def]
        for table in tables:
            for row in table.to_pylist():
                start_ms = round(row["window_start"].timestamp() * 1000)
                yield start_ms, row["merchant"], row["amount_cents"], row["payments"]

    delta = DeltaTable(str(folder / "totals-delta")).file_uris()
    files = read_committed(folder / "totals-files")
    return {name: rows(pq.read_table(file) for file in paths) for name, paths in (("delta", delta), ("files", files))}


def judge(folder: Path, total: int) -> dict[str, Comparison]:
    expected = expected_totals(total)
    return {name: compare(expected, rows) for name, rows in read_sinks(folder).items()}


def take_a_row(folder: Path) -> None:
    """Take one row out of a published file, as a fault that the comparison must see."""
    victim = sorted((folder / "totals-files").glob("*.parquet"))[0]
    pq.write_table(pq.read_table(victim).slice(1), victim)


def report(console: Console, runs: list[Run], verdicts: dict[str, Comparison], rows: int, took_s: float) -> None:
    lives = Table("life", "died at", "epochs", "recovered in", "first epoch after", title="Every life of the driver")
    for number, run in enumerate(runs, 1):
        lives.add_row(
            str(number),
            run.point or "the end",
            str(run.epochs),
            f"{run.recovered_ms} ms" if run.recovered_ms is not None else "",
            f"{run.first_epoch_s:.1f} s" if run.first_epoch_s else "",
        )
    console.print(lives)
    epochs = sum(run.epochs for run in runs)
    # Spark also writes two log files a micro-batch, and would put each file as an object of its own.
    spark_files = sum(run.state_files for run in runs) + 2 * epochs
    cost = Table("", "Spark's own files", "Slackwater", title=f"What {epochs} checkpoints cost")
    cost.add_row("objects written", str(spark_files), str(sum(run.requests for run in runs)) + " requests")
    cost.add_row("bytes", f"{sum(run.file_bytes for run in runs):,}", f"{sum(run.stored_bytes for run in runs):,}")
    console.print(cost)
    expected, dropped = len(expected_totals(rows)), counts(rows)
    sums = Table("sink", "rows expected", "lost", "repeated", "wrong", "verdict", title="Against the oracle")
    for name, found in verdicts.items():
        sums.add_row(
            name,
            str(expected),
            str(len(found.lost)),
            str(len(found.repeated)),
            str(len(found.wrong) + len(found.unexpected)),
            "[green]exactly once[/]" if found.exact else "[red]NOT EQUAL[/]",
        )
    console.print(sums)
    console.print(
        f"{rows:,} payments in, {dropped.duplicates:,} duplicates and {dropped.late:,} late ones dropped, "
        f"{len(runs) - 1} kills, {took_s:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
