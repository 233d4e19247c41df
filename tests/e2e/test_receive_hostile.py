"""The HTTP receiver and senders that mean no good: slow, silent, many, large, or a web page."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import resource
import socket
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import Unavailable
from slackwater.inboxes.documents import Covered
from slackwater.inboxes.errors import OWNER
from slackwater.inboxes.files import write_covered
from slackwater.inboxes.inbox import Inbox
from slackwater.inboxes.receivers.http import HttpReceiver
from slackwater.inboxes.receivers.http_connections import Seldom, limit_connections
from slackwater.rocks.database import Rocks
from slackwater.rocks.errors import _translate
from slackwater.settings import MIB
from tests.crash.receivers import NDJSON, Receiver, get, post

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
PATIENCE_S = 30


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    made: list[socket.socket] = []

    def start(port: int, data: bytes = b"") -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
        with suppress(ConnectionError):  # it may be refused before all is sent
            made[-1].sendall(data)
        return made[-1]

    yield start
    for connection in made:
        connection.close()


def peak_mib(receiver: Receiver) -> int:
    status = Path(f"/proc/{receiver.process.pid}/status").read_text(encoding="utf-8")
    (kib,) = re.findall(r"VmHWM:\s+(\d+)", status)
    return int(kib) // 1024


def wait_for_200(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            status, answer = post(port, b"1")
        except OSError as error:
            status, answer = 0, error
        if status == 200:
            return
        assert time.monotonic() < deadline, (status, answer)
        time.sleep(0.1)


def test_slow_bodies_are_given_up_and_others_are_heard_again(receive, connect):
    receiver, port = receive("--timeout", 3)
    slow = [connect(port, CHUNKED + b"\r\n1\r\n1\r\n") for _ in range(16)]
    wait_for_200(port)
    assert all(connection.recv(1000).startswith(b"HTTP/1.1 408 ") for connection in slow)
    assert receiver.end()[0] == 0
    assert "Traceback" not in receiver.words


def test_senders_that_read_none_of_their_answers_do_not_keep_their_connections(receive, connect):
    receiver, port = receive("--timeout", 2)
    silent = connect(port)
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.settimeout(1)
    asked = b"GET /counters HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() < began + PATIENCE_S:
            with suppress(TimeoutError):
                silent.sendall(asked)
    assert receiver.end()[0] == 0
    assert "Traceback" not in receiver.words


@pytest.mark.parametrize("size", [8 * MIB + 1, 20 * MIB])
def test_a_sender_that_closes_its_connection_is_told_that_its_body_is_too_large(receive, size):
    """The answer comes at the end of what it sends: closed before that, it would see a broken connection alone."""
    _, port = receive()
    for _ in range(5):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/", data=bytes(size))  # it says Connection: close
        with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(asked, timeout=PATIENCE_S):
            pass
        refused.value.close()
        assert refused.value.code == 413


def test_one_who_asks_first_does_not_send_what_is_refused(receive, connect):
    _, port = receive()
    asking = connect(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    assert asking.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_sender_that_leaves_amid_its_body_is_no_error_of_the_receiver(receive, connect):
    receiver, port = receive()
    connect(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n123").close()
    wait_for_200(port)
    assert receiver.end()[0] == 0
    assert "Traceback" not in receiver.words


def test_silent_connections_are_closed_and_cannot_take_all_descriptors(receive, connect):
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, allowed[1]))
    try:
        receiver, port = receive("--timeout", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    # Half of them begin a request, and never end it.
    silent = [connect(port, b"P" * (number % 2)) for number in range(150)]
    # The first beyond the limit: before a later one is made, a busy machine may have closed some of those before it.
    assert silent[50].recv(100).startswith(b"HTTP/1.1 503 ")
    wait_for_200(port)
    assert [connection for connection in silent if not ended(connection)] == []
    assert receiver.end()[0] == 0
    assert len(receiver.words.splitlines()) < 30, receiver.words


def ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection, whatever is said before it."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_so_many_connections_are_taken_as_leave_half_of_the_descriptors(monkeypatch):
    for descriptors, most in [(100, 50), (20_000, 1000), (resource.RLIM_INFINITY, 1000)]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=descriptors: (allowed, allowed))
        assert limit_connections(1.0).most == most


def test_one_line_of_the_log_comes_once_a_minute():
    seldom = Seldom()
    lines = [logging.makeLogRecord({"msg": f"no descriptor\nsocket {number}"}) for number in range(9)]
    assert [seldom.filter(line) for line in lines] == [True] + 8 * [False]
    assert seldom.filter(logging.makeLogRecord({"msg": "another"}))


def test_memory_is_bounded_whatever_length_is_said_and_however_small_messages_are(receive, connect):
    receiver, port = receive()
    assert post(port, b"1")[0] == 200
    before = peak_mib(receiver)
    lying = CHUNKED + b"Content-Length: 1\r\n\r\n7f0000\r\n" + 0x7F0000 * b"1"
    for connection in [connect(port, lying) for _ in range(60)]:
        connection.close()
    wait_for_200(port)
    assert peak_mib(receiver) - before < 256
    status, answer = post(port, 4 * 1024 * 1024 * b"1\n", Content_Type=NDJSON)
    assert (status, answer["error"]["code"]) == (413, "receive.too_large"), answer
    assert "100000 lines" in answer["error"]["message"]
    assert post(port, 100_000 * b"1\n", Content_Type=NDJSON)[1]["accepted"] == 100_000
    assert peak_mib(receiver) - before < 256


def test_a_request_that_waits_for_the_disk_is_held_once(tmp_path, monkeypatch):
    inbox, requests, lines = Inbox(tmp_path / "inbox"), 4, 40
    writing, written, write = threading.Event(), threading.Event(), Rocks.write

    def wait(rocks: Rocks, *args: Any, **options: Any) -> None:
        writing.set()
        written.wait(PATIENCE_S)
        write(rocks, *args, **options)

    monkeypatch.setattr(Rocks, "write", wait)
    app, statuses = HttpReceiver(inbox).app(), list[int]()

    async def send(number: int) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": (b'"' + 100_000 * b"x" + b'"\n') * lines}

        async def note(answer: dict[str, Any]) -> None:
            statuses.extend([answer["status"]] if "status" in answer else [])

        headers = [(b"content-type", NDJSON.encode()), (b"content-length", b"%d" % (lines * 100_003))]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        await app(scope, receive, note)  # type: ignore[arg-type]

    async def main() -> int:
        sending = [asyncio.create_task(send(0))]
        while not writing.is_set():  # alone, or its group would be two of them
            await asyncio.sleep(0.01)
        sending += [asyncio.create_task(send(number)) for number in range(1, requests)]
        while inbox._waiting_bytes < requests * lines * 100_000:
            await asyncio.sleep(0.01)
        held, _ = tracemalloc.get_traced_memory()
        written.set()
        await asyncio.gather(*sending)
        return held

    tracemalloc.start()
    try:
        held = asyncio.run(main())
    finally:
        tracemalloc.stop()
        inbox.close()
    assert statuses == requests * [200]
    # The first of them is being written, and its messages are there once more for that.
    assert held < (requests + 2) * lines * 100_000


def test_only_a_full_disk_is_answered_507_whatever_the_folder_is_called(tmp_path, monkeypatch):
    inbox = Inbox(tmp_path / "No space left")

    def answer(why: str) -> int:
        error = _translate(inbox.folder, why, OWNER)
        return HttpReceiver(inbox)._refuse(error).status_code

    try:
        assert answer("Read-only file system") == 503
        assert answer("IO error: No space left on device: While appending to file") == 507
        assert answer("Disk quota exceeded") == 507
        monkeypatch.setattr(os, "replace", partial(_fail, errno.ENOSPC))
        with pytest.raises(Unavailable) as caught:
            write_covered(tmp_path, Covered(inbox=32 * "0", position=1, pipeline=32 * "a"))
        assert HttpReceiver(inbox)._refuse(caught.value).status_code == 507
    finally:
        monkeypatch.undo()
        inbox.close()


def _fail(number: int, *_: object) -> None:
    raise OSError(number, os.strerror(number))


def test_a_web_page_cannot_send_to_a_receiver_without_a_token(receive):
    page = {"Origin": "https://evil.example", "Content_Type": "text/plain"}
    receiver, port = receive()
    status, answer = post(port, b"1", **page)
    assert (status, answer["error"]["code"]) == (403, "receive.invalid")
    assert get(port, "/counters", Origin="null")[0] == 403
    assert get(port, "/counters")[1]["position"] == 0
    assert receiver.end()[0] == 0
    _, port = receive(SLACKWATER_RECEIVE_TOKEN="hush")
    assert post(port, b"1", **page)[0] == 401
    assert post(port, b"1", Authorization="Bearer hush", **page)[0] == 200
