"""A connection to a WebSocket server that knows when it last heard of it."""

from __future__ import annotations

from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.protocol import State


class Connection(ClientConnection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # By the loop's clock; pongs count, and what comes while it is being closed, and is not taken, does not.
        self.heard_at_s = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.protocol.state not in (State.CLOSING, State.CLOSED):
            self.heard_at_s = self.loop.time()
        super().data_received(data)
