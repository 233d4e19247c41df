"""A loopback proxy in front of a real S3 server, which spoils some of what passes: by a seed, and counted.

It is a process of its own: while delta-rs restores a table, it lets no other thread of Python run.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import multiprocessing
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from tests.services.seaweed import Seaweed

# What can befall a request. An answer that is lost was given: the server has done what it was asked for.
DELAY, RESET, LOST_ANSWER, SLOW_DOWN, TOO_MANY, CUT = FAULTS = (
    "delay",
    "reset",
    "lost answer",
    "503 SlowDown",
    "429",
    "cut body",
)
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
# Of one connection, not of what it carries.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    """A running proxy. ``options`` are for ``open_store``."""

    def __init__(self, server: Seaweed, port: int, pipe: Connection) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options = {**server.options, "endpoint": self.endpoint}
        self._pipe = pipe

    @property
    def befell(self) -> Counter[str | None]:
        """Count what it did so far, by the fault; None stands for what passed unharmed."""
        self._pipe.send("count")
        counted: Counter[str | None] = self._pipe.recv()
        return counted


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behind: str, seed: int, percent: Mapping[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.befell: Counter[str | None] = Counter()
        self._percent = dict(percent)
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> tuple[str | None, float]:
        """Draw the next request's fault, and a number between 0 and 1 for how bad it is."""
        with self._lock:
            kinds = [*self._percent, None]
            weights = [*self._percent.values(), 100 - sum(self._percent.values())]
            return self._random.choices(kinds, weights)[0], self._random.random()

    def counted(self) -> Counter[str | None]:
        with self._lock:
            return Counter(self.befell)

    def count(self, fault: str | None) -> None:
        with self._lock:
            self.befell[fault] += 1

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that went away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Say nothing: headers are signed with what must not be shown."""

    def _serve(self) -> None:
        fault, measure = self.server.draw()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == RESET:
            return self._reset(RESET)
        if fault in (SLOW_DOWN, TOO_MANY):
            self.server.count(fault)
            status, said = (503, _SLOW_DOWN) if fault == SLOW_DOWN else (429, b"")
            return self._answer(status, [("Content-Type", "application/xml")], said, len(said))
        if fault == DELAY:
            time.sleep(0.3 * measure)
        status, headers, said = self._forward(body)
        if fault == LOST_ANSWER:
            return self._reset(LOST_ANSWER)
        length = int(dict(headers).get("content-length", len(said))) if self.command == "HEAD" else len(said)
        if fault == CUT and said:
            self.server.count(CUT)
            self._answer(status, headers, said[: int(len(said) * measure)], length)
            self.close_connection = True
            return None
        self.server.count(fault if fault == DELAY else None)
        return self._answer(status, headers, said, length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server the very same: the client has signed the Host header, which names this proxy."""
        upstream = http.client.HTTPConnection(self.server.behind, timeout=60)
        with contextlib.closing(upstream):
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer.status, [(name.lower(), value) for name, value in answer.getheaders()], answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name not in _HOP_BY_HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self, fault: str) -> None:
        """End the connection as a crash would: the client reads no end, but an error."""
        self.server.count(fault)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


@contextlib.contextmanager
def in_front_of(server: Seaweed, seed: int, percent: Mapping[str, int]) -> Iterator[Proxy]:
    """Run a proxy in front of a server; ``percent`` says how many requests of a hundred meet which fault."""
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, urlsplit(server.endpoint).netloc, seed, dict(percent))
    process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments, daemon=True)
    process.start()
    theirs.close()
    with ours:
        try:
            yield Proxy(server, ours.recv(), ours)
        finally:
            process.kill()
            process.join()


def _run(pipe: Connection, behind: str, seed: int, percent: Mapping[str, int]) -> None:
    """Serve until whoever asks for counts is gone."""
    server = _Server(behind, seed, percent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_address[1])
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send(server.counted())
