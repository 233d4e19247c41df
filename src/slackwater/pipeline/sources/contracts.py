"""What each kind of source promises of its rows, by its own declaration."""

from __future__ import annotations

from typing import Literal

import msgspec


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What a source gives after a crash: its rows again, exactly as before, or not. ``why`` completes the sentence."""

    delivery: Literal["exactly-once", "at-most-once"] = "exactly-once"
    why: str = ""


# By the kind of the source, as in ``readStream.format``. What is not here can replay: Spark's own sources do.
_declared: dict[str, Contract] = {
    kind: Contract(delivery="at-most-once", why="cannot replay: what was read and not yet checkpointed is gone")
    for kind in ("socket", "textsocket")
}


def declare(kind: str, contract: Contract) -> None:
    """Declare what a source of ours promises; once, where the source is defined."""
    _declared[kind] = contract


def contract_of(kind: str) -> Contract:
    return _declared.get(kind, Contract())
