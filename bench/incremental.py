"""Keyed state against what this machine can do: durable appends, deltas, recovery, memory, a join, messages.

``docs/performance.md`` says what is compared with what.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import keyed_state, lookup, receive
from .lines import say

CASES: dict[str, Callable[[Path, int], None]] = {
    "append-durable": keyed_state.append,
    "delta-1pct": keyed_state.delta,
    "recover-1M": keyed_state.recover,
    "memory-1M": keyed_state.memory,
    "lookup-join-1M": lookup.measure,
    "http-durable": receive.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    # The empty list is there because argparse checks the default, too.
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all, unless some are named")
    parser.add_argument("--rounds", type=int, default=5, help="how often the sides take turns")
    parser.add_argument("--scratch", type=Path, help="a folder for what is written; a temporary one unless named")
    args = parser.parse_args()
    for name in args.cases or CASES:
        say(name)
        folder = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=args.scratch))
        try:
            CASES[name](folder, args.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
