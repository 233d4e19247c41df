"""Play many seeds: ``python -m simulation --seeds 1000``; or one, with what happened in it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from simulation.many import REPLAY, Broken, play_many, play_one


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, tell what broke and how to see it again; 1 when something did."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--from", type=int, default=0, metavar="M", dest="first", help="the first of them (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: cores)")
    parser.add_argument("--seed", type=int, metavar="S", help="play this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    if asked.trace and asked.seed is None:
        parser.error("--trace needs --seed")
    began = time.monotonic()
    if asked.seed is not None:
        trace, found = play_one(asked.seed)
        if asked.trace and not asked.json:
            print("\n".join(trace))
        broken = [found] if found else []
        told: dict[str, object] = {"seeds": 1, "first": asked.seed, **({"trace": trace} if asked.trace else {})}
    else:
        broken = []
        seeds = range(asked.first, asked.first + asked.seeds)
        for played, found in enumerate(play_many(seeds, asked.jobs), 1):
            if found is not None:
                broken.append(found)
                if not asked.json:
                    print(_describe(found), flush=True)
            if not asked.json and sys.stderr.isatty() and played % 20 == 0:
                print(f"\r{played} of {asked.seeds} seeds", end="", file=sys.stderr, flush=True)
        told = {"seeds": asked.seeds, "first": asked.first}
    seconds = time.monotonic() - began
    if asked.json:
        print(json.dumps({**told, "seconds": round(seconds, 1), "broken": [found._asdict() for found in broken]}))
    elif asked.seed is not None and broken:
        print(_describe(broken[0]))
    else:
        print(f"{told['seeds']} seeds in {seconds:.0f} s, {len(broken) or 'none'} broken")
    return 1 if broken else 0


def _describe(found: Broken) -> str:
    return f"seed {found.seed} breaks {found.invariant}: {found.message}\n  replay: {REPLAY.format(seed=found.seed)}"


if __name__ == "__main__":
    sys.exit(main())
