"""Drivers as users run them: processes of `slackwater run` over the demo's pipeline, to be killed or stopped."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from demo.judge import read_sinks
from demo.jvm import quick_start
from demo.oracle import Key, Total, expected_totals
from demo.payments import EPOCH_MS, JITTER_MS, STEP_MS, WATERMARK_DELAY_MS, WINDOW_MS, payment
from slackwater.clock import SystemClock
from slackwater.failpoints import VARIABLE
from slackwater.formats.state import State
from slackwater.protocol.log import Log
from slackwater.settings import Settings
from slackwater.store import open_store

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "demo" / "pipeline.py"
ROWS_PER_BATCH = 1_000
CLASSES = Path(tempfile.mkdtemp(prefix="slackwater-tests-"))
atexit.register(shutil.rmtree, CLASSES, ignore_errors=True)


class Driver:
    """One driver process; its stderr is read as it comes."""

    def __init__(self, folder: Path, *, rows: int, failpoints: str = "", options: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "slackwater.cli", "run", str(PIPELINE), str(folder), "--rows", str(rows)]
        command += ["--rows-per-batch", str(ROWS_PER_BATCH), "--keep-last", "2", *options]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **quick_start(CLASSES), VARIABLE: failpoints},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    @property
    def words(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str, timeout_s: float = 120) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: any(re.search(pattern, line) for line in self._lines), timeout_s)
        assert found, f"{pattern!r} was not said:\n{self.words}"

    def wait_stopped(self, point: str) -> None:
        """Wait until the process has stopped itself at a failpoint."""
        self.wait_for(rf"failpoint {re.escape(point)}: stop")

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = 180) -> int:
        try:
            code = self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def run(folder: Path, *, rows: int, failpoints: str = "", options: tuple[str, ...] = ()) -> tuple[int, str]:
    driver = Driver(folder, rows=rows, failpoints=failpoints, options=options)
    return driver.end(), driver.words


def read_state(folder: Path, pipeline: str = "payments") -> State | None:
    settings = Settings()
    return Log(open_store(str(folder / "store" / pipeline), settings), SystemClock(), settings).read()


def expected_after(epoch: int, rows: int) -> dict[Key, Total]:
    """What a sink holds when it has committed ``epoch``: the windows that the watermark has closed by then.

    The micro-batch of epoch e is e - 1; its watermark is the newest payment of those before it, less the delay.
    """
    before = min(rows, (epoch - 1) * ROWS_PER_BATCH)
    if before >= rows:
        return expected_totals(rows)
    # Only the last few minutes of rows can hold the newest payment.
    newest = max(
        (payment(i).at_ms for i in range(max(0, before - 2 * JITTER_MS // STEP_MS - 1), before)),
        default=EPOCH_MS - WINDOW_MS,
    )
    watermark_ms = newest - WATERMARK_DELAY_MS
    return {key: total for key, total in expected_totals(rows).items() if key[0] + WINDOW_MS <= watermark_ms}


def sinks_hold(folder: Path, rows: int, epochs: tuple[int, ...]) -> None:
    """Assert that each sink equals the oracle as of one of these epochs: nothing lost, repeated or foreign."""
    for name, found in read_sinks(folder).items():
        rows_found = sorted(found)
        candidates = [
            sorted((*key, *total) for key, total in expected_after(epoch, rows).items())
            for epoch in epochs
            if epoch >= 0
        ]
        assert rows_found in candidates, f"the sink {name} has {len(rows_found)} rows, not those of epoch {epochs}"
