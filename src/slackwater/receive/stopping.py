"""How a receiver ends: by a signal, or because its inbox has failed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from ..errors import SlackwaterError
from ..incremental.inbox import Inbox

_LOOK_S = 0.2


class Stop:
    """What a receiver looks at to know whether to go on. The first signal ends it cleanly."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.asked = asyncio.Event()
        self.signal: int | None = None

    def _take(self, number: int) -> None:
        self.signal = self.signal or number
        self.asked.set()

    async def watch(self) -> None:
        """Wait for a signal, or for the inbox to fail."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)
        try:
            while not self.asked.is_set() and self._inbox.failure is None:
                try:
                    await asyncio.wait_for(self.asked.wait(), _LOOK_S)
                except TimeoutError:
                    continue
            self.asked.set()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def run_until_stopped(inbox: Inbox, receive: Callable[[Stop], Awaitable[None]]) -> int | None:
    """Receive until a signal comes, and return it; the inbox is closed at the end, however it comes."""

    async def main() -> int | None:
        stop = Stop(inbox)
        watching = asyncio.create_task(stop.watch())
        try:
            await receive(stop)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return stop.signal

    try:
        number = asyncio.run(main())
    finally:
        inbox.close()
    failure: SlackwaterError | None = inbox.failure
    if failure is not None:
        raise failure
    return number
