"""A suite of cases on the command line: all of them, or some by name."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from .lines import say

# Gets a folder for what it writes, and how often the sides take turns.
Case = Callable[[Path, int], None]


def run_suite(cases: Mapping[str, Case], description: str | None, *, rounds: int) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    # The empty list is there because argparse checks the default, too.
    parser.add_argument("cases", nargs="*", choices=[*cases, []], help="all, unless some are named")
    parser.add_argument("--rounds", type=int, default=rounds, help="how often the sides take turns")
    parser.add_argument("--scratch", type=Path, help="a folder for what is written; a temporary one unless named")
    args = parser.parse_args()
    for name in args.cases or cases:
        say(name)
        folder = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=args.scratch))
        try:
            cases[name](folder, args.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
