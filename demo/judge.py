"""Both sinks of the demo, read as their readers would and compared with the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from demo import joined
from demo.oracle import Comparison, compare, counts, expected_totals
from demo.sinks import list_files


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How each sink compares with the oracle, and what its rows were joined with."""

    sinks: dict[str, Comparison]
    joined: joined.Joined

    @property
    def exact(self) -> bool:
        return bool(self.sinks) and all(found.exact for found in self.sinks.values()) and self.joined.sound


def judge(folder: Path, rows: int) -> Verdict:
    """Compare each sink with the totals that a run of ``rows`` payments must give, and with its checkpoints' table."""
    expected = expected_totals(rows)
    sinks = {name: compare(expected, found) for name, found in read_sinks(folder).items()}
    return Verdict(sinks=sinks, joined=joined.judge(folder))


def take_a_row(folder: Path) -> None:
    """Take one row out of a published file, as a fault that the comparison must see."""
    victim = min((folder / "totals-files").glob("*.parquet"))
    pq.write_table(pq.read_table(victim).slice(1), victim)


def report(console: Console, verdict: Verdict, rows: int) -> None:
    expected, dropped, risks = len(expected_totals(rows)), counts(rows), verdict.joined
    sums = Table("sink", "expected", "lost", "repeated", "wrong", "joined amiss", "verdict", title="Against the oracle")
    for name, found in verdict.sinks.items():
        amiss = risks.amiss[name]
        sums.add_row(
            name,
            str(expected),
            str(len(found.lost)),
            str(len(found.repeated)),
            str(len(found.wrong) + len(found.unexpected)),
            str(amiss),
            "[green]exactly once[/]" if found.exact and not amiss else "[red]NOT EQUAL[/]",
        )
    console.print(sums)
    console.print(
        f"The merchants' risk changed {risks.changes:,} times, and rows met {risks.versions} versions of it; "
        f"joined with one that their checkpoint does not hold: {risks.foreign}"
    )
    console.print(f"{rows:,} payments in, {dropped.duplicates:,} duplicates and {dropped.late:,} late ones dropped")


def read_sinks(folder: Path) -> dict[str, Iterator[tuple[int, str, int, int]]]:
    return {name: _rows(pq.read_table(file) for file in paths) for name, paths in list_files(folder).items()}


def _rows(tables: Iterable[pa.Table]) -> Iterator[tuple[int, str, int, int]]:
    for table in tables:
        for row in table.to_pylist():
            start_ms = round(row["window_start"].timestamp() * 1000)
            yield start_ms, row["merchant"], row["amount_cents"], row["payments"]
