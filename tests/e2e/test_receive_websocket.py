"""The WebSocket receiver against servers that repeat themselves, stall, redirect and send what they should not."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from slackwater.errors import InvalidInput, Unavailable
from slackwater.inboxes.documents import Covered
from slackwater.inboxes.files import read_published, write_covered
from slackwater.inboxes.group_commit import Limits
from slackwater.inboxes.inbox import Inbox
from slackwater.inboxes.reader import read_messages
from slackwater.inboxes.receivers import websocket
from slackwater.inboxes.receivers.process import Stop
from slackwater.inboxes.receivers.websocket import Subscription, WebSocketReceiver, check_positions

PATIENCE_S = 30


@asynccontextmanager
async def following(
    inbox: Inbox,
    handle: Callable[[ServerConnection], Awaitable[None]],
    *,
    url: str = "ws://127.0.0.1:{port}/",
    **wanted: Any,
) -> AsyncIterator[None]:
    """Run a receiver in this process, against a server that treats each connection by ``handle``."""
    stop = Stop(inbox)
    async with serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        subscription = Subscription(url=url.format(port=port), **wanted)
        receiving = asyncio.create_task(WebSocketReceiver(inbox, subscription, stop).receive())
        try:
            yield
        finally:
            stop.asked.set()
            try:
                await asyncio.wait_for(receiving, PATIENCE_S)
            finally:
                inbox.close()


async def until(said: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not said():
            await asyncio.sleep(0.02)


def kept(folder: Path) -> list[Any]:
    published = read_published(folder)
    chunks = read_messages(folder, published.inbox, published.dropped, published.position)
    return [json.loads(message.content) for chunk in chunks for message in chunk]


def cover(inbox: Inbox, position: int) -> None:
    """Say what a pipeline says that has a checkpoint up to a position."""
    covered = Covered(inbox=inbox.description.uid, position=position, pipeline=32 * "a")
    write_covered(inbox.folder, covered)


@pytest.mark.parametrize("path", [("nope",), ("seq",)])
def test_that_no_message_has_a_position_is_said(tmp_path, caplog, path):
    inbox = Inbox(tmp_path / "inbox")

    async def replay(connection: ServerConnection) -> None:
        await connection.send('{"type": "hello"}')
        await connection.send('{"seq": 1}')

    async def main() -> None:
        async with following(inbox, replay, position_path=path):
            await until(lambda: inbox.description.gaps >= 2)

    asyncio.run(main())
    assert ("no message had a position" in caplog.text) == (path == ("nope",))


@pytest.mark.parametrize("asked", [{"url": "ws://127.0.0.1/{position}"}, {"subscribe": ('{"after": {position}}',)}])
def test_a_position_that_no_message_tells_is_not_asked_for(asked):
    with pytest.raises(InvalidInput, match=r"option\.invalid.*is to be said to the server"):
        check_positions(Subscription(**{"url": "ws://127.0.0.1/", **asked}))
    told = Subscription(**{"url": "ws://127.0.0.1/", "position_path": ("seq",), **asked})
    assert check_positions(told) is told


def test_two_messages_at_one_position_are_taken_once_each_however_often_they_are_replayed(tmp_path):
    messages = [{"seq": seq, "part": part} for seq in (1, 2) for part in "ab"]
    inbox = Inbox(tmp_path / "inbox")
    connections = 0

    async def replay_all(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        for message in messages:
            await connection.send(json.dumps(message))

    async def main() -> None:
        async with following(inbox, replay_all, position_path=("seq",)):
            await until(lambda: inbox.description.repeated >= 8)

    asyncio.run(main())
    assert connections >= 3
    assert kept(tmp_path / "inbox") == messages


def test_a_position_amid_whose_messages_the_connection_broke_is_asked_for_again(tmp_path):
    inbox = Inbox(tmp_path / "inbox")
    messages = [(seq, part) for seq in (1, 2, 3) for part in "ab"]
    asked: list[int] = []

    async def go_on(connection: ServerConnection) -> None:
        asked.append(json.loads(await connection.recv()))
        for message in messages:
            if message[0] > asked[-1]:
                await connection.send(json.dumps(message))
                if len(asked) == 1 and message == (2, "a"):
                    await until(lambda: inbox.description.last == 3)
                    connection.transport.abort()
                    return
        await connection.wait_closed()

    async def main() -> None:
        async with following(inbox, go_on, position_path=(0,), subscribe=("{position}",)):
            await until(lambda: asked == [0, 1] and inbox.description.last >= 6)

    asyncio.run(main())
    assert kept(tmp_path / "inbox") == [list(message) for message in messages]
    assert (inbox.description.token, inbox.description.repeated) == ("2", 1)


def test_where_positions_are_unique_nothing_is_asked_for_again(tmp_path):
    inbox = Inbox(tmp_path / "inbox")
    asked: list[int] = []

    async def send_one(connection: ServerConnection) -> None:
        asked.append(json.loads(await connection.recv()))
        # It is not the same when it is sent again, and then the connection is closed.
        await connection.send(json.dumps({"seq": asked[-1] + 1, "sent": len(asked)}))

    async def main() -> None:
        told = following(inbox, send_one, position_path=("seq",), subscribe=("{position}",), unique_positions=True)
        async with told:
            await until(lambda: len(asked) >= 3)

    asyncio.run(main())
    assert asked[:3] == [0, 1, 2]
    assert [message["seq"] for message in kept(tmp_path / "inbox")][:2] == [1, 2]


def test_a_receiver_ends_though_its_upstream_never_rests(tmp_path):
    inbox = Inbox(tmp_path / "inbox")
    stopped_at = 0.0

    async def flood(connection: ServerConnection) -> None:
        while True:
            await connection.send(1000 * "x")

    async def main() -> None:
        nonlocal stopped_at
        async with following(inbox, flood):
            await until(lambda: inbox.description.last > 1000)
            stopped_at = time.monotonic()

    asyncio.run(main())
    assert time.monotonic() - stopped_at < 9  # the library itself would wait 10 s for a farewell


class Told(Inbox):
    """An inbox that remembers since when it was told that nothing is received."""

    ends: list[int | None]

    def end_receiving(self, why: str, since_ms: int | None = None) -> Future[None]:
        self.ends = [*getattr(self, "ends", []), since_ms]
        return super().end_receiving(why, since_ms)


@pytest.mark.parametrize("closed", [True, False])
def test_a_gap_begins_when_the_connection_ended_however_long_its_messages_then_wait_for_room(tmp_path, closed):
    inbox = Told(tmp_path / "inbox", Limits(max_messages=5))
    pinged_at, left = 0.0, False

    async def send_and_leave(connection: ServerConnection) -> None:
        nonlocal pinged_at, left
        if left:
            await connection.wait_closed()
            return
        for number in range(10):
            await connection.send(str(number))
        pinged_at = time.time()
        await (await connection.ping())
        if closed:
            await connection.close()
        else:
            connection.transport.abort()
        left = True

    async def main() -> float:
        async with following(inbox, send_and_leave):
            # With a message kept, receiving has begun, however slow the disk: before that there is no gap.
            await until(lambda: left and inbox.description.last == 5)
            await asyncio.sleep(1.5)
            released_at = time.time()
            cover(inbox, 5)
            await until(lambda: inbox.description.gaps >= 1)
        return released_at

    released_at = asyncio.run(main())
    since_ms = inbox.ends[0]
    assert since_ms is not None and pinged_at - 0.1 < since_ms / 1000 < released_at


def test_a_kill_is_not_forgotten_when_the_upstream_cannot_be_reached_after_it(tmp_path, caplog):
    inbox = Inbox(tmp_path / "inbox")
    inbox.begin_receiving().result()
    alive_at_ms = inbox.description.alive_at_ms
    shutil.copytree(tmp_path / "inbox", tmp_path / "killed")  # as a kill leaves it: nobody has said a word
    inbox.close()
    inbox = Inbox(tmp_path / "killed")

    async def main() -> None:
        async with following(inbox, ServerConnection.wait_closed, url="ws://127.0.0.1:9/"):
            await until(lambda: "could not be reached" in caplog.text)

    asyncio.run(main())
    assert (inbox.description.alive_at_ms, inbox.description.away) == (alive_at_ms, None)


def test_an_upstream_waits_for_a_full_inbox_for_as_long_as_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(websocket, "_PING_S", 0.2)  # how often the connection pings
    monkeypatch.setattr(websocket, "_WAITING_MESSAGES", 50)
    inbox = Inbox(tmp_path / "inbox", Limits(max_messages=50))
    connections, count = 0, 400

    async def send_all(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        monkeypatch.setattr(websocket, "_PING_S", 5)  # while messages flow, a busy machine is no reason to be left
        for number in range(count):
            await connection.send(json.dumps([number, "x" * 50_000]))
        await connection.wait_closed()

    async def main() -> list[int]:
        numbers: list[int] = []
        async with following(inbox, send_all):
            await until(lambda: inbox.description.last == 50)
            await asyncio.sleep(1)  # by then it reads no more
            monkeypatch.setattr(websocket, "_PING_S", 0.2)
            await asyncio.sleep(2)  # several times as long as an upstream may be silent
            monkeypatch.setattr(websocket, "_PING_S", 5)
            while len(numbers) < count:
                await until(lambda: inbox.description.last > inbox.description.dropped)
                numbers.extend(number for number, _ in await asyncio.to_thread(kept, tmp_path / "inbox"))
                cover(inbox, len(numbers))
                await until(lambda: inbox.description.dropped == len(numbers))
        return numbers

    assert asyncio.run(main()) == list(range(count))
    assert connections == 1


def test_an_upstream_that_says_nothing_and_answers_no_ping_is_left(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(websocket, "_PING_S", 0.2)
    inbox = Inbox(tmp_path / "inbox")

    async def freeze(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await until(lambda: "the connection was lost" in caplog.text)
        connection.transport.abort()

    async def main() -> None:
        async with following(inbox, freeze):
            await until(lambda: "the connection was lost" in caplog.text)

    asyncio.run(main())


@pytest.mark.parametrize("location", ["ws://x:99999/", "ws://[::1/", "ws://a..b/", "http://x/", f"ws://{'a' * 70}.b/"])
def test_a_redirect_to_nowhere_is_an_upstream_that_cannot_be_reached(tmp_path, caplog, location):
    inbox = Inbox(tmp_path / "inbox")

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with following(inbox, ServerConnection.wait_closed, url=f"ws://127.0.0.1:{port}/"):
                await until(lambda: caplog.text.count("the upstream could not be reached") >= 2)

    asyncio.run(main())


def test_a_secret_does_not_follow_a_redirect_to_another_server(tmp_path):
    inbox = Inbox(tmp_path / "inbox")
    heard: dict[str, str | None] = {}
    location = ""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard["first"] = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def listen(connection: ServerConnection) -> None:
        assert connection.request is not None
        heard["other"] = connection.request.headers.get("Authorization")
        await connection.wait_closed()

    async def main() -> None:
        nonlocal location
        async with (
            await asyncio.start_server(redirect, "127.0.0.1", 0) as first,
            serve(listen, "127.0.0.1", 0) as other,
        ):
            location = f"ws://127.0.0.1:{next(iter(other.sockets)).getsockname()[1]}/"
            url = f"ws://127.0.0.1:{first.sockets[0].getsockname()[1]}/"
            async with following(inbox, ServerConnection.wait_closed, url=url, secret="hush"):
                await until(lambda: "other" in heard)

    asyncio.run(main())
    assert "Bearer hush" in (heard["first"] or "") and heard["other"] is None


def test_a_message_beyond_all_bounds_is_counted_and_said_even_before_all_is_subscribed(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(websocket, "_HARD_LIMIT_BYTES", 1000)
    inbox = Inbox(tmp_path / "inbox")

    async def send_too_much(connection: ServerConnection) -> None:
        await connection.send(2000 * "x")
        await connection.wait_closed()

    async def main() -> None:
        async with following(inbox, send_too_much, subscribe=("{}", "{}")):
            await until(lambda: inbox.refused[1] >= 2)

    asyncio.run(main())
    assert inbox.refused[0] == 0
    assert caplog.text.count("a message had more than 1000 bytes") >= 1
    assert "could not be reached" not in caplog.text


def test_neither_keys_in_the_url_nor_what_the_upstream_calls_a_position_reach_a_terminal_as_they_are(tmp_path, caplog):
    caplog.set_level("INFO")
    inbox = Inbox(tmp_path / "inbox")
    inbox.append([b"1"], token="\x1b[31m\nall is well", unique=True).result()

    async def leave(connection: ServerConnection) -> None:
        pass

    async def main() -> None:
        async with following(inbox, leave, url="ws://me:hush@127.0.0.1:{port}/hush?hush"):
            await until(lambda: "has closed the connection" in caplog.text)

    asyncio.run(main())
    own = "\n".join(record.getMessage() for record in caplog.records if record.name == "slackwater")
    assert "hush" not in own and "\x1b" not in own
    assert r"after position '\x1b[31m\nall is well'" in own


class Hindered(Inbox):
    """An inbox whose disk is full when it is told, for the first time, that messages come, or that they do not."""

    hindered = 0

    def _say(self, say: Callable[[], Future[None]]) -> Future[None]:
        self.hindered += 1
        if self.hindered not in (1, 3):
            return say()
        failed: Future[None] = Future()
        failed.set_exception(Unavailable("No space left on device", code="inbox.disk_full"))
        return failed

    def begin_receiving(self) -> Future[None]:
        return self._say(super().begin_receiving)

    def end_receiving(self, why: str, since_ms: int | None = None) -> Future[None]:
        return self._say(lambda: super(Hindered, self).end_receiving(why, since_ms))


def test_a_full_disk_at_the_begin_or_the_end_of_a_connection_does_not_end_the_receiver(tmp_path):
    inbox = Hindered(tmp_path / "inbox")

    async def leave(connection: ServerConnection) -> None:
        await connection.send("1")

    async def main() -> None:
        async with following(inbox, leave):
            await until(lambda: inbox.description.gaps >= 1)

    asyncio.run(main())
    assert inbox.hindered >= 4
