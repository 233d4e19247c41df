"""The merchants' risk: a feed of changes to all of them at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from demo.payments import MERCHANTS, draw

FEED = "merchants"
# A field beside those that a payment draws.
_RISK = 7
_LEVELS = ("low", "medium", "high")
_EVERY_S = 0.5


def risk(merchant: str, change: int) -> str:
    """Compute the risk that a change gives a merchant, such as ``high 0.912345``."""
    score = draw(change * len(MERCHANTS) + MERCHANTS.index(merchant), _RISK, 1_000_000)
    return f"{_LEVELS[len(_LEVELS) * score // 1_000_000]} 0.{score:06d}"


def changes(folder: Path) -> int:
    """Tell how many changes there have been."""
    return max((parse_change(path.name) for path in (folder / FEED).glob("[0-9]*.json")), default=0)


def parse_change(name: str) -> int:
    """Parse the number of a change out of its file's name."""
    return int(name.removesuffix(".json"))


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Change every merchant's risk now, and again and again while the block runs."""
    (folder / FEED).mkdir(exist_ok=True)
    _change_all(folder)
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(_EVERY_S):
            _change_all(folder)

    feeder = threading.Thread(target=go_on, name="merchants")
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()


def _change_all(folder: Path) -> None:
    """Let one more file of changes appear, whole, with a name after all that are there."""
    change = changes(folder) + 1
    rows = [{"merchant": merchant, "change": change, "risk": risk(merchant, change)} for merchant in MERCHANTS]
    hidden = folder / FEED / f".{change:08d}.json"
    hidden.write_bytes(msgspec.json.Encoder().encode_lines(rows))
    hidden.rename(hidden.with_name(hidden.name[1:]))
