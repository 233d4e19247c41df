"""A receiver of HTTP requests, each message durable before it is acknowledged, against the same one without a disk."""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from slackwater.inboxes.documents import Description
from slackwater.inboxes.group_commit import Appended
from slackwater.inboxes.inbox import Inbox
from slackwater.inboxes.receivers.http import open_socket, serve

from .lines import print_case
from .turns import take_turns, timed

REQUESTS, MESSAGES, SENDERS = 4_000, 100, 8
BODY = "\n".join(json.dumps({"id": n, "merchant": f"m{n:03}", "cents": 100 + n}) for n in range(MESSAGES)).encode()


class Volatile:
    """Takes messages as an inbox does, and only counts them."""

    def __init__(self) -> None:
        self.failure = self.hindrance = None
        self.refused = (0, 0)
        self._last = 0

    @property
    def description(self) -> Description:
        return Description(uid=32 * "0", last=self._last)

    def append(self, messages: list[bytes], **_: Any) -> Future[Appended]:
        done: Future[Appended] = Future()
        first, self._last = self._last + 1, self._last + len(messages)
        done.set_result(Appended(first, self._last))
        return done

    def begin_receiving(self) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        pass


def send_all(port: int) -> None:
    """Send all requests over a few connections, each answered before the next."""

    def send(sender: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(REQUESTS // SENDERS):
            connection.request("POST", "/", BODY, {"Content-Type": "application/x-ndjson"})
            response = connection.getresponse()
            if response.status != 200 or json.loads(response.read())["accepted"] != MESSAGES:
                raise RuntimeError(f"status {response.status}")
        connection.close()

    before = count(port)
    with ThreadPoolExecutor(SENDERS) as pool:
        # What a sender met is raised here: a round in which requests fail is quick, and measures nothing.
        list(pool.map(send, range(SENDERS)))
    if (taken := count(port) - before) != REQUESTS * MESSAGES:
        raise RuntimeError(f"{taken} messages were taken, and {REQUESTS * MESSAGES} were sent")


def count(port: int) -> int:
    """Ask the server how many messages it has."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/counters")
        return int(json.loads(connection.getresponse().read())["position"])
    finally:
        connection.close()


def measure(folder: Path, rounds: int) -> None:
    servers: dict[str, subprocess.Popen[str]] = {}
    ports: dict[str, int] = {}
    try:
        for side in ("ours", "volatile"):
            command = [sys.executable, "-m", "bench.receive", side, str(folder / "inbox")]
            servers[side] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stdout = servers[side].stdout
            ports[side] = int(stdout.readline()) if stdout else 0
        sides = {side: partial(timed, partial(send_all, port)) for side, port in ports.items()}
        measured = take_turns(sides, rounds)
    finally:
        for server in servers.values():
            server.terminate()
            server.communicate()
    ours, volatile = (statistics.median(measured[side]) for side in ("ours", "volatile"))
    print_case(
        "incremental/http-durable",
        pairs=list(zip(measured["ours"], measured["volatile"], strict=True)),
        ours=ours,
        unit="s",
        reference=f"the same server without durability, {REQUESTS} requests of {MESSAGES} messages, {SENDERS} senders",
        reference_value=volatile,
        goal=0.6,
        messages_per_s=round(REQUESTS * MESSAGES / ours),
    )


def main(side: str, folder: Path) -> None:
    inbox: Any = Inbox(folder) if side == "ours" else Volatile()
    with open_socket("127.0.0.1", 0, token=None) as listening:
        serve(inbox, listening, ready=lambda: print(listening.getsockname()[1], flush=True))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
