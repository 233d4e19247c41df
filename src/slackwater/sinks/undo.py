"""The words of an undo: what it takes back, or why it is refused."""

from __future__ import annotations

from ..errors import Conflict


def undo_refused(reason: str) -> Conflict:
    return Conflict(
        f"what was committed since cannot be taken back: {reason}",
        code="sink.undo_refused",
        hint="slackwater rollback URL --to REF --keep NAME leaves this sink's rows as they are; "
        "before or after it the target can be put right by hand",
    )


def format_output(files: int, rows: int | None) -> str:
    """Format an amount of output; rows that nobody has counted are left out.

    >>> format_output(1, 4031)
    '1 file, 4,031 rows'
    """
    return _count(files, "file") + ("" if rows is None else f", {_count(rows, 'row')}")


def format_undone(files: int, rows: int | None, epochs: int) -> str:
    """Format what is taken back.

    >>> format_undone(2, None, 3), format_undone(0, 0, 0)
    ('2 files of 3 epochs', 'nothing')
    """
    return f"{format_output(files, rows)} of {_count(epochs, 'epoch')}" if files else "nothing"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
