"""4,096 files of 4 KiB: packed into batches, against each put as an object of its own."""

from __future__ import annotations

import random
import shutil
from itertools import count
from pathlib import Path

from slackwater.store import open_store

from .drivers import Driver, cut_of
from .turns import compare, take_turns, timed

FILES, SIZE_BYTES, MOST_PUTS = 4_096, 4_096, 5


def pack(folder: Path, rounds: int) -> None:
    random.seed(0)
    words = [random.randbytes(16) for _ in range(64)]  # state-like: rows that share their prefixes
    payloads = [b"".join(random.choice(words) for _ in range(SIZE_BYTES // 16)) for _ in range(FILES)]
    cut, numbers, puts = cut_of(payloads), count(), list[int]()

    def ours() -> float:
        driver = Driver(folder / str(next(numbers)))
        before = driver.store.requests.snapshot()
        seconds = timed(lambda: driver.checkpoint(cut))
        puts.append((driver.store.requests - before).puts)
        if puts[-1] > MOST_PUTS:
            raise SystemExit(f"a checkpoint of {FILES} small files has made {puts[-1]} PUTs, not {MOST_PUTS}")
        return seconds

    def one_by_one() -> float:
        room = folder / str(next(numbers))
        store = open_store(str(room))

        def put_each() -> None:
            for number, data in enumerate(payloads):
                store.put(f"state/{number}", data)

        seconds = timed(put_each)
        shutil.rmtree(room)
        return seconds

    peers = {"one by one": "the same store, each file put as an object of its own, one by one"}
    measured = take_turns({"ours": ours, "one by one": one_by_one}, min(rounds, 3))
    compare("pack-4096x4KiB", measured, peers=peers, goal=40, puts=max(puts))
