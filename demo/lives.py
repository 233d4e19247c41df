"""Lives of the demo's driver, each a process of its own, while the merchants' risk changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from demo import versions
from demo.jvm import quick_start
from demo.merchants import FEED, changing
from slackwater.failpoints import VARIABLE
from slackwater.spark.working_directory import VARIABLE as WORK

_EPOCH = re.compile(
    r"epoch (\d+), micro-batch (\d+): (\d+) state files \((\d+) bytes\) stored as (\d+) bytes"
    r".*; (\d+) puts, (\d+) lists"
)
_READY = re.compile(r"generation \d+: (?:recovered epoch \d+(?:, rolled back to (\d+),)?|starts fresh) in (\d+) ms")


class Sizes(msgspec.Struct, frozen=True):
    """How much the pipeline has to do."""

    rows: int
    rows_per_batch: int

    @property
    def micro_batches(self) -> int:
        return -(-self.rows // self.rows_per_batch) + 1  # and one without data, which closes the last windows


class Life(msgspec.Struct):
    """One life of the driver: where it is to die, what it did, and how it ended."""

    point: str = ""
    epochs: int = 0
    state_files: int = 0
    file_bytes: int = 0
    stored_bytes: int = 0
    requests: int = 0
    rolled_back_to: int | None = None
    recovered_ms: int | None = None
    first_epoch_s: float | None = None
    died_there: bool = False
    exit_code: int | None = None
    last_words: str = ""
    # What it answered on stdout, if it came to that.
    answer: dict[str, Any] = {}


def live(
    folder: Path,
    sizes: Sizes,
    *,
    point: str = "",
    fallback: bool = False,
    on_epoch: Callable[[int], None] | None = None,
) -> Life:
    """Let one driver live, to the end or to a failpoint."""
    command = [sys.executable, "-m", "slackwater.cli", "run", "--json", str(Path(__file__).with_name("pipeline.py"))]
    command += [str(folder), "--rows", str(sizes.rows), "--rows-per-batch", str(sizes.rows_per_batch)]
    command += ["--merchants", str(folder / FEED), *["--fallback"] * fallback]
    environment = {
        **os.environ,
        **quick_start(folder),
        VARIABLE: f"{point}=kill" if point else "",
        WORK: str(folder / "work"),
    }
    life = Life(point.partition("@")[0])
    with changing(folder):
        _follow(life, command, environment, folder, on_epoch)
    versions.note(folder)  # of a checkpoint that counted just before the kill, too
    return life


def _follow(
    life: Life, command: list[str], environment: dict[str, str], folder: Path, on_epoch: Callable[[int], None] | None
) -> None:
    began = time.monotonic()
    driver = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    words: list[str] = []
    try:
        assert driver.stdout is not None and driver.stderr is not None
        for line in driver.stderr:
            words = [*words[-30:], line]
            life.died_there = life.died_there or line.startswith(f"failpoint {life.point}: kill")
            if match := _READY.search(line):
                life.rolled_back_to = int(match[1]) if match[1] else None
                life.recovered_ms = int(match[2])
            elif match := _EPOCH.search(line):
                life.epochs += 1
                life.state_files += int(match[3])
                life.file_bytes += int(match[4])
                life.stored_bytes += int(match[5])
                life.requests += int(match[6]) + int(match[7])
                life.first_epoch_s = life.first_epoch_s or time.monotonic() - began
                versions.note(folder)
                if on_epoch is not None:
                    on_epoch(int(match[1]))
        said = driver.stdout.read()  # a short document, which the pipe holds until now
        life.exit_code, life.last_words = driver.wait(), "".join(words)
        life.answer = msgspec.json.decode(said) if said.strip() else {}
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
