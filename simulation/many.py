"""Many seeds, played on every core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from simulation.play import play
from simulation.scheduler import Simulation, Violation

REPLAY = "python -m simulation --seed {seed} --trace"
EXCEPTION = "exception"
_CHUNK = 10


class Broken(NamedTuple):
    """A seed, and the invariant that does not hold in it; an error that no actor may end with is an ``exception``."""

    seed: int
    invariant: str
    message: str


def play_one(seed: int) -> tuple[list[str], Broken | None]:
    """Play one seed; return every step of it, and what broke."""
    traces: list[list[str]] = []

    def watch(simulation: Simulation) -> None:
        traces.append(simulation.trace)

    try:
        play(seed, watch=watch)
    except Violation as violation:
        invariant, _, message = str(violation).partition(": ")
        return traces[0], Broken(seed, invariant, message)
    except Exception as error:
        return traces[0], Broken(seed, EXCEPTION, repr(error))
    return traces[0], None


def play_many(seeds: Iterable[int], jobs: int) -> Iterator[Broken | None]:
    """Play seeds in processes of their own; tell in order what broke in each, None for nothing."""
    if jobs == 1:
        yield from map(_play, seeds)
        return
    # Spawned: a process that has used obstore cannot be forked.
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for number in range(jobs):
        cores.put(number)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_stay_on_one_core, initargs=(cores,)) as pool:
        yield from pool.map(_play, seeds, chunksize=_CHUNK)


def _play(seed: int) -> Broken | None:
    return play_one(seed)[1]


def _stay_on_one_core(cores: multiprocessing.SimpleQueue[int]) -> None:
    """One thread of a simulation runs at a time; handing over is quicker where none has to be woken on another core."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[cores.get() % len(mine)]})
