"""The CPU seconds of this process and all that it started, as Linux counts them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Sum user and system time of this process, its descendants, and the children that they have reaped."""
    spent, children = {}, dict[int, list[int]]()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended; its parent has reaped it or will
        pid, parent = int(entry.name), int(fields[1])
        children.setdefault(parent, []).append(pid)
        spent[pid] = sum(map(int, fields[11:15]))
    ticks, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        ticks += spent.get(pid, 0)
        todo += children.get(pid, [])
    return ticks / _TICKS_PER_S
