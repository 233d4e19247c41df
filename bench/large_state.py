"""64 partitions of 8 MiB: saved, restored, verified, each against the best simple program for the same bytes."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify_checkpoints
from slackwater.protocol.directory import write_directory
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import MIB, Settings

from .drivers import Driver, cut_of
from .turns import compare, take_turns, timed

PARTITIONS, SIZE_BYTES = 64, 8 * MIB
POOLS = (2, 4, 8)


def payloads() -> list[bytes]:
    random.seed(0)
    block = random.randbytes(SIZE_BYTES)
    return [block[number:] + block[:number] for number in range(PARTITIONS)]


def run_pool(threads: int, job: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(job, range(PARTITIONS)))


class _Rooms:
    """A new folder for each run, made before its time is taken; the last one's is removed then, too."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers, self._last = folder, count(), folder / "none"

    def new(self) -> Path:
        shutil.rmtree(self._last, ignore_errors=True)
        self._last = self._folder / str(next(self._numbers))
        return self._last


def save(folder: Path, rounds: int) -> None:
    """Checkpoint bytes in memory, durably."""
    data, rooms = payloads(), _Rooms(folder)
    cut = cut_of(data)

    def ours() -> float:
        driver = Driver(rooms.new())
        return timed(lambda: driver.checkpoint(cut))

    def simple(threads: int, *, hashed: bool, written: bool) -> float:
        room = rooms.new()
        room.mkdir()
        return timed(lambda: run_pool(threads, partial(_save_one, data, room, hashed, written)))

    sides: dict[str, Callable[[], float]] = {"ours": ours}
    sides |= {f"hash+put {threads}": partial(simple, threads, hashed=True, written=True) for threads in POOLS}
    sides |= {
        "hash": partial(simple, 2, hashed=True, written=False),
        "put": partial(simple, 8, hashed=False, written=True),
    }
    what = "SHA-256, then a file written, synced, renamed, its folder synced; 64 times, in a pool of {} threads"
    peers = {f"hash+put {threads}": what.format(threads) for threads in POOLS}
    compare("save-64x8MiB", take_turns(sides, rounds), peers=peers, goal=0.9)


def _save_one(data: list[bytes], room: Path, hashed: bool, written: bool, number: int) -> None:
    if hashed:
        hashlib.sha256(data[number]).hexdigest()
    if written:
        unfinished = room / f"{number}.tmp"
        with unfinished.open("wb", buffering=0) as file:
            file.write(data[number])
            os.fsync(file.fileno())
        unfinished.rename(room / str(number))
        opened = os.open(room, os.O_RDONLY)
        os.fsync(opened)
        os.close(opened)


def restore(folder: Path, rounds: int) -> None:
    """Restore a checkpoint into files, every byte verified."""
    driver = Driver(folder / "store")
    driver.checkpoint(cut_of(payloads()))
    assert driver.log.state is not None and driver.log.state.head is not None
    manifest = load_manifest(driver.store, driver.log.state.head)
    objects = [folder / "store" / entry.key for entry in manifest.objects]
    digests = [entry.sha256 for entry in manifest.objects]
    rooms = _Rooms(folder)

    def ours() -> float:
        room = rooms.new()
        return timed(lambda: write_directory(driver.store, manifest, room, Settings(), durable=False))

    def simple(threads: int) -> float:
        room = rooms.new()
        room.mkdir()

        def restore_one(number: int) -> None:
            data = objects[number].read_bytes()
            assert hashlib.sha256(data).hexdigest() == digests[number]
            (room / str(number)).write_bytes(data)

        return timed(lambda: run_pool(threads, restore_one))

    sides: dict[str, Callable[[], float]] = {"ours": ours}
    sides |= {f"get+hash+write {threads}": partial(simple, threads) for threads in POOLS}
    what = "a file read, its SHA-256 compared, its bytes written; 64 times, in a pool of {} threads"
    peers = {f"get+hash+write {threads}": what.format(threads) for threads in POOLS}
    compare("restore-64x8MiB", take_turns(sides, rounds), peers=peers, goal=0.9)


def verify(folder: Path, rounds: int) -> None:
    """Verify 512 MiB that the page cache has."""
    Driver(folder / "store").checkpoint(cut_of(payloads()))
    pipeline = read_pipeline(str(folder / "store"))
    objects = sorted(path for path in (folder / "store").rglob("partition-*"))

    def ours() -> None:
        found = verify_checkpoints(pipeline, pipeline.state.live, read_data=True)
        assert found.read_bytes == PARTITIONS * SIZE_BYTES and not found.findings

    sides = {
        "ours": lambda: timed(ours),
        "read": lambda: timed(lambda: run_pool(2, lambda number: _digest(objects[number]))),
        "mapped": lambda: timed(lambda: run_pool(2, lambda number: _digest_mapped(objects[number]))),
    }
    peers = {"read": "hashlib.file_digest of the same files, two threads"}
    compare("verify-512MiB", take_turns(sides, rounds), peers=peers, goal=0.9)


def _digest(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_mapped(path: Path) -> str:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return hashlib.sha256(mapped).hexdigest()
