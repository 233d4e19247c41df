"""What a receiver looks for in a message: that it is JSON, and its position."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from ...errors import InvalidInput

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[([0-9]+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_MAX_POSITION = 1024


def decode_json(message: str | bytes) -> Any:
    """Decode JSON, or raise ``ValueError``. Halves of surrogate pairs and numbers beyond all bounds are JSON, too.

    >>> decode_json('["\\\\ud83d", 1e400]')
    ['\\ud83d', None]
    """
    try:
        return msgspec.json.decode(message)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.DecodeError as error:
        try:
            text = message.decode() if isinstance(message, bytes) else message
            return json.loads(text, parse_int=_parse_whole, parse_float=_parse_other, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise ValueError(str(error)) from None


def _parse_whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_POSITION else None


def _parse_other(digits: str) -> None:
    """No position is a fraction, and nothing else is looked at."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_path(text: str) -> tuple[str | int, ...]:
    """Parse a plain JSON path.

    >>> parse_path("$.data[0]['seq no']")
    ('data', 0, 'seq no')
    """
    steps: list[str | int] = []
    at = 1
    while text.startswith("$") and at < len(text) and (match := _STEP.match(text, at)) is not None:
        steps.append(int(match[2]) if match[2] is not None else next(g for g in match.groups() if g is not None))
        at = match.end()
    if not steps or at != len(text):
        raise InvalidInput(
            f"{text[:100]!r} is not a path to a position",
            code="option.invalid",
            hint="--position '$.seq', or '$.data[0].id'",
        )
    return tuple(steps)


def find_position(message: str | bytes, path: Sequence[str | int]) -> str | None:
    """Find the position of a message: a text or a whole number; None where there is none.

    >>> find_position('{"seq": 7}', ["seq"]), find_position('{"type": "hello"}', ["seq"])
    ('7', None)
    """
    found: Any = decode_json(message)
    for step in path:
        if isinstance(found, dict) and isinstance(step, str):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int):
            found = found[step] if step < len(found) else None
        else:
            return None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    position = str(found)
    # Half of a surrogate pair cannot be stored, nor said to the upstream.
    sound = len(position) <= _MAX_POSITION and not any("\ud800" <= letter <= "\udfff" for letter in position)
    return position if sound else None
