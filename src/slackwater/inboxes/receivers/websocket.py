"""The WebSocket receiver: a client that subscribes, keeps what comes, and goes on where it was after a break."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.protocol import State
from websockets.uri import parse_uri

from ...errors import InvalidInput, SlackwaterError, Unavailable
from ...settings import MIB
from ..group_commit import Appended, Session
from ..inbox import STOPPED, Inbox
from ..layout import position_key
from .messages import find_position
from .process import Stop, run_until_stopped

logger = logging.getLogger("slackwater")

POSITION = "{position}"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_PING_S = 20.0
# For its farewell. One that sends more than is read never comes to it.
_CLOSE_S = 2.0
# What is on its way to the disk: beyond this nothing is read, and the upstream has to wait.
_WAITING_MESSAGES, _WAITING_BYTES = 10_000, 32 * MIB
# What the library takes into memory at all; a message above that ends the connection.
_HARD_LIMIT_BYTES = 64 * MIB
_TOO_BIG = 1009
_LOOK_S, _AGAIN_S = 0.01, 0.3


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, what to say there, and where in a message its position is."""

    url: str
    subscribe: tuple[str, ...] = ()
    # Keys and places on the way to a message's position; None: messages have none.
    position_path: tuple[str | int, ...] | None = None
    # What {position} stands for before the first message.
    first_position: str = "0"
    # Whether no two messages have one position: then what comes after the newest message is asked for.
    unique_positions: bool = False
    max_message_bytes: int = 1 * MIB
    # Said as a bearer token.
    secret: str | None = None


def check_url(url: str) -> str:
    """Refuse what is not a WebSocket address, before anything is opened."""
    try:
        sound = bool(parse_uri(url).host.encode("idna"))
    except (ValueError, InvalidURI):
        sound = False
    if not sound:
        raise InvalidInput(
            "this is not the address of a WebSocket server",
            code="option.invalid",
            hint="slackwater receive ws DIR wss://example.com/feed",
        )
    return url


def check_positions(subscription: Subscription) -> Subscription:
    """Refuse to ask for a position that no message could ever tell."""
    if subscription.position_path is None and any(
        POSITION in text for text in (subscription.url, *subscription.subscribe)
    ):
        raise InvalidInput(
            f"{POSITION} is to be said to the server, and nothing tells where in a message it is",
            code="option.invalid",
            hint="--position '$.seq'; without it, all that the server sends again would be taken again",
        )
    return subscription


def fill(template: str, position: str) -> str:
    """Put a position into a subscribe message, so that it stays JSON.

    >>> fill('{"op": "sub", "after": "{position}"}', 'a"b')
    '{"op": "sub", "after": "a\\\\"b"}'
    """
    return template.replace(POSITION, json.dumps(position)[1:-1])


class _Connection(ClientConnection):
    """A connection that knows when it last heard of the server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # By the loop's clock; pongs count, and what comes while it is being closed, and is not taken, does not.
        self.heard_at_s = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.protocol.state not in (State.CLOSING, State.CLOSED):
            self.heard_at_s = self.loop.time()
        super().data_received(data)


class _Pending(msgspec.Struct):
    content: bytes
    position: str | None
    done: Future[Appended]


class WebSocketReceiver:
    """Follows one upstream until it is told to stop."""

    def __init__(self, inbox: Inbox, subscription: Subscription, stop: Stop) -> None:
        self._inbox, self._subscription, self._stop = inbox, subscription, stop
        # What came and is not durable yet, in its order.
        self._waiting: deque[_Pending] = deque()
        self._waiting_bytes = 0
        self._session = Session()
        # Whether the inbox took no more at all: what comes after must not overtake, but what it took before counts.
        self._blocked = False
        self._came = asyncio.Event()
        self._began_at_ms = inbox.now_ms()
        # Of the messages of this connection: whether some came, and whether one of them had a position.
        self._some = self._placed = False
        # By the loop's clock; infinity while there is no room, and the upstream has to wait.
        self._reading_since_s = 0.0

    async def receive(self) -> None:
        """Connect again and again, with longer and longer waits as long as nothing comes."""
        keeping = asyncio.create_task(self._keep())
        try:
            wait_s = _FIRST_WAIT_S
            while not self._stop.asked.is_set():
                before = self._inbox.description.last
                why = await self._connected()
                if self._inbox.description.last > before:
                    wait_s = _FIRST_WAIT_S
                pause_s = wait_s * random.uniform(0.5, 1.0)
                if not self._stop.asked.is_set():
                    logger.warning(
                        "%s: %s; connecting again in %.1f s", without_secrets(self._subscription.url), why, pause_s
                    )
                await self._rest(pause_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _connected(self) -> str:
        """Receive over one connection; return why it ended."""
        position = self._inbox.description.token or self._subscription.first_position
        self._some = self._placed = False
        until_ms: int | None = None
        try:
            connection = await self._connect(position)
        except (OSError, TimeoutError, ValueError, WebSocketException) as error:
            # A ValueError is an address that is none: the upstream may redirect to anything.
            # Its text may have the address, and in that a secret.
            why = f"the upstream could not be reached ({type(error).__name__})"
        else:
            async with connection:
                why, until_ms = await self._follow(connection, position)
        await self._drain()
        if self._some and not self._placed and self._subscription.position_path is not None:
            logger.warning("no message had a position where --position says: what is sent again is taken again")
        if until_ms is None and self._inbox.description.alive_at_ms is None:
            until_ms = self._began_at_ms  # There was never a message; after a kill, the inbox knows until when.
        if until_ms is not None and self._inbox.failure is None:
            await self._say(partial(self._inbox.end_receiving, why, until_ms))
        return why

    async def _connect(self, position: str) -> _Connection:
        secret = self._subscription.secret
        connection = await connect(
            self._subscription.url.replace(POSITION, quote(position, safe="")),
            additional_headers={"Authorization": f"Bearer {secret}"} if secret else {},
            max_size=_HARD_LIMIT_BYTES,
            max_queue=64,
            ping_interval=_PING_S,
            ping_timeout=None,  # _watch is for that
            close_timeout=_CLOSE_S,
            create_connection=_Connection,
        )
        return cast(_Connection, connection)

    async def _follow(self, connection: _Connection, position: str) -> tuple[str, int | None]:
        """Subscribe, and take what comes until it ends; return why, and until when messages were received, if any."""
        address = without_secrets(self._subscription.url)
        began_at_ms: int | None = None
        asked = asyncio.create_task(self._stop.asked.wait())
        watching = asyncio.create_task(self._watch(connection))
        try:
            for message in self._subscription.subscribe:
                await connection.send(fill(message, position))
            await self._say(self._inbox.begin_receiving)
            logger.info("connected to %s, after position %a", address, position[:100])
            began_at_ms = self._inbox.now_ms()
            while True:
                coming = asyncio.create_task(connection.recv())
                await asyncio.wait([coming, asked], return_when=asyncio.FIRST_COMPLETED)
                # First: an upstream that never rests has always something ready.
                stopped = asked.done()
                if coming.done():
                    await self._take(coming.result())
                else:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                if stopped:
                    return STOPPED, self._inbox.now_ms()
        except ConnectionClosed as closed:
            why = "the connection was lost"
            if closed.sent is not None and closed.sent.code == _TOO_BIG:
                self._inbox.count_refused(oversized=1)
                why = f"a message had more than {_HARD_LIMIT_BYTES} bytes"
            elif closed.rcvd is not None:
                why = f"the upstream has closed the connection ({closed.rcvd.code})"
            # A connection may be dead for some time before that shows.
            quiet_s = asyncio.get_running_loop().time() - connection.heard_at_s
            heard_at_ms = self._inbox.now_ms() - round(1000 * quiet_s)
            return why, max(began_at_ms, heard_at_ms) if began_at_ms is not None else None
        finally:
            asked.cancel()
            watching.cancel()

    async def _watch(self, connection: _Connection) -> None:
        """Break a connection over which nothing comes, not even a pong, unless it is we who do not read."""
        loop = asyncio.get_running_loop()
        while loop.time() - max(connection.heard_at_s, self._reading_since_s) < 2 * _PING_S:
            await asyncio.sleep(_PING_S / 10)
        connection.transport.abort()

    async def _take(self, message: str | bytes) -> None:
        content = message.encode() if isinstance(message, str) else message
        position: str | None = None
        if len(content) > self._subscription.max_message_bytes:
            self._inbox.count_refused(oversized=1)
            return
        if self._subscription.position_path is not None:
            try:
                position = find_position(message, self._subscription.position_path)
            except ValueError:
                self._inbox.count_refused(garbage=1)
                return
        self._some, self._placed = True, self._placed or position is not None
        self._waiting.append(_Pending(content, position, self._append(content, position)))
        self._waiting_bytes += len(content)
        self._came.set()
        while len(self._waiting) >= _WAITING_MESSAGES or self._waiting_bytes >= _WAITING_BYTES:
            if self._ends():
                return
            self._reading_since_s = math.inf
            await asyncio.sleep(_LOOK_S)
            self._reading_since_s = asyncio.get_running_loop().time()

    def _append(self, content: bytes, position: str | None) -> Future[Appended]:
        """Append, behind all that came before; the same position with other content is another message."""
        key = position_key(content, position) if position is not None else None
        unique = self._subscription.unique_positions
        try:
            if self._blocked:
                raise Unavailable("a message before this one was not taken", code="inbox.unavailable")
            return self._inbox.append([content], key=key, token=position, unique=unique, session=self._session)
        except SlackwaterError as error:
            self._blocked = True
            failed: Future[Appended] = Future()
            failed.set_exception(error)
            return failed

    async def _keep(self) -> None:
        """Wait for what came to become durable; what the disk or a full inbox refuses is given to it again.

        Meanwhile nothing more than a bounded number is read, and so the upstream has to wait.
        """
        while True:
            if not self._waiting:
                self._came.clear()
                await self._came.wait()
            oldest = self._waiting[0]
            try:
                if not oldest.done.done():
                    await asyncio.wrap_future(oldest.done)
                oldest.done.result()
            except SlackwaterError:
                await asyncio.sleep(_AGAIN_S)
                self._session, self._blocked = Session(), False
                for pending in self._waiting:
                    pending.done = self._append(pending.content, pending.position)
                continue
            self._waiting.popleft()
            self._waiting_bytes -= len(oldest.content)

    async def _say(self, say: Callable[[], Future[None]]) -> None:
        """Tell the inbox whether messages come, once its disk has room for that."""
        while True:
            try:
                return await asyncio.wrap_future(say())
            except Unavailable:
                if self._stop.asked.is_set():
                    return None
                await self._rest(_AGAIN_S)

    async def _drain(self) -> None:
        """Wait until all that came is durable, unless it is time to end and the inbox takes nothing."""
        while self._waiting and not self._ends():
            await asyncio.sleep(_LOOK_S)

    def _ends(self) -> bool:
        return self._inbox.failure is not None or (
            self._stop.asked.is_set() and (self._blocked or self._session.broken)
        )

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.asked.wait(), seconds)


def without_secrets(url: str) -> str:
    """Tell where a URL leads, without a password, and without the path and the query, where providers have their keys.

    >>> without_secrets("wss://me:hush@example.com:444/hush?key=hush")
    'wss://example.com:444'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def follow(inbox: Inbox, subscription: Subscription, *, ready: Callable[[], None] = lambda: None) -> int | None:
    """Receive from a WebSocket server until a signal comes, and return it."""

    async def receive(stop: Stop) -> None:
        ready()
        await WebSocketReceiver(inbox, subscription, stop).receive()

    return run_until_stopped(inbox, receive)
