"""The clock, the randomness and the waits that the core is given, so that a seed can replay a run."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time: for people, never for a decision."""
        ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def random_id(self) -> str:
        """128 random bits in hex: an append's id, a pipeline's uid."""
        ...

    def checkpoint_id(self) -> str:
        """A new UUIDv7."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        # Jitter, so that two writers that met once do not meet again.
        time.sleep(seconds * random.uniform(0.5, 1.0))

    def random_id(self) -> str:
        return secrets.token_hex(16)

    def checkpoint_id(self) -> str:
        import uuid_utils  # noqa: PLC0415 - kept off the path of --help

        return str(uuid_utils.uuid7())


def this_process(role: str = "") -> str:
    """Name this process on record: ``host:pid``, with its role unless it runs a pipeline."""
    return f"{socket.gethostname()}:{os.getpid()} {role}".rstrip()
