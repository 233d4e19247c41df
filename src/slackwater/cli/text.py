"""Text for people: sizes, times, tables. Nothing that was stored reaches a terminal unescaped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def plain(text: str) -> str:
    """Escape what could move a cursor, colour a line or hide a letter.

    >>> plain("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def note(text: str) -> None:
    """Say something beside the answer."""
    print(plain(text), file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Print the answer as one JSON document, in ASCII."""
    import msgspec  # noqa: PLC0415

    print(json.dumps(msgspec.to_builtins(document), indent=2))


def print_fields(fields: dict[str, str]) -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name:<{width}}  {plain(value)}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their columns; a column named with a leading ``>`` is aligned to the right."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000  # Whoever reads a pipe wants whole lines.
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def format_size(size_bytes: int | None) -> str:
    """Format a size.

    >>> format_size(1023), format_size(1258291)
    ('1023 B', '1.2 MiB')
    """
    if size_bytes is None:
        return "?"
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1023.95 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size_bytes} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def format_time(at_ms: int) -> str:
    """Format a time as ISO 8601 in UTC.

    >>> format_time(1794736800000)
    '2026-11-15T10:00:00Z'
    """
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def format_age(at_ms: int, now_ms: int | None = None) -> str:
    """Format how long ago something was.

    >>> format_age(0, 7_500_000)
    '2 h'
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    seconds = max(0, now_ms - at_ms) // 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def format_offsets(offsets: Mapping[str, str]) -> str:
    """Format where a source stands.

    >>> format_offsets({"orders-0": "120", "orders-1": "97"})
    'orders-0 120, orders-1 97'
    """
    return ", ".join(f"{name} {value}" for name, value in offsets.items())


def format_way_back(to_epoch: int | None, repair: bool) -> str:
    """Say what has gone back to an older epoch; nothing, where nothing has.

    >>> format_way_back(4, False), format_way_back(4, True), format_way_back(None, False)
    ('rolled back to 4', 'repaired to 4', '')
    """
    return "" if to_epoch is None else f"{'repaired' if repair else 'rolled back'} to {to_epoch}"


def count(number: int, noun: str) -> str:
    """Count things.

    >>> count(1, "object"), count(2, "object")
    ('1 object', '2 objects')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
