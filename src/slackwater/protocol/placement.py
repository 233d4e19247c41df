"""Where new files go: a pure plan, by size."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..formats.batch import MAX_ENTRIES, MAX_ENTRY_BYTES
from ..settings import Settings


class NewFile(msgspec.Struct, frozen=True):
    """A file to be stored. ``group`` is the partition that it belongs to; None for the files beside the state."""

    path: str
    size_bytes: int
    group: str | None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    inline: list[str]
    batches: list[list[str]]
    objects: dict[str, list[str]]
    # Files beside the state that no batch can hold, each for an object of its own.
    large: list[str]


def plan_placement(files: Sequence[NewFile], settings: Settings) -> Placement:
    """Plan by size: a large partition gets an object, the rest goes into batches, and what is tiny goes inline.

    State goes inline only if all of it fits, because inline bytes are carried again by every later checkpoint that
    needs them; a batch is referenced.

    >>> plan_placement([NewFile("offsets/0", 100, None), NewFile("state/0/0/1.zip", 2**21, "0")], Settings()).objects
    {'0': ['state/0/0/1.zip']}
    """
    sizes: dict[str, int] = {}
    for file in files:
        if file.group is not None:
            sizes[file.group] = sizes.get(file.group, 0) + file.size_bytes
    objects: dict[str, list[str]] = {}
    large: list[str] = []
    small: list[NewFile] = []
    for file in files:
        if file.group is not None and sizes[file.group] >= settings.object_min_bytes:
            objects.setdefault(file.group, []).append(file.path)
        elif file.size_bytes > MAX_ENTRY_BYTES:
            large.append(file.path)
        else:
            small.append(file)
    inline = _fit_inline([file for file in small if file.group is None], settings.inline_budget_bytes, settings)
    state = [file for file in small if file.group is not None]
    left = settings.inline_budget_bytes - sum(_inline_bytes(file) for file in inline)
    tiny = _fit_inline(state, left, settings)
    if len(tiny) == len(state):
        inline += tiny
    taken = {file.path for file in inline}
    batches: list[list[str]] = []
    room = 0
    for file in small:
        if file.path in taken:
            continue
        if not batches or file.size_bytes > room or len(batches[-1]) == MAX_ENTRIES:
            batches.append([])
            room = settings.batch_target_bytes
        batches[-1].append(file.path)
        room -= file.size_bytes
    return Placement(inline=sorted(taken), batches=batches, objects=objects, large=large)


def _fit_inline(files: Sequence[NewFile], budget: int, settings: Settings) -> list[NewFile]:
    fitting = []
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        budget -= _inline_bytes(file)
        if file.size_bytes > settings.inline_max_bytes or budget < 0:
            break
        fitting.append(file)
    return fitting


def _inline_bytes(file: NewFile) -> int:
    return 4 * ((file.size_bytes + 2) // 3)  # base64
