"""Asking again where a client gives up at the first connection that breaks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_LONGEST_PAUSE_S = 2.0


def until_answered(ask: Callable[[], _T], total_timeout_s: float, broke: Callable[[Exception], bool]) -> _T:
    """Ask again, until an answer comes or the time is up; only for what does no harm when it is done twice."""
    deadline, pause_s = time.monotonic() + total_timeout_s, 0.1
    while True:
        try:
            return ask()
        except Exception as error:
            if not broke(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(random.uniform(pause_s / 2, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
