"""The HTTP receiver: a POST of JSON or NDJSON is answered when all of it is durable."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import Conflict, InvalidInput, SlackwaterError, Unavailable
from ..incremental.inbox import Inbox
from ..settings import KIB, MIB
from .stopping import Stop, run_until_stopped

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

TOKEN_VARIABLE = "SLACKWATER_RECEIVE_TOKEN"
_NDJSON = re.compile(r"(?i)application/(x-)?(ndjson|jsonl|jsonlines|json-lines)\b")
_KEY = re.compile(rb"[\x20-\x7e]{1,256}")
# Of all bodies that are being read at once.
_READING_BYTES = 128 * MIB
_GRACE_S = 10


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_body_bytes: int = 8 * MIB
    max_message_bytes: int = 1 * MIB


class _TooLarge(InvalidInput):
    """The sender must send less at once."""


class HttpReceiver:
    """Takes messages for an inbox over HTTP. With a ``token``, only from those who know it."""

    def __init__(self, inbox: Inbox, limits: HttpLimits | None = None, *, token: str | None = None) -> None:
        self._inbox, self._limits = inbox, limits or HttpLimits()
        self._token = token.encode() if token else None
        self._reading_bytes = 0

    def app(self) -> Starlette:
        from starlette.applications import Starlette  # noqa: PLC0415 - an extra
        from starlette.routing import Route  # noqa: PLC0415

        return Starlette(
            routes=[
                Route("/", self.receive, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/counters", self.counters, methods=["GET"]),
            ]
        )

    async def receive(self, request: Request) -> Response:
        """Answer when every message of the request is durable; else none of them is taken."""
        if not self._may(request):
            return _unauthorized()
        try:
            key = _parse_key(request.headers.get("idempotency-key"))
            body = await self._read(request)
            messages = _split(body, request.headers.get("content-type", ""), self._limits.max_message_bytes)
            appended = await asyncio.wrap_future(self._inbox.append(messages, key=key))
        except SlackwaterError as error:
            return self._refuse(error)
        count = appended.last - appended.first + 1
        answer = {"accepted": count, "first": appended.first, "last": appended.last, "repeated": appended.repeated}
        return _answer(200, answer)

    async def health(self, request: Request) -> Response:
        hindrance = self._inbox.hindrance
        if hindrance is None:
            return _answer(200, {"status": "ok"})
        return _answer(503, {"status": "failing", "error": {"code": hindrance.code}})

    async def counters(self, request: Request) -> Response:
        if not self._may(request):
            return _unauthorized()
        return _answer(200, count(self._inbox))

    def _may(self, request: Request) -> bool:
        if self._token is None:
            return True
        given = request.headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, b"Bearer " + self._token)

    async def _read(self, request: Request) -> bytes:
        """Read a body up to the limit; memory for it is set aside before."""
        length = request.headers.get("content-length", "")
        limit = self._limits.max_body_bytes
        if length.isdecimal() and int(length) > limit:
            raise _too_large(f"a body may have {limit} bytes")
        reserved = int(length) if length.isdecimal() else limit
        if self._reading_bytes and self._reading_bytes + reserved > _READING_BYTES:
            raise Unavailable(
                "too many requests are being read at once", code="inbox.full", hint="send it again in a moment"
            )
        self._reading_bytes += reserved
        try:
            chunks, size = [], 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(f"a body may have {limit} bytes")
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            self._reading_bytes -= reserved

    def _refuse(self, error: SlackwaterError) -> Response:
        if isinstance(error, _TooLarge):
            self._inbox.refuse(oversized=1)
            return _refusal(413, error)
        if isinstance(error, InvalidInput):
            self._inbox.refuse(garbage=1)
            return _refusal(400, error)
        if isinstance(error, Conflict) and error.code == "inbox.key_reused":
            return _refusal(422, error)
        if error.code == "inbox.full":
            return _refusal(429, error, retry_after_s=1)
        full_disk = "No space left" in error.message
        return _refusal(507 if full_disk else 503, error, retry_after_s=5)


def count(inbox: Inbox) -> dict[str, Any]:
    """Count what an inbox has and had, under names that stay."""
    known = inbox.description
    garbage, oversized = inbox.refused
    return {
        "inbox": known.uid,
        "position": known.last,
        "dropped": known.dropped,
        "held": known.last - known.dropped,
        "held_bytes": known.total_bytes - known.dropped_bytes,
        "garbage": garbage,
        "oversized": oversized,
        "repeated": known.repeated,
        "gaps": known.gaps,
    }


def _parse_key(text: str | None) -> bytes | None:
    if text is None:
        return None
    key = text.encode("latin-1")
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            "an Idempotency-Key has 1 to 256 printable ASCII characters",
            code="receive.bad_key",
            hint="a UUID serves; the same one for the same request only",
        )
    return b"h" + key


def _split(body: bytes, content_type: str, max_message_bytes: int) -> list[bytes]:
    """Split a body into messages, each of them JSON; one document, or one a line."""
    many = _NDJSON.match(content_type) is not None
    messages = [line for line in map(bytes.strip, body.split(b"\n")) if line] if many else [body.strip()]
    if not messages:
        raise _garbage("there is no message in it", many)
    for number, message in enumerate(messages, 1):
        if len(message) > max_message_bytes:
            raise _too_large(f"a message may have {max_message_bytes} bytes, and number {number} has {len(message)}")
        try:
            msgspec.json.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _garbage(f"message {number} is not JSON: {error}", many) from None
    return messages


def _garbage(why: str, many: bool) -> InvalidInput:
    hint = (
        "each line is one JSON document" if many else "for one document a line, say Content-Type: application/x-ndjson"
    )
    return InvalidInput(f"nothing of this request was taken: {why:.200}", code="receive.garbage", hint=hint)


def _too_large(why: str) -> _TooLarge:
    return _TooLarge(
        f"nothing of this request was taken: {why}",
        code="receive.too_large",
        hint="send less at once; --max-body and --max-message of slackwater receive http are the limits",
    )


def _answer(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response  # noqa: PLC0415

    return Response(msgspec.json.encode(content), status, headers, "application/json")


def _refusal(status: int, error: SlackwaterError, retry_after_s: int | None = None) -> Response:
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else None
    facts = {"code": error.code, "message": error.message, "hint": error.hint}
    return _answer(status, {"error": facts}, headers)


def _unauthorized() -> Response:
    facts = {"code": "receive.unauthorized", "message": "the token is missing or wrong", "hint": None}
    return _answer(401, {"error": facts}, {"WWW-Authenticate": "Bearer"})


# --- as a program


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``127.0.0.1:8080``, ``[::1]:8080``, or a port alone, which is one of the loopback interface."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidInput(
            f"{text[:100]!r} is no address to listen at",
            code="receive.bad_address",
            hint="--listen 127.0.0.1:8080, or a port alone; 0 takes any that is free",
        )
    return host, int(port)


def open_socket(host: str, port: int, *, token: str | None) -> socket.socket:
    """Take an address. Beyond this machine only with a token: whoever reaches it could fill the disk."""
    if not _is_loopback(host) and not token:
        raise InvalidInput(
            f"{host} can be reached from other machines, and no token is set",
            code="receive.no_token",
            hint=f"set {TOKEN_VARIABLE}, and let senders say Authorization: Bearer TOKEN",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Conflict(
            f"{host}:{port} cannot be listened at: {error.strerror}",
            code="receive.address_taken",
            hint="--listen with another port; 0 takes any that is free",
        ) from None
    return taken


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    inbox: Inbox,
    listening: socket.socket,
    limits: HttpLimits | None = None,
    *,
    token: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> int | None:
    """Receive at a socket until a signal comes, and return it."""
    import uvicorn  # noqa: PLC0415 - an extra

    config = uvicorn.Config(
        HttpReceiver(inbox, limits, token=token).app(),
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=64 * KIB,
    )

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
    from contextlib import nullcontext  # noqa: PLC0415

    return type("Server", (server,), {"capture_signals": lambda self: nullcontext()})
