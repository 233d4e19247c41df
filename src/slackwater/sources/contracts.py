"""Contracts of sources: what each kind promises after a crash, such as Kafka, files, a socket, an inbox."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..formats.positions import KIND


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What a source gives after a crash: its rows again, exactly as before, or not. ``why`` completes the sentence."""

    delivery: Literal["exactly-once", "at-most-once"] = "exactly-once"
    why: str = ""


_SOCKET = Contract(delivery="at-most-once", why="cannot replay: what was read and not yet checkpointed is gone")
# By the kind of the source, as in ``readStream.format``. What is not here can replay: kafka, file, delta, rate and the
# like, for Spark asks for the same offsets again.
_CONTRACTS = {"socket": _SOCKET, "textsocket": _SOCKET, KIND: Contract(why="from the receiver on")}


def contract_of(kind: str) -> Contract:
    return _CONTRACTS.get(kind, Contract())
