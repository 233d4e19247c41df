"""How far a long command is: a bar on a terminal, elsewhere a line now and then, both on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .entry import remove_when_interrupted
from .text import format_size, note

PLAIN_LINE_S = 10.0


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give what is called with the bytes that are done, and with all that there are."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as bar:
        remove_when_interrupted(bar.stop)  # it has hidden the cursor
        task = bar.add_task(what, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


def _plain_lines(what: str) -> Callable[[int, int], None]:
    told_at = time.monotonic()

    def tell(done_bytes: int, total_bytes: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PLAIN_LINE_S:
            told_at = time.monotonic()
            note(f"{what}: {format_size(done_bytes)} of {format_size(total_bytes)}")

    return tell
