"""A pipeline after 100,000 checkpoints against one after 100: to open it, and to make the next checkpoint.

On a local disk the difference is that of listing the log: a thousand records are never trimmed, so it grows up to
there, and no further. The side ``1,000`` shows that; ``log-read-100k`` is the listing and hardly anything else.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import cast

import msgspec

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.formats import manifest as manifests
from slackwater.formats.change import NOTHING_PACKED, Checkpoint, Settlement
from slackwater.formats.keys import LATEST, manifest_key
from slackwater.formats.manifest import Manifest
from slackwater.formats.state import State
from slackwater.protocol.keep_rules import plan_retire
from slackwater.protocol.log import Log, list_records
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.store import Store, open_store

from .lines import say
from .turns import compare, take_turns, timed

SIDES = {"ours": 100_000, "1,000": 1_000, "100": 100}
NAME = "orders"
PARTITIONS, PARTITION_BYTES = 8, 400
TIMES = 5  # a round; few, so that the shortest log stays short
GOAL = 0.8


def run(folder: Path, rounds: int) -> None:
    """Print the cases. All logs are made by the log's own appends and trims."""
    template = make_template(folder / "template")
    for name, count in SIDES.items():
        make(folder / name, count, template)
    listed = {name: len(list_records(open_store(str(folder / name / NAME)))) for name in SIDES}
    for verb, act in {"open": open_again, "append": append, "read": read}.items():
        sides = {name: partial(act, folder / name, folder / "tried") for name in SIDES}
        peers = {"100": f"{verb}, after 100 checkpoints"}
        compare(f"log-{verb}-100k", take_turns(sides, rounds), peers=peers, goal=GOAL, records=listed)


def open_again(pristine: Path, tried: Path) -> float:
    """Time a program's whole start: read the log, claim, recover the newest checkpoint, sweep."""
    copy(pristine, tried)
    return sum(timed(partial(sw.open_pipeline, tried, NAME)) for _ in range(TIMES)) / TIMES


def append(pristine: Path, tried: Path) -> float:
    """Time a checkpoint in which one partition has changed."""
    copy(pristine, tried)
    with sw.open_pipeline(tried, NAME) as pipeline:

        def checkpoint(row: int) -> None:
            state = {"counts": {**pipeline.state["counts"], row % PARTITIONS: partition(row)}}
            pipeline.checkpoint(offsets={"orders": {"row": row}}, state=state)

        checkpoint(-1)  # this one also deletes what the last program has left
        return sum(timed(partial(checkpoint, row)) for row in range(TIMES)) / TIMES


def read(pristine: Path, tried: Path) -> float:
    """Time how a tool learns the newest state."""
    store = open_store(str(pristine / NAME))
    return timed(lambda: [Log(store, SystemClock(), Settings()).read() for _ in range(TIMES)]) / TIMES


def copy(pristine: Path, tried: Path) -> None:
    shutil.rmtree(tried, ignore_errors=True)
    shutil.copytree(pristine, tried)


def make_template(folder: Path) -> Manifest:
    """Let a program make one checkpoint, whose manifest the others are like; its state is inline."""
    with sw.open_pipeline(folder, NAME) as pipeline:
        state = {"counts": {number: partition(number) for number in range(PARTITIONS)}}
        pipeline.checkpoint(offsets={"orders": {"row": 0}}, state=state)
    store = open_store(str(folder / NAME))
    newest = Log(store, SystemClock(), Settings()).read()
    assert newest is not None and newest.head is not None
    return load_manifest(store, newest.head)


def partition(number: int) -> bytes:
    return (b"%08d" % number) * (PARTITION_BYTES // 8)


def make(folder: Path, count: int, template: Manifest) -> None:
    """Make a pipeline that has come to ``count`` checkpoints; in a dictionary, because a disk syncs each create."""
    say(f"a log of {count} checkpoints")
    quick = Dictionary()
    driver = Driver(cast(Store, quick), template)
    for _ in range(count):
        driver.checkpoint()
    store = open_store(str(folder / NAME))
    for key, data in quick.objects.items():
        store.create(key, data)
    store.put(LATEST, driver.newest_id.encode())


class Dictionary:
    """As much of a store as a log asks for. Records come in order, so those after one are at the end."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get(self, key: str, *, max_bytes: int) -> bytes:
        return self.objects[key]

    def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def list_names(self, prefix: str, *, after: str | None = None) -> list[str]:
        names = (key.removeprefix(prefix) for key in reversed(self.objects) if key.startswith(prefix))
        return sorted(takewhile(lambda name: after is None or name > after, names))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.objects[key]

    def remove_unfinished(self, prefix: str) -> int:
        return 0


class Driver:
    """A log and its driver, which keeps ten checkpoints and deletes at once what it retires."""

    def __init__(self, store: Store, template: Manifest) -> None:
        self._store, self._template, self._clock = store, template, SystemClock()
        self._log = Log(store, self._clock, Settings())
        self._permit = self._log.claim(self._clock.random_id(), "bench program")
        self.newest_id = ""

    def checkpoint(self) -> None:
        state = cast(State, self._log.state)
        self.newest_id = self._clock.checkpoint_id()
        parent_id = state.head.checkpoint_id if state.head else None
        manifest = msgspec.structs.replace(
            self._template,
            uid=state.uid,
            epoch=state.epoch + 1,
            checkpoint_id=self.newest_id,
            parent_id=parent_id,
        )
        data = manifests.encode(manifest)
        self._store.create(manifest_key(self.newest_id), data)
        deleted = [entry.epoch for entry in state.retired]
        self._store.delete([manifest_key(entry.checkpoint_id) for entry in state.retired])
        change = Checkpoint(
            generation=self._permit.generation,
            epoch=manifest.epoch,
            checkpoint_id=self.newest_id,
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            manifest_size_bytes=len(data),
            parent_id=parent_id,
            settled=settle(state.epoch) if state.epoch else None,
            retire=plan_retire(state, Settings().keep_last, deleted),
            deleted=deleted,
        )
        self._log.append(lambda _state: change, permit=self._permit)
        self._log.trim_if_due()


def settle(epoch: int) -> Settlement:
    durations = dict.fromkeys(("capture", "artifacts", "manifest", "append", "commit", "latest"), 10)
    return Settlement(
        epoch=epoch,
        sinks={},
        durations_ms=durations,
        requests={"puts": 4, "gets": 0, "lists": 1, "deletes": 1},
        packed=NOTHING_PACKED,
        new_bytes=10_000,
        full_bytes=1_000_000,
    )
