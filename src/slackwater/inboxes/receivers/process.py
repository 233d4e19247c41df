"""A receiver as a program: its token from the environment; its end by a signal, or because its inbox has failed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import SlackwaterError
from ..inbox import Inbox

# The bearer token that a receiver wants, or says to its upstream.
TOKEN_VARIABLE = "SLACKWATER_RECEIVE_TOKEN"
_LOOK_S = 0.2
# One Ctrl-C may come twice, to the program and to its group. A later one is from somebody who does not want to wait.
_ONE_SIGNAL_S = 2.0


def read_token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


class Stop:
    """What a receiver looks at to know whether to go on. The first signal ends it cleanly."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.asked = asyncio.Event()
        self.signal: int | None = None
        self._at_s = 0.0

    @contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Take signals, until all is closed."""
        loop, before = asyncio.get_running_loop(), dict[signal.Signals, Any]()

        def take(number: int, _: object) -> None:
            if self.signal is None:
                self.signal, self._at_s = number, time.monotonic()
                loop.call_soon_threadsafe(self.asked.set)
            elif time.monotonic() - self._at_s > _ONE_SIGNAL_S:
                raise KeyboardInterrupt

        try:
            for taken in (signal.SIGINT, signal.SIGTERM):
                before[taken] = signal.signal(taken, take)
            yield
        finally:
            # A program that was told to end does so now: what comes twice must not spoil its exit code.
            for taken, handler in before.items():
                signal.signal(taken, handler if self.signal is None else signal.SIG_IGN)

    async def watch(self) -> None:
        """Wait until it is asked for, or for the inbox to fail."""
        while not self.asked.is_set() and self._inbox.failure is None:
            try:
                await asyncio.wait_for(self.asked.wait(), _LOOK_S)
            except TimeoutError:
                continue
        self.asked.set()


def run_until_stopped(inbox: Inbox, receive: Callable[[Stop], Awaitable[None]]) -> int | None:
    """Receive until a signal comes, and return it; the inbox is closed at the end, however it comes."""

    async def main() -> int | None:
        stop = Stop(inbox)
        with stop.taking_signals():
            watching = asyncio.create_task(stop.watch())
            try:
                await receive(stop)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                # While signals are taken: one that comes twice must not spoil the end.
                await asyncio.to_thread(inbox.close)
        return stop.signal

    try:
        number = asyncio.run(main())
    finally:
        inbox.close()
    failure: SlackwaterError | None = inbox.failure
    if failure is not None:
        raise failure
    return number
