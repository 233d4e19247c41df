"""Every kind of query: run, killed in the middle, gone on with in a fresh directory, and equal to a run in one go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from demo.jvm import JVM_OPTIONS, quick_start
from slackwater import read_committed
from slackwater.failpoints import VARIABLE
from slackwater.formats.state import State
from slackwater.spark.working_directory import VARIABLE as WORK
from tests.crash.drivers import CLASSES, ROOT, read_state
from tests.crash.expected import EXPECTED, rows_of
from tests.crash.inputs import FILES, write_inputs
from tests.crash.queries import CATALOGUE

# In step, every query then has two or three of its epochs.
KILL = f"append.after@{len(CATALOGUE) * 5 // 2}=kill"


@dataclass(frozen=True)
class Runs:
    """What two drivers of all queries left: one that ran in one go, one that was killed and run again."""

    whole: Path
    killed: Path
    when_killed: dict[str, State | None]
    ends: dict[str, tuple[int, str]]


def run(folder: Path, work: str, *options: str, failpoints: str = "") -> tuple[int, str]:
    """Run every query in a process of its own; return its exit code and what it said."""
    environment = {**os.environ, **quick_start(CLASSES), VARIABLE: failpoints, WORK: str(folder / work)}
    # Workers find the functions of the queries by the name of their module. So many queries are much to compile.
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    environment[JVM_OPTIONS] += " -XX:ReservedCodeCacheSize=160m"
    command = [sys.executable, "-m", "tests.crash.every_query", str(folder.parent / "inputs"), str(folder), *options]
    said = folder.parent / f"{folder.name}-{work}.txt"
    # Into a file: the JVM of a killed driver outlives it by seconds, and would hold on to a pipe.
    with said.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, env=environment, stderr=file, timeout=300, check=False).returncode
    return code, said.read_text()[-10_000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("queries")
    write_inputs(root / "inputs")
    whole, killed = root / "whole", root / "killed"
    ends = {"in one go": run(whole, "work"), "killed": run(killed, "first", "--in-step", failpoints=KILL)}
    states = {name: read_state(killed, name) for name in CATALOGUE}
    # What still points there must not find it.
    (killed / "first").rename(killed / "gone")
    ends["gone on"] = run(killed, "second")
    return Runs(whole, killed, states, ends)


def read_rows(folder: Path, name: str) -> dict[str, Counter[tuple[Any, ...]]]:
    """Read a query's sinks as their readers would."""
    found = {}
    if CATALOGUE[name].sink in ("files", "both"):
        tables = [pq.read_table(path) for path in read_committed(folder / "files" / name)]
        found["files"] = Counter(tuple(row.values()) for table in tables for row in table.to_pylist())
    if CATALOGUE[name].sink in ("delta", "both"):
        table = DeltaTable(str(folder / "delta" / name)).to_pyarrow_table()
        found["delta"] = Counter(tuple(row.values()) for row in table.to_pylist())
    return found


def test_for_every_query_it_is_known_what_it_must_give() -> None:
    assert CATALOGUE.keys() == EXPECTED.keys()
    assert all(rows_of(name) for name in CATALOGUE)


def test_the_drivers_end_as_they_should(runs: Runs) -> None:
    for name, (code, words) in runs.ends.items():
        assert code == (-signal.SIGKILL if name == "killed" else 0), f"{name}: {words}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_query_in_one_go_gives_what_it_must(name: str, runs: Runs) -> None:
    for sink, rows in read_rows(runs.whole, name).items():
        assert rows == rows_of(name), sink


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_killed_query_goes_on_in_a_fresh_directory_and_ends_equal(name: str, runs: Runs) -> None:
    killed, ended, whole = runs.when_killed[name], read_state(runs.killed, name), read_state(runs.whole, name)
    assert killed is not None and killed.epoch > 0, "the kill came too early: there is no checkpoint"
    assert killed.epoch < FILES, "the kill came too late: all is done"
    assert ended is not None and whole is not None
    # From its checkpoint on, neither from the beginning nor past anything.
    assert ended.epoch == whole.epoch
    assert read_rows(runs.killed, name) == read_rows(runs.whole, name)
