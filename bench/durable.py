"""Groups of messages and of changes, each durable before the next, against a file that is written and synced."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from slackwater.inboxes.inbox import Inbox
from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed

from .turns import compare, take_turns, timed

# Writes, each of so many messages or changes, by threads that wait until theirs is durable.
WRITES, GROUPS, WRITERS = 400, (10, 100, 1_000), 8
MESSAGE_BYTES, KEY_BYTES, GOAL = 100, 16, 0.8
PAYLOAD = random.Random(1).randbytes(MESSAGE_BYTES)

# Makes the group of so many durable that has this number.
Write = Callable[[int, int], object]


def append(folder: Path, rounds: int) -> None:
    """Append messages to an inbox, as a receiver does with each request."""
    inbox = Inbox(folder / "inbox")
    measure(folder, rounds, lambda size, _: inbox.append([PAYLOAD] * size).result(), case="append", what="messages")
    inbox.close()


def put(folder: Path, rounds: int) -> None:
    """Put keys into a keyed state that has them: the round that does not count has put them there."""
    with open_keyed(CheckpointConfig(folder / "store" / "counts")) as counts:
        measure(folder, rounds, partial(put_group, counts), case="put", what="keys", key_bytes=KEY_BYTES)


def put_group(counts: KeyedCheckpoints, size: int, number: int) -> None:
    keys = range(number * size, (number + 1) * size)
    counts.write([(b"%016d" % key, PAYLOAD) for key in keys], offsets={"rows": {"row": "1"}})


def measure(folder: Path, rounds: int, write: Write, *, case: str, what: str, key_bytes: int = 0) -> None:
    """Compare with the same bytes in a file, group by group: this disk's own rate of syncs, times the group's size."""
    for size in GROUPS:
        data = PAYLOAD * size + bytes(key_bytes * size)

        def ours(writers: int, size: int = size) -> None:
            with ThreadPoolExecutor(writers) as pool:
                list(pool.map(partial(write, size), range(WRITES)))

        def disk(data: bytes = data) -> None:
            with open(folder / "plain", "ab", buffering=0) as file:
                for _ in range(WRITES):
                    file.write(data)
                    os.fdatasync(file.fileno())

        sides = {
            "ours": partial(timed, partial(ours, WRITERS)),
            "one": partial(timed, partial(ours, 1)),
            "disk": partial(timed, disk),
        }
        measured = take_turns(sides, rounds)
        compare(
            f"{case}-durable-{size}",
            measured,
            peers={"disk": f"write and fdatasync of the same bytes to a file, {WRITES} times {size} {what}"},
            goal=GOAL,
            suite="incremental",
            writers=WRITERS,
            per_s=round(WRITES * size / min(measured["ours"])),
            sync_ms=round(1000 * min(measured["disk"]) / WRITES, 2),
        )
