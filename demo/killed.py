"""Act one: the driver is killed at named steps of the protocol, and goes on."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.lives import Life, Sizes, live

# Where the driver dies, at which time that it comes there, and what that means.
KILLS = [
    ("stage.after@8", "both sinks hold output that nothing refers to"),
    ("capture.before@3", "Spark has committed, Slackwater has stored nothing"),
    ("manifest.after@3", "all bytes are stored, nothing counts yet"),
    ("append.after@3", "the checkpoint counts, no sink has its output"),
    ("commit.after@5", "one sink has its output, the other not"),
    ("delete.between@2", "old checkpoints are half deleted"),
]
# The pipeline as the last kill left it is kept in a folder of its own, for act two.
KEPT = "killed"
_PARTS = ("store", "totals-delta", "totals-files")


def play(console: Console, folder: Path, sizes: Sizes, kills: int) -> list[Life] | None:
    """Run the pipeline, killed at each point in turn, then once to its end; None when a life ended otherwise."""
    lives = []
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sizes.micro_batches)
        for point, meaning in [*KILLS[:kills], ("", "")]:
            progress.update(task, description=f"to die at {point}" if point else "to the end")
            life = live(folder, sizes, point=point, on_epoch=lambda done: progress.update(task, completed=done))
            lives.append(life)
            expected = -signal.SIGKILL if point else 0
            if life.exit_code != expected or (point and not life.died_there):
                told = f"exit code {life.exit_code} where {expected} was expected\n{life.last_words}"
                console.print(told, style="red", markup=False)
                return None
            if point:
                progress.console.print(f"  [red]SIGKILL[/] at {life.point}: {meaning}")
            if len(lives) == kills:
                for part in _PARTS:
                    shutil.copytree(folder / part, folder / KEPT / part)
    return lives


def bring_back(folder: Path) -> None:
    """Put the pipeline that was kept where it was when it was killed: its sinks are known by their paths."""
    for part in _PARTS:
        shutil.rmtree(folder / part)
        (folder / KEPT / part).rename(folder / part)
    (folder / KEPT).rmdir()


def report(console: Console, lives: list[Life]) -> None:
    table = Table("life", "died at", "epochs", "recovered in", "first epoch after", title="Every life of the driver")
    for number, life in enumerate(lives, 1):
        table.add_row(
            str(number),
            life.point or "the end",
            str(life.epochs),
            f"{life.recovered_ms} ms" if life.recovered_ms is not None else "",
            f"{life.first_epoch_s:.1f} s" if life.first_epoch_s else "",
        )
    console.print(table)
    epochs = sum(life.epochs for life in lives)
    # Of state and table. Spark also writes two log files a micro-batch, and would put each as an object of its own.
    files = sum(life.state_files for life in lives) + 2 * epochs
    cost = Table("", "each file by itself", "Slackwater", title=f"What {epochs} checkpoints cost")
    cost.add_row("objects written", str(files), str(sum(life.requests for life in lives)) + " requests")
    cost.add_row(
        "bytes", f"{sum(life.file_bytes for life in lives):,}", f"{sum(life.stored_bytes for life in lives):,}"
    )
    console.print(cost)
