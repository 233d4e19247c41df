"""Receivers as users run them: processes of `slackwater receive`, to be killed, with senders that do not give up."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from slackwater.failpoints import VARIABLE
from slackwater.inboxes.documents import Covered
from slackwater.inboxes.files import read_published, write_covered
from slackwater.inboxes.reader import read_messages

NDJSON = "application/x-ndjson"


class Receiver:
    """One receiver process; its stderr is read as it comes."""

    def __init__(self, *arguments: object, failpoints: str = "", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slackwater.cli", "receive", *map(str, arguments)],
            env={**os.environ, VARIABLE: failpoints, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
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
        with self._changed:
            self._lines.append("(ended)")
            self._changed.notify_all()

    @property
    def words(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str] | None:
        """Wait until it says this, and return the match; None when it has ended before."""
        wanted = re.compile(pattern)
        with self._changed:
            self._changed.wait_for(lambda: "(ended)" in self._lines or wanted.search("".join(self._lines)), 60)
            return wanted.search("".join(self._lines))

    def port(self) -> int | None:
        match = self.wait_for(r"receiving at http://127\.0\.0\.1:(\d+)")
        return int(match[1]) if match else None

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it, if it has not ended, and return its exit code and what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None and self.process.stderr is not None
            printed = self.process.stdout.read()
            self.process.stdout.close()
            self._reader.join(10)
            self.process.stderr.close()
        return self.process.returncode, printed


def post(port: int, body: bytes, **headers: str) -> tuple[int, Any]:
    """Send one request, and return its status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/", body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except http.client.HTTPException as error:
        raise ConnectionError("the answer was cut") from error
    finally:
        connection.close()


def get(port: int, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Collector:
    """What a pipeline does, without Spark: read by position, keep, then let the inbox drop it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: list[bytes] = []

    def collect(self, *, cover: bool = True) -> None:
        published = read_published(self._folder)
        for chunk in read_messages(self._folder, published.inbox, len(self.rows), published.position):
            assert chunk[0].position == len(self.rows) + 1
            self.rows += [message.content for message in chunk]
        if cover:
            covered = Covered(inbox=published.inbox, position=len(self.rows), pipeline=32 * "a")
            write_covered(self._folder, covered)
