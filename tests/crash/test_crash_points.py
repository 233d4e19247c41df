"""SIGKILL between every two steps: each run recovers from the kill before it, and dies at the next point."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.judge import read_sinks
from demo.oracle import compare, expected_totals
from slackwater.failpoints import VARIABLE
from tests.crash.drivers import ROOT, read_state, run, sinks_hold

ROWS = 30_000


def points_in_the_code() -> set[str]:
    """Every failpoint, read from the calls of reach() in the source."""
    found = set()
    for path in (ROOT / "src" / "slackwater").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                argument = node.args[0]
                assert isinstance(argument, ast.Constant), f"{path}: a failpoint's name must be a literal"
                found.add(str(argument.value))
    return found


# In the order of the path, so that the runs get on; those of the end last. "@2": at the second time. What a sink does,
# it does for each epoch and, at the start, for the head; commit.after is reached once for each sink.
CHAIN = [
    "claim.before",
    "claim.after",
    "delta.ticket.after",
    "stage.after",
    "files.ticket.after",
    "stage.after@2",
    "capture.before",
    "artifacts.after",
    "manifest.after",
    "append.after",
    "delta.untick.after",
    "delta.commit.before",
    "delta.commit.after",
    "commit.after",
    "append.after@2",
    "files.untick.after",
    "files.entry.after",
    "files.publish.between",
    "files.publish.after",
    "commit.after@2",
    "sweep.after",
    "hydrate.after",
    "latest.after@3",
    "delete.between",
    "delete.after",
    "commit.after@5",
]
# Where a tool that rolls back dies, and which sink it was told to keep: what is on record already is not done again.
ROLLBACK = {
    "rollback.manifest.after": [],
    "rollback.append.after": ["--keep", "delta"],
    "release.before": [],
}
# Where the driver dies that starts after it.
UNDO = ["delta.undo.after", "files.undo.before", "files.undo.entry", "files.undo.between"]
END = ["release.before", "release.after"]
# Killed in other files, each under its own name: what needs neither the demo's pipeline nor one that was running.
ELSEWHERE = {
    "tests/e2e/test_cli_repair.py": ["repair.manifest.before", "repair.manifest.after", "repair.append.after"],
    "tests/e2e/test_cli_forget.py": ["forget.retire.before", "forget.retire.after", "forget.deleted.after"],
    "tests/e2e/test_cli_laminar.py": ["export.snapshot.after", "export.manifest.after"],
    "tests/unit/test_trim.py": ["trim.after"],
    "tests/crash/test_keyed_kills.py": [
        "keyed.sync.before",
        "keyed.lineage.after",
        "keyed.cut.after",
        "keyed.outgoing.after",
        "keyed.placed.after",
        "keyed.restored.after",
    ],
    "tests/crash/test_receivers.py": [
        "inbox.open.after",
        "inbox.write.before",
        "inbox.write.after",
        "inbox.publish.after",
        "inbox.drop.after",
        "document.write.after",
    ],
    "tests/crash/test_acknowledge.py": ["document.write.after", "acknowledge.after"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crash")


def test_the_chain_has_every_point_of_the_code() -> None:
    elsewhere = [point for points in ELSEWHERE.values() for point in points]
    reached = {point.partition("@")[0] for point in [*CHAIN, *ROLLBACK, *UNDO, *END, *elsewhere]}
    assert reached == points_in_the_code()
    for file, points in ELSEWHERE.items():
        words = (ROOT / file).read_text()
        assert [point for point in points if f'"{point}' not in words] == [], file


@pytest.mark.parametrize("point", CHAIN)
def test_a_kill_at_every_point_loses_and_repeats_nothing(point: str, folder: Path) -> None:
    code, words = run(folder, rows=ROWS, failpoints=f"{point}=kill")
    assert code == -signal.SIGKILL, f"exit code {code}, the point was not reached:\n{words[-3000:]}"
    assert f"failpoint {point.partition('@')[0]}: kill" in words
    state = read_state(folder)
    if state is not None and state.epoch > 2:
        sinks_hold(folder, ROWS, (state.epoch - 1, state.epoch))


def roll_back(folder: Path, *options: str, point: str = "") -> int:
    """Roll back to the oldest checkpoint that is kept, and perhaps die on the way."""
    state = read_state(folder)
    assert state is not None
    command = [sys.executable, "-m", "slackwater.cli", "rollback", str(folder / "store" / "payments"), "--yes"]
    command += ["--to", str(state.branch[0].epoch), *options]
    environment = {**os.environ, VARIABLE: f"{point}=kill" if point else ""}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def test_a_rollback_that_dies_at_any_of_its_steps_is_run_again(folder: Path) -> None:
    for point, options in ROLLBACK.items():
        assert roll_back(folder, *options, point=point) == -signal.SIGKILL, point
    assert roll_back(folder) == 0


@pytest.mark.parametrize("point", [*UNDO, *END])
def test_a_kill_while_it_undoes_or_ends_leaves_no_row_twice(point: str, folder: Path) -> None:
    code, words = run(folder, rows=ROWS, failpoints=f"{point}=kill")
    assert code == -signal.SIGKILL, f"exit code {code}, the point was not reached:\n{words[-3000:]}"
    for name, found in read_sinks(folder).items():
        assert compare(expected_totals(ROWS), found).surplus == 0, name


def test_after_all_kills_both_sinks_equal_the_oracle_and_nothing_is_left(folder: Path) -> None:
    code, words = run(folder, rows=ROWS)
    assert code == 0, words[-3000:]
    state = read_state(folder)
    assert state is not None
    assert state.settled_epoch == state.epoch
    for name, found in read_sinks(folder).items():
        assert compare(expected_totals(ROWS), found).exact, name
    assert not list((folder / "work").glob("*/*")), "working directories were left behind"
    for sink in ("totals-delta", "totals-files"):
        assert not [path for path in (folder / sink).rglob("*/staged/*") if path.is_file()], (
            "staged output was left behind"
        )
