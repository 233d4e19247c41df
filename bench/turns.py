"""Sides that take turns, so that what the machine does meanwhile befalls them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .lines import print_case, say, short


def timed(job: Callable[[], object]) -> float:
    """Time one run, in seconds."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def take_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every side once a round, every other round in reverse; the first round warms up and does not count."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in reversed(list(sides)) if number % 2 else sides:
            value = sides[name]()
            if number:
                measured[name].append(value)
        if number:
            said = ", ".join(f"{name} {1000 * values[-1]:.1f} ms" for name, values in measured.items())
            say(f"round {number}: {said}")
    return measured


def compare(
    name: str,
    measured: dict[str, list[float]],
    *,
    peers: Mapping[str, str],
    goal: float,
    suite: str = "storage",
    **more: object,
) -> None:
    """Print the case: ours against the fastest of the peers, which are named with what they do.

    The best round of each side counts: what disturbs a run only ever makes it slower.
    """
    bests = {side: min(values) for side, values in measured.items()}
    peer = min(peers, key=bests.__getitem__)
    print_case(
        f"{suite}/{name}",
        pairs=list(zip(measured["ours"], measured[peer], strict=True)),
        ours=bests["ours"],
        unit="s",
        reference=peers[peer],
        reference_value=bests[peer],
        goal=goal,
        sides={side: short(value) for side, value in bests.items()},
        **more,
    )
