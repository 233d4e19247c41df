"""Sender, receiver, pipeline, sink: receiver and driver are killed, and the sink has each message once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq

import slackwater as sw
from demo.jvm import quick_start
from slackwater.failpoints import VARIABLE
from slackwater.inboxes.files import read_covered, read_published
from tests.crash.drivers import CLASSES, read_state
from tests.crash.receivers import NDJSON, Receiver, post

PROGRAM = Path(__file__).with_name("inbox_pipeline.py")


class Sender:
    """Sends numbers in order, each request until it is acknowledged, to whatever receiver there is."""

    def __init__(self) -> None:
        self.port: int | None = None
        self.sent = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            body = "\n".join(json.dumps({"number": 10 * self.sent + part}) for part in range(10)).encode()
            try:
                status, answer = post(self.port or 9, body, Idempotency_Key=str(self.sent), Content_Type=NDJSON)
            except OSError:
                self._ended.wait(0.05)
                continue
            assert (status, answer["accepted"]) == (200, 10), answer
            self.sent += 1
            self._ended.wait(0.01)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def run(inbox: Path, folder: Path, *options: str, failpoints: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slackwater.cli", "run", str(PROGRAM), str(inbox), str(folder), *options]
    environment = {**os.environ, **quick_start(CLASSES), VARIABLE: failpoints}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(driver: subprocess.Popen[str]) -> tuple[int, str]:
    _, words = driver.communicate(timeout=180)
    return driver.returncode, words


def test_each_message_reaches_the_sink_once_though_receiver_and_driver_are_killed(tmp_path):
    inbox, sender = tmp_path / "inbox", Sender()
    receiver = Receiver("http", inbox, "--listen", "127.0.0.1:0", failpoints="inbox.drop.after=kill")
    try:
        sender.port = receiver.port()
        # The driver dies with the third acknowledgement half written; before that, the receiver when it has dropped.
        driver = run(inbox, tmp_path, failpoints="document.write.after@3=kill")
        receiver.process.wait(120)
        assert receiver.end()[0] == -signal.SIGKILL, receiver.words
        receiver = Receiver("http", inbox, "--listen", "127.0.0.1:0")
        sender.port = receiver.port()
        code, words = finish(driver)
        assert code == -signal.SIGKILL, words[-3000:]
        sender.end()
        code, words = finish(run(inbox, tmp_path, "--once"))
        assert code == 0, words[-3000:]
        assert "delivery is exactly once from the receiver on" in words
    finally:
        sender.end()
        receiver.end()
    tables = [pq.ParquetFile(path).read() for path in sw.read_committed(str(tmp_path / "sink"))]
    rows = sorted(row for table in tables for row in zip(*table.to_pydict().values(), strict=True))
    assert [position for position, _ in rows] == list(range(1, 10 * sender.sent + 1))
    assert [json.loads(message)["number"] for _, message in rows] == list(range(10 * sender.sent))
    state, covered, published = read_state(tmp_path, "clicks"), read_covered(inbox), read_published(inbox)
    assert state is not None and covered is not None
    assert covered.pipeline == state.uid
    # What the oldest live checkpoint needs is there, and what it covers is gone.
    assert 0 < published.dropped <= covered.position < published.position == len(rows)
