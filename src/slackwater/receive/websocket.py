"""The WebSocket receiver: a client that subscribes, keeps what comes, and goes on where it was after a break."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import InvalidInput, SlackwaterError, Unavailable
from ..incremental.inbox import Appended, Inbox, Session
from ..settings import MIB
from .stopping import Stop, run_until_stopped

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

logger = logging.getLogger("slackwater")

POSITION = "{position}"
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[([0-9]+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_PING_S = 20.0
# What is on its way to the disk: beyond this nothing is read, and the upstream has to wait.
_WAITING_MESSAGES, _WAITING_BYTES = 10_000, 32 * MIB
# What the library takes into memory at all; a message above that ends the connection.
_HARD_LIMIT_BYTES = 64 * MIB
_MAX_TOKEN = 1024
_TOO_BIG = 1009
_LOOK_S, _AGAIN_S = 0.01, 0.3


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, what to say there, and where in a message its position is."""

    url: str
    subscribe: tuple[str, ...] = ()
    # Keys and places on the way to the position token; None: messages have none.
    position: tuple[str | int, ...] | None = None
    # What {position} stands for before the first message.
    first_position: str = "0"
    max_message_bytes: int = 1 * MIB
    token: str | None = None


def parse_path(text: str) -> tuple[str | int, ...]:
    """Parse a plain JSON path.

    >>> parse_path("$.data[0]['seq no']")
    ('data', 0, 'seq no')
    """
    steps: list[str | int] = []
    at = 1
    while text.startswith("$") and at < len(text) and (match := _STEP.match(text, at)) is not None:
        steps.append(int(match[2]) if match[2] is not None else next(g for g in match.groups() if g is not None))
        at = match.end()
    if not steps or at != len(text):
        raise InvalidInput(
            f"{text[:100]!r} is no path to a position",
            code="receive.bad_path",
            hint="--position '$.seq', or '$.data[0].id'",
        )
    return tuple(steps)


def check_url(url: str) -> str:
    """Refuse what is no WebSocket address, before anything is opened."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("ws", "wss") and bool(parts.hostname)
    except ValueError:
        sound = False
    if not sound:
        raise InvalidInput(
            "this is no address of a WebSocket server",
            code="receive.bad_address",
            hint="slackwater receive ws DIR wss://example.com/feed",
        )
    return url


def find_token(message: str | bytes, path: Sequence[str | int]) -> str | None:
    """Find the position token of a message: a text or a whole number; None where there is none.

    >>> find_token('{"seq": 7}', ["seq"]), find_token('{"type": "hello"}', ["seq"])
    ('7', None)
    """
    found: Any = msgspec.json.decode(message)
    for step in path:
        if isinstance(found, dict) and isinstance(step, str):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int):
            found = found[step] if step < len(found) else None
        else:
            return None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    return str(found) if len(str(found)) <= _MAX_TOKEN else None


def fill(template: str, position: str) -> str:
    """Put a position into a subscribe message, so that it stays JSON.

    >>> fill('{"op": "sub", "after": "{position}"}', 'a"b')
    '{"op": "sub", "after": "a\\\\"b"}'
    """
    return template.replace(POSITION, json.dumps(position)[1:-1])


class _Pending(msgspec.Struct):
    content: bytes
    token: str | None
    done: Future[Appended]


class WebSocketReceiver:
    """Follows one upstream until it is told to stop."""

    def __init__(self, inbox: Inbox, subscription: Subscription, stop: Stop) -> None:
        self._inbox, self._subscription, self._stop = inbox, subscription, stop
        # What came and is not durable yet, in its order.
        self._waiting: deque[_Pending] = deque()
        self._waiting_bytes = 0
        self._session = Session()
        # Whether the inbox had no room: what comes after must not overtake, but what it took before still counts.
        self._blocked = False
        self._came = asyncio.Event()
        self._last_at_ms = 0

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
        from websockets.asyncio.client import connect  # noqa: PLC0415 - an extra
        from websockets.exceptions import WebSocketException  # noqa: PLC0415

        wanted = self._subscription
        headers = {"Authorization": f"Bearer {wanted.token}"} if wanted.token else {}
        position = self._inbox.description.token or wanted.first_position
        url = wanted.url.replace(POSITION, quote(position, safe=""))
        why, lost = "the upstream could not be reached", False
        try:
            async with connect(
                url,
                additional_headers=headers,
                max_size=_HARD_LIMIT_BYTES,
                max_queue=64,
                ping_interval=_PING_S,
                ping_timeout=_PING_S,
            ) as connection:
                for message in wanted.subscribe:
                    await connection.send(fill(message, position))
                await asyncio.wrap_future(self._inbox.begin_receiving())
                logger.info("connected to %s, after position %s", without_secrets(url), position)
                why, lost = await self._follow(connection)
        except (OSError, TimeoutError, WebSocketException) as error:
            why, lost = f"{why} ({type(error).__name__})", True  # its text may have the address, and in that a secret
        await self._drain()
        if self._inbox.description.away is None and self._inbox.failure is None:
            # A connection may be dead for some time before that shows.
            since = max(self._last_at_ms, self._inbox.now_ms() - round(2000 * _PING_S)) if lost else None
            await asyncio.wrap_future(self._inbox.end_receiving(why, since))
        return why

    async def _follow(self, connection: ClientConnection) -> tuple[str, bool]:
        """Take what comes, until it ends; return why, and whether that may have been some time ago."""
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

        self._last_at_ms = self._inbox.now_ms()
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            while True:
                coming = asyncio.create_task(connection.recv())
                await asyncio.wait([coming, asked], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    return "the receiver was stopped", False
                self._last_at_ms = self._inbox.now_ms()
                await self._take(coming.result())
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == _TOO_BIG:
                self._inbox.refuse(oversized=1)
                return "a message was too large for the connection", False
            if closed.rcvd is not None:
                return f"the upstream has closed the connection ({closed.rcvd.code})", False
            return "the connection was lost", True
        finally:
            asked.cancel()

    async def _take(self, message: str | bytes) -> None:
        content = message.encode() if isinstance(message, str) else message
        token: str | None = None
        if len(content) > self._subscription.max_message_bytes:
            self._inbox.refuse(oversized=1)
            return
        if self._subscription.position is not None:
            try:
                token = find_token(message, self._subscription.position)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._inbox.refuse(garbage=1)
                return
        self._waiting.append(_Pending(content, token, self._append(content, token)))
        self._waiting_bytes += len(content)
        self._came.set()
        while len(self._waiting) >= _WAITING_MESSAGES or self._waiting_bytes >= _WAITING_BYTES:
            if self._ends():
                return
            await asyncio.sleep(_LOOK_S)

    def _append(self, content: bytes, token: str | None) -> Future[Appended]:
        """Append, behind all that came before; the same position with other content is another message.

        An upstream may begin to count anew, so a lower position is not taken for a repeated one.
        """
        key = b"p" + token.encode() if token is not None else None
        try:
            if self._blocked:
                raise Unavailable("a message before this one was not taken", code="inbox.overtaken")
            return self._inbox.append([content], key=key, token=token, other="take", session=self._session)
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
                    pending.done = self._append(pending.content, pending.token)
                continue
            self._waiting.popleft()
            self._waiting_bytes -= len(oldest.content)

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
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def follow(inbox: Inbox, subscription: Subscription, *, ready: Callable[[], None] = lambda: None) -> int | None:
    """Receive from a WebSocket server until a signal comes, and return it."""

    async def receive(stop: Stop) -> None:
        ready()
        await WebSocketReceiver(inbox, subscription, stop).receive()

    return run_until_stopped(inbox, receive)
