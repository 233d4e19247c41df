"""The suite's output: one JSON line a pair, then one a case."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


def print_case(
    name: str,
    *,
    pairs: Sequence[tuple[float, float]],
    ours: float,
    unit: str,
    reference: str,
    reference_value: float,
    goal: float,
    **more: object,
) -> None:
    """Print the pairs (ours, the peer's) in the order in which they were measured, then the case that they make."""
    for number, (mine, theirs) in enumerate(pairs, 1):
        pair = {"case": name, "pair": number, "ours": short(mine), "reference_value": short(theirs)}
        print(json.dumps({**pair, "ratio": round(theirs / mine, 3)}))
    ratios = [theirs / mine for mine, theirs in pairs]
    case = {
        "case": name,
        "ours": short(ours),
        "unit": unit,
        "reference": reference,
        "reference_value": short(reference_value),
        "ratio": round(reference_value / ours, 3),
        "goal": goal,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        **more,
    }
    print(json.dumps(case), flush=True)


def say(text: str) -> None:
    """Tell on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


def short(value: float) -> float:
    """Round to four digits."""
    return float(f"{value:.4g}")
