"""Limits on connections to the HTTP receiver: their number, and those that send or read nothing."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...errors import Code, Unavailable
from .http_bodies import describe

_MOST = 1000
_AGAIN_S = 60.0
_HEAD = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"


class Connection(H11Protocol):
    """A connection that is broken when a request's head takes too long. The body's time is the receiver's concern."""

    timeout_s: ClassVar[float]
    most: ClassVar[int]
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(self.timeout_s, transport.abort)
        if len(self.connections) > self.most:
            transport.write(_refusal())
            transport.close()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._late.cancel()

    def on_response_complete(self) -> None:
        self._late.cancel()
        self._late = self.loop.call_later(self.timeout_s, self.transport.abort)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Bound the time for which a sender does not read its answers; requests may go on coming from it."""
        self._unread = self.loop.call_later(self.timeout_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)


def _refusal() -> bytes:
    """Write an answer to a request that is not read."""
    error = Unavailable("too many connections are open", code=Code.INBOX_FULL, hint="send it again in a moment")
    body = msgspec.json.encode({"error": describe(error)})
    return f"{_HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body


def limit_connections(timeout_s: float) -> type[Connection]:
    """Make the class of connections for one server. Half of the descriptors are left to the inbox."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if descriptors == resource.RLIM_INFINITY else min(_MOST, descriptors // 2)
    return type("Connection", (Connection,), {"timeout_s": timeout_s, "most": most})


class Seldom(logging.Filter):
    """Lets a line pass once a minute: whoever can connect could fill the log with it."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, _, _ = str(record.msg).partition("\n")
        now = time.monotonic()
        if now - self._said_at.get(line, -_AGAIN_S) < _AGAIN_S:
            return False
        self._said_at[line] = now
        return True
