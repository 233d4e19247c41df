"""Named places where a test can end, stop or fail the process.

A point stands wherever something durable was done since the last one: right after one step is right before the next.

Off unless ``SLACKWATER_FAILPOINTS`` is set, for example to ``append.after=kill`` or ``stage.after@3=stop``: the third
time that ``stage.after`` is reached, the process stops itself. Actions: ``kill`` (SIGKILL), ``stop`` (SIGSTOP) and
``raise``.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

from .errors import InvalidInput, SlackwaterError

VARIABLE = "SLACKWATER_FAILPOINTS"
_ACTIONS = ("kill", "stop", "raise")


def parse(text: str) -> dict[str, tuple[int, str]]:
    """Parse ``name[@hit]=action`` pairs, separated by commas, into name → (hit, action)."""
    armed: dict[str, tuple[int, str]] = {}
    for pair in filter(None, text.split(",")):
        place, _, action = pair.partition("=")
        name, _, hit = place.partition("@")
        if action not in _ACTIONS or not name or not re.fullmatch(r"[1-9][0-9]{0,8}", hit or "1"):
            raise InvalidInput(
                f"{VARIABLE} holds {pair!r}, which is not name[@hit]=action",
                code="option.invalid",
                hint=f"actions are {', '.join(_ACTIONS)}",
            )
        armed[name] = (int(hit or "1"), action)
    return armed


_armed = parse(os.environ.get(VARIABLE, ""))
_hits: dict[str, int] = {}
_lock = threading.Lock()


def reach(name: str) -> None:
    """Say that the protocol has come to ``name``. Free when nothing is armed."""
    if _armed:
        _reach_armed(name)


def _reach_armed(name: str) -> None:
    wanted = _armed.get(name)
    if wanted is None:
        return
    with _lock:
        _hits[name] = _hits.get(name, 0) + 1
        if _hits[name] != wanted[0]:
            return
    sys.stderr.flush()
    os.write(2, f"failpoint {name}: {wanted[1]}\n".encode())
    if wanted[1] == "raise":
        raise SlackwaterError(f"failpoint {name} was armed", code="failpoint.raised")
    os.kill(os.getpid(), signal.SIGKILL if wanted[1] == "kill" else signal.SIGSTOP)
