"""Act two, plain Spark's half: one bit of a state file is flipped, and the query goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from demo.flipping import say
from demo.jvm import quick_start

# The release that is known to lose rows over the bit without an error: it must, or the demo shows nothing. Should
# another release notice the bit, the demo says so, and does not fail for it.
KNOWN_SILENT = "4.3.0"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the totals that Tuesday's payments close, with the bit flipped and without."""

    spark: str
    payments: int
    file: str
    state_rows_before: int
    state_rows_after: int | None
    state_rows_without_flip: int
    error: str | None
    expected: int
    written: int
    lost: int
    surplus: int
    lost_without_flip: int
    surplus_without_flip: int

    @property
    def silent(self) -> bool:
        return self.error is None and self.lost > 0


def play(console: Console, folder: Path, payments: int) -> Outcome | None:
    """Run plain Spark in a process of its own, and tell what it did; None when it did not come to its end."""
    command = [sys.executable, "-m", "demo.plain", str(folder / "plain"), "--payments", str(payments)]
    with console.status("plain Spark"):
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[1],
            env={**os.environ, **quick_start(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        console.print(f"plain Spark ended with {done.returncode}\n{done.stderr}", style="red", markup=False)
        return None
    outcome = msgspec.json.decode(done.stdout, type=Outcome)
    _tell(console, outcome)
    return outcome


def as_said(console: Console, outcome: Outcome) -> bool:
    """Tell whether plain Spark did what the demo says of it, or does better in another release."""
    if outcome.lost_without_flip or outcome.surplus_without_flip or outcome.surplus:
        console.print("Plain Spark's totals are wrong in other ways too: this run shows nothing.", style="red")
        return False
    if outcome.silent:
        return True
    what = "noticed the flipped bit" if outcome.error else "lost nothing over the flipped bit"
    console.print(f"Spark {outcome.spark} has {what}. Spark {KNOWN_SILENT} is known not to.", style="yellow")
    return outcome.spark != KNOWN_SILENT


def _tell(console: Console, outcome: Outcome) -> None:
    for line in (
        f"Monday: {outcome.payments:,} payments are totalled, {outcome.state_rows_before} totals are in the state, and "
        "the query is stopped",
        f"one bit is flipped in {outcome.file}",
        "(the hidden .crc file beside it would tell, and is removed: local file systems have it, object stores do not)",
        f"Tuesday: {outcome.payments:,} more, which close {outcome.expected} totals",
        f"{outcome.error or 'no error'}: {outcome.written} are written, {outcome.lost} are gone; Spark counts "
        f"{outcome.state_rows_after} in its state",
        f"the same from a copy without the flip: {outcome.lost_without_flip} are gone; Spark counts "
        f"{outcome.state_rows_without_flip}",
    ):
        say(console, line)
