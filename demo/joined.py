"""The risk in every row of the sinks, compared with the version of the table that the row's checkpoint holds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from demo import versions
from demo.merchants import changes, risk
from demo.sinks import list_files

# Both sinks keep the id of the checkpoint in the paths of its files; what else looks like it has another version.
_CHECKPOINT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Row(NamedTuple):
    """A row of a sink, with the checkpoint that made it visible."""

    window_start: datetime
    merchant: str
    change: int | None
    risk: str | None
    checkpoint: str


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """How often the table has changed, how many versions of it rows have met, and how many rows are wrong in that.

    ``foreign`` rows have a version that their checkpoint does not hold. Those are amiss, and so are rows with a risk
    that their change did not give their merchant, or with another change than in another sink: by sink.
    """

    changes: int
    versions: int
    foreign: int
    amiss: dict[str, int]

    @property
    def sound(self) -> bool:
        return self.versions > 0 and not any(self.amiss.values())


def judge(folder: Path) -> Joined:
    """Compare each sink's rows with what their checkpoints hold."""
    rows = {name: [row for path in paths for row in _rows(path)] for name, paths in list_files(folder).items()}
    return compare(rows, versions.held(folder), changes(folder))


def compare(sinks: Mapping[str, Sequence[Row]], held: Mapping[str, int], changes: int) -> Joined:
    """Compare rows with the change that ``held`` says of their checkpoint; one that it does not know holds none."""
    rows = [row for found in sinks.values() for row in found]
    met: defaultdict[tuple[datetime, str], set[int | None]] = defaultdict(set)
    for row in rows:
        met[row[:2]].add(row.change)

    def is_foreign(row: Row) -> bool:
        return row.change is None or row.change != held.get(row.checkpoint)

    def is_amiss(row: Row) -> bool:
        return is_foreign(row) or row.risk != risk(row.merchant, row.change or 0) or len(met[row[:2]]) > 1

    return Joined(
        changes=changes,
        versions=len({row.change for row in rows} - {None}),
        foreign=sum(map(is_foreign, rows)),
        amiss={name: sum(map(is_amiss, found)) for name, found in sinks.items()},
    )


def age_a_risk(folder: Path) -> None:
    """Give one row, alike in both sinks, the risk of one change before, as a fault that only its checkpoint tells."""
    files = list_files(folder)
    victim = next(_rows(files["files"][-1]))
    assert victim.change is not None
    aged = {"change": victim.change - 1, "risk": risk(victim.merchant, victim.change - 1)}
    for path in (path for paths in files.values() for path in paths):
        table = pq.read_table(path)
        rows = [
            row | aged if (row["window_start"], row["merchant"]) == victim[:2] else row for row in table.to_pylist()
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def _rows(path: str) -> Iterator[Row]:
    found = _CHECKPOINT.findall(path)
    for row in pq.read_table(path).to_pylist():
        yield Row(row["window_start"], row["merchant"], row["change"], row["risk"], found[-1] if found else "")
