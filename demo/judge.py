"""Both sinks of the demo, read as their readers would and compared with the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from slackwater import read_committed
from slackwater.testing.oracle import Comparison, compare, counts, expected_totals


def judge(folder: Path, rows: int) -> dict[str, Comparison]:
    """Compare each sink with the totals that a run of ``rows`` payments must give."""
    expected = expected_totals(rows)
    return {name: compare(expected, found) for name, found in read_sinks(folder).items()}


def exact(verdicts: dict[str, Comparison]) -> bool:
    return bool(verdicts) and all(comparison.exact for comparison in verdicts.values())


def take_a_row(folder: Path) -> None:
    """Take one row out of a published file, as a fault that the comparison must see."""
    victim = min((folder / "totals-files").glob("*.parquet"))
    pq.write_table(pq.read_table(victim).slice(1), victim)


def report(console: Console, verdicts: dict[str, Comparison], rows: int) -> None:
    expected, dropped = len(expected_totals(rows)), counts(rows)
    sums = Table("sink", "rows expected", "lost", "repeated", "wrong", "verdict", title="Against the oracle")
    for name, found in verdicts.items():
        sums.add_row(
            name,
            str(expected),
            str(len(found.lost)),
            str(len(found.repeated)),
            str(len(found.wrong) + len(found.unexpected)),
            "[green]exactly once[/]" if found.exact else "[red]NOT EQUAL[/]",
        )
    console.print(sums)
    console.print(f"{rows:,} payments in, {dropped.duplicates:,} duplicates and {dropped.late:,} late ones dropped")


def read_sinks(folder: Path) -> dict[str, Iterator[tuple[int, str, int, int]]]:
    delta = DeltaTable(str(folder / "totals-delta")).file_uris()
    files = read_committed(folder / "totals-files")
    return {name: _rows(pq.read_table(file) for file in paths) for name, paths in (("delta", delta), ("files", files))}


def _rows(tables: Iterable[pa.Table]) -> Iterator[tuple[int, str, int, int]]:
    for table in tables:
        for row in table.to_pylist():
            start_ms = round(row["window_start"].timestamp() * 1000)
            yield start_ms, row["merchant"], row["amount_cents"], row["payments"]
