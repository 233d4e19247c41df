"""The inputs of every query: views and the clicks on them, a file of each a micro-batch, some rows twice, some late."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

MINUTE_MS = 60_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SPAN_MS = 10 * MINUTE_MS  # of one file
DELAY_MS = 5 * MINUTE_MS  # of the watermark
# The last file is one row far later, which lets the watermark pass all others.
FILES = 5
CLOSING = FILES - 1
CLOSING_MS = START_MS + 300 * MINUTE_MS


class View(NamedTuple):
    id: int
    user: str
    n: int
    at_ms: int


class Click(NamedTuple):
    view: int
    price: int
    at_ms: int


@cache
def views(file: int) -> tuple[View, ...]:
    if file == CLOSING:
        return (View(100 * file, "z", 1, CLOSING_MS),)
    start_ms = START_MS + file * SPAN_MS
    rows = [
        View(100 * file + i, "abcde"[(3 * file + i * i) % 5], file + i, start_ms + (7 * i + 3) % 10 * MINUTE_MS + i)
        for i in range(10)
    ]
    before = views(file - 1) if file else ()
    again = [rows[4], *before[1:9:7]]
    late = [View(100 * file + 90, "a", 7, start_ms - 3 * SPAN_MS + MINUTE_MS)] if file > 2 else []
    return (*rows, *again, *late)


@cache
def clicks(file: int) -> tuple[Click, ...]:
    """Make the clicks of one file: on its own views and those before; too late for their view; on no view at all."""
    if file == CLOSING:
        return (Click(999, 1, CLOSING_MS),)
    start_ms = START_MS + file * SPAN_MS
    before = views(file - 1) if file else ()
    seen = [(view, 2) for view in views(file)[:10:3]] + [(view, 4) for view in before[1:10:3]]
    missed = [(view, 8) for view in views(file)[2:10:5]]
    rows = [Click(view.id, view.n + minutes, view.at_ms + minutes * MINUTE_MS) for view, minutes in seen + missed]
    late = [Click(100 * file - 299, 9, start_ms - 3 * SPAN_MS + MINUTE_MS)] if file > 2 else []
    return (*rows, Click(100 * file + 77, 5, start_ms + 9 * MINUTE_MS), *late)


def write_inputs(folder: Path) -> None:
    """Write the views as JSON and the clicks as Parquet; the times of the files say their order."""
    schema = pa.schema({"view": pa.int64(), "price": pa.int64(), "clicked_ms": pa.int64()})
    for kind in ("views", "clicks"):
        (folder / kind).mkdir(parents=True)
    for file in range(FILES):
        lines = [json.dumps(dict(zip(("id", "user", "n", "at_ms"), row, strict=True))) for row in views(file)]
        json_path, parquet_path = folder / "views" / f"{file:03d}.json", folder / "clicks" / f"{file:03d}.parquet"
        json_path.write_text("\n".join(lines))
        columns = dict(zip(schema.names, map(list, zip(*clicks(file), strict=True)), strict=True))
        pq.write_table(pa.table(columns, schema=schema), parquet_path)
        for path in (json_path, parquet_path):
            os.utime(path, (1_700_000_000 + file,) * 2)
