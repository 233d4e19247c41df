"""The HTTP receiver: a POST of JSON or NDJSON is answered when all of it is durable."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import Code, Conflict, InvalidInput, SlackwaterError, Unavailable
from ...network import format_address, is_loopback, parse_address
from ...settings import KIB, MIB
from ..group_commit import Appended
from ..inbox import Inbox
from .http_bodies import HttpLimits, TooLarge, describe, split, too_large
from .http_connections import Seldom, limit_connections
from .process import TOKEN_VARIABLE, Stop, run_until_stopped

_KEY = re.compile(rb"[\x20-\x7e]{1,256}")
# Of all requests at once, from the first byte of a body that is read until its messages are durable.
_MEMORY_BYTES = 128 * MIB
# What a message takes beside its bytes.
_MESSAGE_BYTES = 256
_GRACE_S = 10
# By the error's code, where the class alone does not tell.
_ANSWERS: dict[str, tuple[int, dict[str, str]]] = {
    Code.RECEIVE_TOO_LARGE: (413, {}),
    Code.RECEIVE_ENCODED: (415, {}),
    Code.RECEIVE_TOO_SLOW: (408, {"Connection": "close"}),
    Code.INBOX_KEY_REUSED: (422, {}),
    Code.INBOX_FULL: (429, {"Retry-After": "1"}),
    Code.INBOX_DISK_FULL: (507, {"Retry-After": "5"}),
}
# Of a body that is refused: beyond this its sender meets a connection that is closed.
_THROWN_AWAY_BYTES = 64 * MIB
# nginx's, for a sender that has left: nobody reads it.
_LEFT = 499


class _Memory:
    """Memory for requests, set aside before they are read."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._held_bytes = 0

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        if self._held_bytes + size_bytes > self._bound_bytes:
            raise Unavailable(
                "too many requests are being read at once", code=Code.INBOX_FULL, hint="send it again in a moment"
            )
        self._held_bytes += size_bytes
        try:
            yield
        finally:
            self._held_bytes -= size_bytes


class _Answers:
    """Brings what the inbox's thread has done to the event loop, all at once: to wake that takes its time."""

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.Future[Appended], Future[Appended]]] = deque()
        self._told = False

    def wait(self, future: Future[Appended]) -> asyncio.Future[Appended]:
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[Appended] = loop.create_future()

        def note(done: Future[Appended]) -> None:
            self._done.append((mine, done))
            if not self._told:
                self._told = True
                with suppress(RuntimeError):  # the loop has ended, and nobody waits
                    loop.call_soon_threadsafe(self._settle)

        future.add_done_callback(note)
        return mine

    def _settle(self) -> None:
        self._told = False  # first: what comes from now on asks again
        while self._done:
            mine, done = self._done.popleft()
            if mine.done():
                continue  # nobody waits for it any more
            if (error := done.exception()) is not None:
                mine.set_exception(error)
            else:
                mine.set_result(done.result())


class HttpReceiver:
    """Takes messages for an inbox over HTTP. With a ``token``, only from those who know it."""

    def __init__(self, inbox: Inbox, limits: HttpLimits | None = None, *, token: str | None = None) -> None:
        self._inbox, self._limits = inbox, limits or HttpLimits()
        self._token = token.encode() if token else None
        largest_bytes = self._limits.max_body_bytes + self._limits.max_messages * _MESSAGE_BYTES
        self._answers = _Answers()
        self._memory = _Memory(max(_MEMORY_BYTES, largest_bytes))

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self.receive, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/counters", self.counters, methods=["GET"]),
            ]
        )

    async def receive(self, request: Request) -> Response:
        """Answer when every message of the request is durable; else none of them is taken."""
        if (refusal := self._turn_away(request)) is not None:
            return await self._after_its_body(request, refusal)
        try:
            key = _parse_key(request.headers.getlist("idempotency-key"))
            if request.headers.get("content-encoding", "identity") != "identity":
                raise InvalidInput(
                    "nothing of this request was taken: its body is compressed",
                    code=Code.RECEIVE_ENCODED,
                    hint="send it as it is, without a Content-Encoding",
                )
            with self._memory.hold(self._expect(request)):
                # The body has no name here: it goes when its messages are there.
                messages = split(await self._read(request), request.headers.get("content-type", ""), self._limits)
                with self._memory.hold(len(messages) * _MESSAGE_BYTES):
                    appended = await self._answers.wait(self._inbox.append(messages, key=key))
        except ClientDisconnect:
            return _answer(_LEFT, None)
        except SlackwaterError as error:
            refusal = self._refuse(error)
            return refusal if error.code == Code.RECEIVE_TOO_SLOW else await self._after_its_body(request, refusal)
        count = appended.last - appended.first + 1
        answer = {"accepted": count, "first": appended.first, "last": appended.last, "repeated": appended.repeated}
        return _answer(200, answer)

    async def _after_its_body(self, request: Request, refusal: Response) -> Response:
        """Let a sender come to the end of what it sends: one whose connection is closed before does not see the answer.

        Not one that asks first (Expect), and none for ever.
        """
        if "expect" not in request.headers:
            thrown_away = 0
            with suppress(ClientDisconnect, RuntimeError, TimeoutError):  # a RuntimeError: it was read before
                async with asyncio.timeout(self._limits.timeout_s):
                    async for chunk in request.stream():
                        thrown_away += len(chunk)
                        if thrown_away > _THROWN_AWAY_BYTES:
                            break
        return refusal

    async def health(self, request: Request) -> Response:
        hindrance = self._inbox.hindrance
        if hindrance is None:
            return _answer(200, {"status": "ok"})
        return _answer(503, {"status": "failing", "error": {"code": hindrance.code}})

    async def counters(self, request: Request) -> Response:
        if (refusal := self._turn_away(request)) is not None:
            return refusal
        return _answer(200, count(self._inbox))

    def _turn_away(self, request: Request) -> Response | None:
        """Refuse those who do not know the token; where there is none, web pages: a browser on this machine sends."""
        if self._token is not None:
            given = request.headers.get("authorization", "").encode("latin-1")
            return None if hmac.compare_digest(given, b"Bearer " + self._token) else _unauthorized()
        if "origin" not in request.headers:
            return None
        error = InvalidInput(
            "a web page may not send here: the request has an Origin",
            code="receive.invalid",
            hint=f"set {TOKEN_VARIABLE}, and let the page say Authorization: Bearer TOKEN",
        )
        return _refusal(403, error)

    def _expect(self, request: Request) -> int:
        """Tell how many bytes a body has at most. Where it comes in chunks, a length that is said means nothing."""
        length = request.headers.get("content-length", "")
        limit = self._limits.max_body_bytes
        if not length.isdecimal() or "transfer-encoding" in request.headers:
            return limit
        if int(length) > limit:
            raise too_large(f"a body may have {limit} bytes")
        return int(length)

    async def _read(self, request: Request) -> bytes:
        limit = self._limits.max_body_bytes
        body = bytearray()  # a list of chunks would take many times its size, if they are small
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > limit:
                        raise too_large(f"a body may have {limit} bytes")
                    body += chunk
        except TimeoutError:
            raise Unavailable(
                f"nothing of this request was taken: its body took longer than {self._limits.timeout_s:g} s",
                code=Code.RECEIVE_TOO_SLOW,
                hint="send less at once; --timeout of slackwater receive http is the limit",
            ) from None
        return bytes(body)

    def _refuse(self, error: SlackwaterError) -> Response:
        if isinstance(error, TooLarge):
            self._inbox.count_refused(oversized=1)
        elif isinstance(error, InvalidInput) and error.code != Code.RECEIVE_ENCODED:
            self._inbox.count_refused(garbage=1)
        by_class: tuple[int, dict[str, str]] = (
            (400, {}) if isinstance(error, InvalidInput) else (503, {"Retry-After": "5"})
        )
        status, headers = _ANSWERS.get(error.code, by_class)
        return _refusal(status, error, **headers)


def count(inbox: Inbox) -> dict[str, Any]:
    """Count what an inbox has and had, under names that stay."""
    known = inbox.description
    garbage, oversized = inbox.refused
    return {
        "inbox": known.uid,
        "position": known.last,
        "dropped": known.dropped,
        "held": known.held,
        "held_bytes": known.held_bytes,
        "garbage": garbage,
        "oversized": oversized,
        "repeated": known.repeated,
        "gap_count": known.gaps,
        "keys": known.keys_held,
    }


def _parse_key(given: list[str]) -> bytes | None:
    if not given:
        return None
    key = given[0].encode("latin-1")
    if not _KEY.fullmatch(key) or len(given) > 1:
        raise InvalidInput(
            "an Idempotency-Key has 1 to 256 printable ASCII characters, and a request has one",
            code="receive.invalid",
            hint="a UUID serves; the same one for the same request only",
        )
    return b"h" + key


def _answer(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def _refusal(status: int, error: SlackwaterError, **headers: str) -> Response:
    return _answer(status, {"error": describe(error)}, headers)


def _unauthorized() -> Response:
    hint = f"say Authorization: Bearer TOKEN, the token being the {TOKEN_VARIABLE} of the receiver"
    facts = {"code": "receive.unauthorized", "message": "the token is missing or wrong", "hint": hint}
    return _answer(401, {"error": facts}, {"WWW-Authenticate": "Bearer"})


# --- as a program


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``127.0.0.1:8080``, ``[::1]:8080``, or a port alone, which is one of the loopback interface."""
    if (found := parse_address(text)) is None:
        raise InvalidInput(
            f"{text[:100]!r} is not an address to listen at",
            code="option.invalid",
            hint="--listen 127.0.0.1:8080, or a port alone; 0 takes any that is free",
        )
    return found


def open_socket(host: str, port: int, *, token: str | None) -> socket.socket:
    """Take an address. Beyond this machine only with a token: whoever reaches it could fill the disk."""
    if not is_loopback(host) and not token:
        raise InvalidInput(
            f"{host} can be reached from other machines, and no token is set",
            code="option.invalid",
            hint=f"set {TOKEN_VARIABLE}, and let senders say Authorization: Bearer TOKEN",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. Without it, and asyncio does not see to it, the kernel holds the end of each answer
        # back until a sender has said that its beginning has come: 40 ms.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise Conflict(
            f"{format_address(host, port)} cannot be listened at: {error.strerror}",
            code="receive.address_taken",
            hint="--listen with another port; 0 takes any that is free",
        ) from None
    return taken


def serve(
    inbox: Inbox,
    listening: socket.socket,
    limits: HttpLimits | None = None,
    *,
    token: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> int | None:
    """Receive at a socket until a signal comes, and return it."""
    limits = limits or HttpLimits()
    config = uvicorn.Config(
        HttpReceiver(inbox, limits, token=token).app(),
        http=limit_connections(limits.timeout_s),
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=64 * KIB,
    )

    seldom = Seldom()
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(seldom)

    async def receive(stop: Stop) -> None:
        server = _quiet(uvicorn.Server)(config)
        await asyncio.wrap_future(inbox.begin_receiving())
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        ready()
        asked = asyncio.create_task(stop.asked.wait())
        await asyncio.wait([serving, asked], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        asked.cancel()

    return run_until_stopped(inbox, receive)


def _quiet(server: type[Any]) -> type[Any]:
    """Leave the signals to us: uvicorn would raise them once more when it has ended."""
    return type("Server", (server,), {"capture_signals": lambda self: nullcontext()})
