"""``slackwater forget``, as a user meets it; and killed at each of its points."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from slackwater.failpoints import VARIABLE
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label
from slackwater.ops.verify import verify
from tests.commands import answer, command, finish, refusal, slackwater
from tests.pipelines import make_pipeline

POINTS = ["forget.retire.before", "forget.retire.after", "delete.between", "delete.after", "forget.deleted.after"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Epochs 1 to 6, a minute each."""
    return str(make_pipeline(tmp_path, 6))


def epochs(url: str) -> list[int]:
    return [entry.epoch for entry in read_pipeline(url).state.live]


def test_a_dry_run_tells_each_checkpoints_fate_and_changes_nothing(url):
    create_label(read_pipeline(url).log, "old", "2")
    done = slackwater("forget", url, "--keep-last", 1, "--keep-within", "1min", "--dry-run")
    assert done.returncode == 0, done.stderr
    words = [line.split(maxsplit=4) for line in done.stdout.splitlines()]
    assert [(row[0], row[3], row[4]) for row in words] == [
        ("EPOCH", "WHAT", "WHY"),
        ("1", "forget", "no rule"),
        ("2", "keep", "savepoint old"),
        ("3", "forget", "no rule"),
        ("4", "forget", "no rule"),
        ("5", "keep", "within the time"),
        ("6", "keep", "head, last 1, within the time"),
    ]
    assert done.stderr.startswith("3 checkpoints would be forgotten, ") and "nothing was changed" in done.stderr
    assert epochs(url) == [1, 2, 3, 4, 5, 6]


def test_what_no_rule_keeps_is_forgotten(url):
    planned = answer("forget", url, "--keep-hourly", 1, "--keep-last", 2, "--dry-run")
    done = answer("forget", url, "--keep-hourly", 1, "--keep-last", 2)
    assert (planned["acted"], done["acted"]) == (False, True)
    assert planned["forget"] == done["forget"]
    assert done["forget"]["forgotten_epochs"] == [1, 2, 3, 4] and done["forget"]["freed_bytes"] > 0
    assert done["forget"]["checkpoints"][0]["reasons"] == ["no rule"]
    assert epochs(url) == [5, 6]


def test_one_is_forgotten_by_its_name_and_the_url_may_come_from_the_environment(url):
    assert answer("forget", url, "3")["forget"]["forgotten_epochs"] == [3]
    assert answer("forget", "2", SLACKWATER_PIPELINE=url)["forget"]["forgotten_epochs"] == [2]
    assert answer("forget", "--keep-daily", 1, SLACKWATER_PIPELINE=url)["forget"]["forgotten_epochs"] == [1, 4, 5]
    assert epochs(url) == [6]
    assert "[checkpoint.not_found]" in refusal("forget", url, "3", code=10)


def test_what_must_stay_is_refused_with_what_to_do(url):
    create_label(read_pipeline(url).log, "old one", "2")
    create_label(read_pipeline(url).log, "newest", "6")
    assert f"hint: slackwater list {url} shows the others" in refusal("forget", url, "latest", code=11)
    assert "[retire.not_allowed] epoch 6 is the newest" in refusal("forget", url, "latest", code=11)
    assert f"hint: slackwater savepoint delete {url} 'old one' first" in refusal("forget", url, "old one", code=11)
    assert "[label.not_found]" in refusal("forget", url, "--keep-label", "new", code=10)
    assert "[usage.wrong] no rule says what to keep" in refusal("forget", url, code=2)
    assert epochs(url) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "args",
    [["--keep-last", "0"], ["--keep-daily", "-1"], ["--keep-within", "0h"], ["--keep-within", "7"],
     ["--keep-within", "1month"], ["--keep-within", ""], ["3", "--keep-last", "1"], ["3", "4"],
     ["--keep-last", "\u0663"], ["--keep-hourly", "1_0"], ["--keep-daily", "+1"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_exits_2_and_changes_nothing(url, args):
    assert "[usage.wrong]" in refusal("forget", url, *args, code=2)
    assert epochs(url) == [1, 2, 3, 4, 5, 6]


def test_a_url_alone_is_never_taken_for_a_reference(url):
    told = refusal("forget", "s3://KEY:SECRET@bucket/x", code=2, SLACKWATER_PIPELINE=url)
    assert "[usage.wrong] no rule says what to keep" in told and "SECRET" not in told


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_same_command_goes_on(url, point):
    arguments = command("forget", url, "--keep-last", 2)
    assert finish(arguments, **{VARIABLE: f"{point}=kill"}).returncode == -signal.SIGKILL
    pipeline = read_pipeline(url)
    assert verify(pipeline.url, read_data=True).sound
    assert epochs(url) == ([1, 2, 3, 4, 5, 6] if point == "forget.retire.before" else [5, 6])
    assert finish(arguments).returncode == 0
    pipeline = read_pipeline(url)
    assert epochs(url) == [5, 6] and pipeline.state.retired == []
    assert len(list(Path(url).glob("checkpoints/*/manifest.json"))) == 2
    assert verify(pipeline.url, read_data=True).sound
