"""A log after 100,000 checkpoints against one after 100: to open it, and to append to it.

On a local disk the cost is that of the listing: a thousand records are never trimmed, so it grows up to there, and no
further. The side ``1,000`` shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import cast

from slackwater.formats.changes import NOTHING_PACKED, Checkpoint, Claim, Settlement, SinkStatus
from slackwater.formats.layout import LOG
from slackwater.formats.plans import plan_retire
from slackwater.formats.states import State
from slackwater.log import Log
from slackwater.settings import Settings
from slackwater.store import Listed, Listing, Store, open_store
from slackwater.world import RealWorld

from .lines import say
from .turns import compare, take_turns, timed

SIDES = {"ours": 100_000, "1,000": 1_000, "100": 100}
TIMES = {"open": 20, "append": 5}  # a round; few appends, so that the shortest log stays short
GOAL = 0.8


def run(folder: Path, rounds: int) -> None:
    """Print the cases. Both logs are made by the log's own appends and trims."""
    logs = {name: make(folder / name, count) for name, count in SIDES.items()}
    acts: dict[str, Callable[[Written], object]] = {
        "open": lambda log: read(log.store),
        "append": lambda log: log.checkpoint(),
    }
    for verb, act in acts.items():
        sides = {name: partial(repeat, act, log, TIMES[verb]) for name, log in logs.items()}
        peers = {"100": f"{verb}, in a log of 100 checkpoints"}
        listed = {name: len(log.store.list(LOG)) for name, log in logs.items()}
        compare(f"log-{verb}-100k", take_turns(sides, rounds), peers=peers, goal=GOAL, records=listed)


def repeat(act: Callable[[Written], object], log: Written, times: int) -> float:
    return timed(lambda: [act(log) for _ in range(times)]) / times


def read(store: Store) -> State | None:
    """Read the newest state as a process does that has just started."""
    return Log(store, RealWorld(), Settings()).read()


def make(folder: Path, count: int) -> Written:
    """Make a log that has come to ``count`` checkpoints: in a dictionary, because each create on disk is synced."""
    say(f"a log of {count} checkpoints")
    quick = Dictionary()
    log = Written(cast(Store, quick))
    for _ in range(count):
        log.checkpoint()
    store = open_store(str(folder))
    for key, data in quick.objects.items():
        store.create(key, data)
    return Written(store)


class Dictionary:
    """As much of a store as a log asks for. Keys come in order, so those after one are at the end."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get(self, key: str, *, max_bytes: int) -> bytes:
        return self.objects[key]

    def create(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        later = takewhile(lambda key: after is None or key > after, reversed(self.objects))
        return [Listed(key, len(self.objects[key])) for key in later]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.objects[key]


class Written:
    """A log and its driver, which keeps ten checkpoints and deletes at once what it retires."""

    def __init__(self, store: Store) -> None:
        self.store, self._world = store, RealWorld()
        self._log = Log(store, self._world, Settings())
        claim = Claim(uid=self._world.random_id(), driver="bench")
        self._generation = self._log.append(lambda _state: claim).generation

    def checkpoint(self) -> None:
        checkpoint_id = self._world.checkpoint_id()

        def decide(state: State | None) -> Checkpoint:
            assert state is not None
            deleted = [entry.epoch for entry in state.retired]
            return Checkpoint(
                generation=self._generation,
                epoch=state.epoch + 1,
                checkpoint_id=checkpoint_id,
                manifest_sha256="0" * 64,
                manifest_size_bytes=1,
                parent_id=state.head.checkpoint_id if state.head else None,
                settled=settle(state.epoch) if state.epoch else None,
                retire=plan_retire(state, Settings().keep_last, deleted),
                deleted=deleted,
            )

        self._log.append(decide, generation=self._generation)
        self._log.trim_if_due()


def settle(epoch: int) -> Settlement:
    durations = dict.fromkeys(("capture", "artifacts", "manifest", "append", "commit", "latest"), 10)
    return Settlement(
        epoch=epoch,
        sinks={"totals": SinkStatus(status="Committed")},
        durations_ms=durations,
        requests={"puts": 4, "gets": 0, "lists": 1, "deletes": 1},
        packed=NOTHING_PACKED,
        new_bytes=10_000,
        full_bytes=1_000_000,
    )
