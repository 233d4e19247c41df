"""The demo as its visitor runs it, small, with a fault that it must see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from demo import damaged, joined, judge, unnoticed
from demo.joined import Row
from demo.lives import Life
from demo.merchants import risk
from demo.oracle import Comparison

ROOT = Path(__file__).parents[2]
# A sink's row of the table that compares with the oracle: expected, lost, repeated, wrong, joined amiss, verdict.
_SINK = re.compile(r"│ (delta|files) +│ (\d+) +│ (\d+) +│ (\d+) +│ (\d+) +│ (\d+) +│ (.*?) +│")
_VERSIONS = re.compile(
    r"risk changed (\d+) times, and rows met (\d+) versions of it; "
    r"joined with one that their checkpoint does not hold: (\d+)"
)
# A row of the table that sets both beside each other: what, plain Spark, Slackwater.
_BESIDE = re.compile(r"│ ([a-z ]+?) +│ (.*?) +│ (.*?) +│$", re.M)
EXACT = Comparison(lost=(), repeated=(), wrong=(), unexpected=())


def play(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo.run", "--rows", "9000", "--folder", str(folder), *args],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "140", "TMPDIR": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def versions_of(done: subprocess.CompletedProcess[str]) -> tuple[int, ...]:
    """Tell how often the table has changed, how many versions rows met, and how many met another than they should."""
    (found,) = _VERSIONS.findall(" ".join(done.stdout.split()))
    return tuple(map(int, found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("visit") / "demo"


@pytest.fixture(scope="module")
def act_one(folder: Path) -> subprocess.CompletedProcess[str]:
    return play(folder, "--act", "1", "--kills", "1")


@pytest.fixture(scope="module")
def act_two(act_one: subprocess.CompletedProcess[str], folder: Path) -> subprocess.CompletedProcess[str]:
    assert act_one.returncode == 0, act_one.stdout + act_one.stderr
    return play(folder, "--act", "2")


def test_a_killed_driver_goes_on_and_every_row_is_there_once(act_one, folder: Path) -> None:
    assert act_one.returncode == 0, act_one.stdout + act_one.stderr
    assert "SIGKILL at stage.after" in act_one.stdout
    assert {row[0]: row[2:] for row in _SINK.findall(act_one.stdout)} == {
        sink: ("0", "0", "0", "0", "exactly once") for sink in ("delta", "files")
    }
    changes, versions, foreign = versions_of(act_one)
    # Of six epochs the first closes no window.
    assert changes > versions >= 3 and foreign == 0, (
        "the table has changed all the time, and every checkpoint has its own"
    )
    # Nothing is left behind but the folder that it named.
    assert [path.name for path in folder.parent.iterdir() if "hsperf" not in path.name] == ["demo"]


def test_over_a_flipped_bit_plain_spark_loses_rows_and_slackwater_stops_and_goes_back(act_two, folder: Path) -> None:
    assert act_two.returncode == 0, act_two.stdout + act_two.stderr
    beside = {what: (spark, ours) for what, spark, ours in _BESIDE.findall(act_two.stdout)}
    assert beside["error"] == ("none", "head.damaged, exit code 13")
    lost, expected = map(int, beside["rows lost"][0].split(" of "))
    assert 0 < lost < expected
    assert re.fullmatch(r"0 of \d+, in 2 sinks", beside["rows lost"][1])
    assert beside["rows repeated or wrong"] == ("0", "0")
    assert beside["rows joined amiss"] == ("", "0")
    assert beside["verdict"] == ("rows gone, no error", "exactly once")
    # The loss is the flip's: without it there is none, and Spark's own count of its state differs by just that.
    without = re.search(r"without the flip: 0 are gone; Spark counts (\d+)", act_two.stdout)
    with_flip = re.search(
        r"no error: (\d+) are written, (\d+) are gone; Spark counts (\d+) in its state", act_two.stdout
    )
    assert without and with_flip
    assert int(with_flip[3]) - int(without[1]) == int(with_flip[2]) == lost == expected - int(with_flip[1])
    # It goes back to the epoch that the refusal named, and the plan is the sinks' own.
    named = re.search(r"the newest that verifies is epoch (\d+)", " ".join(act_two.stdout.split()))
    assert named and beside["told to"][1].startswith(f"rolled back to epoch {named[1]}, sinks too")
    assert len(re.findall(r"(?:delta|files): undo \d+ files", act_two.stdout)) == 2
    assert sorted(path.name for path in folder.iterdir()) == [
        "merchants",
        "store",
        "totals-delta",
        "totals-files",
        "versions",
    ]


def test_one_row_taken_out_of_a_sink_and_one_joined_with_an_older_version_make_the_demo_fail(
    act_two, folder: Path
) -> None:
    done = play(folder, "--act", "1", "--kills", "0", "--take-a-row", "--age-a-risk")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {row[0]: row[2:] for row in _SINK.findall(done.stdout)}
    assert rows["delta"] == ("0", "0", "0", "1", "NOT EQUAL"), "no row is lost here, but the aged one is seen"
    assert rows["files"] == ("1", "0", "0", "1", "NOT EQUAL"), "the lost row is counted, too"
    assert versions_of(done)[2] == 2, "the aged row, in both sinks"


ROW = Row(datetime(2026, 1, 1), "bakery", 7, risk("bakery", 7), "one")
LATER = Row(datetime(2026, 1, 2), "bakery", 9, risk("bakery", 9), "two")


@pytest.mark.parametrize(
    ("delta", "files", "foreign", "amiss"),
    [
        ([ROW, LATER], [ROW, LATER], 0, (0, 0)),
        ([ROW], [ROW, LATER], 0, (0, 0)),  # a lost row is for the oracle to tell
        ([ROW._replace(change=6, risk=risk("bakery", 6))], [ROW], 1, (1, 1)),
        (
            [ROW._replace(change=6, risk=risk("bakery", 6))] * 2,
            [ROW._replace(change=6, risk=risk("bakery", 6))],
            3,
            (2, 1),
        ),
        ([ROW._replace(change=8, risk=risk("bakery", 8)), LATER], [LATER], 1, (1, 0)),
        ([ROW._replace(change=None, risk=None)], [], 1, (1, 0)),
        ([ROW._replace(change=None, risk=None, checkpoint="unknown")], [], 1, (1, 0)),
        ([ROW._replace(risk=risk("bakery", 6))], [ROW], 0, (1, 0)),
        ([ROW._replace(risk=risk("grocer", 7))], [ROW], 0, (1, 0)),
        ([ROW._replace(checkpoint="two")], [ROW], 1, (1, 0)),
        ([ROW._replace(checkpoint="unknown")], [ROW], 1, (1, 0)),
        ([LATER._replace(window_start=ROW.window_start)], [ROW], 0, (1, 1)),
    ],
)
def test_a_row_is_as_its_checkpoint_and_the_other_sink_have_it_or_is_counted(delta, files, foreign, amiss) -> None:
    found = joined.compare({"delta": delta, "files": files}, {"one": 7, "two": 9}, changes=9)
    assert (found.foreign, tuple(found.amiss.values())) == (foreign, amiss)
    assert found.sound is (amiss == (0, 0))
    assert judge.Verdict(sinks={"delta": EXACT}, joined=found).exact is found.sound


def test_no_rows_at_all_are_not_sound() -> None:
    assert not joined.compare({"delta": [], "files": []}, {"one": 7}, changes=9).sound


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = play(tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "mine").read_text() == "precious"


SILENT = unnoticed.Outcome(
    spark=unnoticed.KNOWN_SILENT,
    payments=9,
    file="000008.sst",
    state_rows_before=4,
    state_rows_after=8,
    state_rows_without_flip=6,
    error=None,
    expected=5,
    written=3,
    lost=2,
    surplus=0,
    lost_without_flip=0,
    surplus_without_flip=0,
)


@pytest.mark.parametrize(
    ("changes", "passes", "says"),
    [
        ({}, True, ""),
        ({"error": "corrupt block"}, False, "noticed the flipped bit"),
        ({"lost": 0}, False, "lost nothing"),
        ({"error": "corrupt block", "spark": "5.0.0"}, True, "Spark 5.0.0 has noticed the flipped bit"),
        ({"lost_without_flip": 1}, False, "shows nothing"),
        ({"surplus_without_flip": 1}, False, "shows nothing"),
        ({"surplus": 1}, False, "shows nothing"),
    ],
)
def test_what_plain_spark_did_is_told_as_it_was(changes, passes: bool, says: str, capsys) -> None:
    assert unnoticed.as_said(Console(), msgspec.structs.replace(SILENT, **changes)) is passes
    assert says in capsys.readouterr().out


def slackwater(
    key: str = "the object", code: int = 13, then: int = 0, to: int = 4, *, lost=(), amiss: int = 0
) -> damaged.Outcome:
    error = {"code": "head.damaged", "details": {"key": key, "newest_verified": 4, "lost": [5]}}
    return damaged.Outcome(
        victim=damaged.Victim(key="the object", file="5.changelog", at=7),
        refused=Life(exit_code=code, answer={"error": error} if code else {}),
        resumed=Life(exit_code=then, rolled_back_to=to),
        verdict=judge.Verdict(
            sinks={"delta": msgspec.structs.replace(EXACT, lost=lost)},
            joined=joined.Joined(changes=9, versions=2, foreign=amiss, amiss={"delta": amiss}),
        ),
    )


@pytest.mark.parametrize(
    "outcome",
    [
        slackwater(code=0),
        slackwater(code=1),
        slackwater(key="another"),
        slackwater(then=13),
        slackwater(to=3),
        slackwater(lost=((0, "bakery"),)),
        slackwater(amiss=1),
        msgspec.structs.replace(slackwater(), verdict=None),
    ],
)
def test_anything_but_a_refusal_a_rollback_and_every_row_once_fails_the_demo(outcome: damaged.Outcome) -> None:
    assert slackwater().proper
    assert not outcome.proper
