"""A keyed state of a million keys: what a checkpoint, a start and its memory cost."""

from __future__ import annotations

import os
import pickle
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.metadata import CheckpointMetadata
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from slackwater.protocol.recovery import load_manifest

from .lines import print_case, say, short
from .turns import compare, take_turns, timed

KEYS, VALUE_BYTES = 1_000_000, 100
FILLED_AT_ONCE = 20_000
LIMIT_MIB = 300


def key_of(number: int) -> bytes:
    return b"%016d" % number


def filled(folder: Path, **fields: Any) -> KeyedCheckpoints:
    """Open a keyed pipeline with a million keys of 100 bytes, none of which compress."""
    say(f"{KEYS} keys")
    counts = open_keyed(CheckpointConfig(folder / "store" / "counts", max_retained=1, **fields))
    change(counts, range(KEYS))
    return counts


def change(counts: KeyedCheckpoints, numbers: Sequence[int]) -> None:
    random_bytes = random.Random(len(numbers)).randbytes
    for at in range(0, len(numbers), FILLED_AT_ONCE):
        counts.write([(key_of(n), random_bytes(VALUE_BYTES)) for n in numbers[at : at + FILLED_AT_ONCE]])


def delta(folder: Path, rounds: int) -> None:
    """Compare a checkpoint after 1 % has changed with one that stores everything. Bytes and time are two cases."""
    sides = {"ours": filled(folder / "delta"), "full": filled(folder / "full", incremental=False)}
    chosen = random.Random(2)
    measured: dict[str, dict[str, list[float]]] = {"bytes": {}, "time": {}}
    for counts in sides.values():
        counts.create_checkpoint()
    # Of a full one each is like the other; of deltas some hold what was merged, so there are more of them.
    for side, times in (("ours", 6 * rounds), ("full", rounds)):
        counts = sides[side]
        for number in range(times):
            change(counts, chosen.sample(range(KEYS), KEYS // 100))
            made: list[CheckpointMetadata] = []
            seconds = timed(lambda counts=counts, made=made: made.append(counts.create_checkpoint()))  # type: ignore[misc]
            stored = new_bytes(counts, made[0])
            measured["time"].setdefault(side, []).append(seconds)
            measured["bytes"].setdefault(side, []).append(stored)
            say(f"{side} {number}: {stored / 1e6:.1f} MB, {1000 * seconds:.0f} ms")
        counts.close()
    # What is merged now and then is a part of the bytes' mean; of times the median, which a busy neighbour spoils less.
    for what, unit, middle in (("bytes", "bytes", statistics.mean), ("time", "s", statistics.median)):
        mine, full = measured[what]["ours"], measured[what]["full"]
        print_case(
            f"incremental/delta-1pct-{what}",
            pairs=list(zip([statistics.median(mine[n::rounds]) for n in range(rounds)], full, strict=True)),
            ours=middle(mine),
            unit=unit,
            reference=f"a checkpoint of the same that stores everything (incremental=False); the {middle.__name__}",
            reference_value=middle(full),
            goal=20,
            least=short(min(mine)),
            most=short(max(mine)),
        )


def new_bytes(counts: KeyedCheckpoints, made: CheckpointMetadata) -> int:
    entry = counts._checkpointer.state.live[-1]
    objects = load_manifest(counts._pipeline.store, entry).objects
    return entry.manifest_size_bytes + sum(stored.size_bytes for stored in objects if made.id in stored.key)


def recover(folder: Path, rounds: int) -> None:
    """Compare a start in a new process, to its first read, with unpickling a dictionary of the same."""
    with filled(folder) as counts:
        counts.create_checkpoint()
        change(counts, range(1_000))  # so that there is a log to recover
        plain = dict(counts.scan())
    with open(folder / "plain.pickle", "wb") as file:
        pickle.dump(plain, file, protocol=pickle.HIGHEST_PROTOCOL)
    del plain
    sides = {side: partial(in_process, side, folder) for side in ("ours", "folder", "pickle")}
    measured = take_turns(sides, rounds)
    what = "pickle.load of a dict of the same, then one lookup"
    compare("recover-1M", measured, peers={"pickle": what}, goal=5, suite="incremental")


def memory(folder: Path, rounds: int) -> None:
    """Tell the most memory that a process has that fills, checkpoints and reads a million keys."""
    taken = [in_process("memory", folder / str(number)) for number in range(min(rounds, 2))]
    print_case(
        "incremental/memory-1M",
        pairs=[(value, LIMIT_MIB) for value in taken],
        ours=max(taken),
        unit="MiB",
        reference="the limit, of the whole process",
        reference_value=LIMIT_MIB,
        goal=1,
    )


def in_process(job: str, folder: Path) -> float:
    command = [sys.executable, "-m", __name__, job, str(folder)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run(job: str, folder: Path) -> float:
    """Do one job in a process of its own, and give its seconds, or its MiB."""
    key = key_of(KEYS // 2)
    if job == "memory":
        with filled(folder) as counts:
            counts.create_checkpoint()
            change(counts, range(0, KEYS, 100))
            counts.create_checkpoint()
            assert counts.get_many([key_of(n) for n in range(0, KEYS, 10)])[-1] is not None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def read() -> None:
        if job == "pickle":
            with open(folder / "plain.pickle", "rb") as file:
                assert key in pickle.load(file)
        elif job == "folder":
            state = KeyedState(folder / "store" / "counts.wal" / "state")
            assert state.get(key) is not None
        else:
            counts = open_keyed(CheckpointConfig(folder / "store" / "counts"))
            assert counts.get(key) is not None

    return timed(read)


if __name__ == "__main__":
    print(run(sys.argv[1], Path(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # what is left open is as after a crash
