"""``slackwater rollback``, as a user meets it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from slackwater.cli.rollback import command
from slackwater.errors import Conflict
from slackwater.failpoints import VARIABLE
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label
from tests.commands import answer, lines, refusal, slackwater
from tests.pipelines import Driver, FolderSink, flip, make_pipeline


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(make_pipeline(tmp_path, 5))


def epochs(url: str) -> list[tuple[int, bool]]:
    return [(entry.epoch, entry.undone) for entry in read_pipeline(url).state.live]


def test_without_yes_the_plan_is_shown_and_nothing_changes(url: str) -> None:
    done = slackwater("rollback", url, "--to", "2")
    assert done.returncode == 0
    assert "nothing was changed; add --yes to do it" in done.stderr
    shown = done.stdout.splitlines()
    assert shown[0].split() == ["from", "epoch", "5"]
    assert any(line.startswith("undone") and "3 epochs: 3 to 5" in line for line in shown)
    sink = next(line for line in shown if line.startswith("totals"))
    assert "undo" in sink and "not looked at from here" in sink  # a kind of sink that the command cannot open
    source = next(line for line in shown if line.startswith("0 "))
    assert "rate" in source and "400" in source and "100" in source
    assert epochs(url) == [(1, False), (2, False), (3, False), (4, False), (5, False)]


def test_the_plan_says_that_epochs_without_a_checkpoint_are_undone_too(tmp_path: Path) -> None:
    driver = Driver(tmp_path, keep_last=2)
    driver.step()
    create_label(driver.log, "first", "1")
    for _ in range(5):
        driver.step()
    shown = slackwater("rollback", str(driver.pipeline), "--to", "first").stdout
    assert "all that counts after epoch 1; checkpoints among it: 5, 6" in shown


def test_the_plan_names_savepoints_that_cannot_be_rolled_back_to_again_and_epochs_by_their_numbers(url: str) -> None:
    assert slackwater("rollback", url, "--to", "3", "--yes").returncode == 0
    assert slackwater("savepoint", "create", url, "before-upgrade").returncode == 0
    shown = slackwater("rollback", url, "--to", "2").stdout
    assert "all that counts after epoch 2; checkpoints among it: 3, 6" in shown, "4 and 5 were undone before"
    assert "before-upgrade: kept, and never again to be rolled back to" in shown


def test_with_yes_it_is_on_record_and_the_next_start_follows(url: str, tmp_path: Path) -> None:
    before = answer("rollback", url, "--to", "2")
    assert before["acted"] is False
    done = answer("rollback", url, "--to", "2", "--yes")
    assert done["acted"] is True and done["plan"] == before["plan"]
    assert done["plan"]["sinks"][0]["action"] == "undo" and done["plan"]["sources"][0]["then"] == {"offset": "100"}
    assert epochs(url) == [(1, False), (2, False), (3, True), (4, True), (5, True), (6, False)]
    rows = {line.split()[0]: line for line in lines("list", url)}
    assert rows["4"].endswith("undone") and "head, rolled back to 2, sinks not yet on record" in rows["6"]
    assert "6 (head, rolled back to 2)" in lines("show", url)[1] and "4 (undone)" in lines("show", url, "--at", "4")[1]
    again = answer("rollback", url, "--to", "2", "--yes")
    assert again["acted"] is False and again["plan"]["done"] is True
    assert Driver(tmp_path).sinks["totals"].rows() == ["rows of 0", "rows of 1"]
    assert slackwater("verify", url, "--read-data").returncode == 0


def test_a_driver_that_may_run_is_mentioned(tmp_path: Path) -> None:
    url = str(make_pipeline(tmp_path, 2, release=False))
    assert "it will be fenced" in slackwater("rollback", url, "--to", "1").stdout


def test_a_rollback_to_the_head_says_that_a_driver_that_runs_goes_on(tmp_path: Path) -> None:
    url = str(make_pipeline(tmp_path, 2, release=False))
    done = slackwater("rollback", url, "--to", "2", "--yes")
    assert (done.returncode, done.stdout) == (0, ""), "there is nothing to plan"
    assert "nothing to do" in done.stderr and "was not stopped, and goes on" in done.stderr


def test_a_plan_that_a_sink_refuses_does_not_ask_for_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(make_pipeline(tmp_path, 2))

    def refuse(self: FolderSink, to_epoch: int) -> str:
        raise Conflict("somebody else has written", code="sink.undo_refused")

    monkeypatch.setattr(FolderSink, "plan_undo", refuse)
    monkeypatch.setattr("slackwater.ops.rollback.open_sink", lambda kind, address: FolderSink(Path(address)))
    command.main(["--to", "1", url], standalone_mode=False)
    told = capsys.readouterr().err
    assert "--keep totals leaves its rows" in told and "with --yes it would be refused" in told
    assert "add --yes" not in told


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--to", "9"], 10, "checkpoint.not_found"),
        (["--to", "nope"], 10, "checkpoint.not_found"),
        (["--to", "0"], 2, "they begin at 1"),
        ([], 2, "--to"),
        (["--to", "2", "--keep", "sales"], 2, "[sink.invalid] the pipeline has no sink named 'sales'"),
    ],
)
def test_wrong_input_is_refused_with_its_code(url: str, args: list[str], code: int, says: str) -> None:
    assert says in refusal("rollback", url, *args, code=code)
    assert len(epochs(url)) == 5


def test_an_undone_epoch_is_refused_and_the_way_out_is_named(url: str) -> None:
    assert slackwater("rollback", url, "--to", "2", "--yes").returncode == 0
    told = refusal("rollback", url, "--to", "4", "--yes", code=11)
    assert "[rollback.impossible] epoch 4 was undone" in told and f"slackwater restore {url} --at 4" in told


def test_a_damaged_target_exits_13_and_the_newest_that_verifies_is_found(url: str) -> None:
    ids = {entry["epoch"]: entry["checkpoint_id"] for entry in answer("list", url)["checkpoints"]}
    flip(min((Path(url) / "checkpoints" / ids[4]).rglob("*.lcb")))
    assert "[object.damaged] the object " in refusal("rollback", url, "--to", "4", "--yes", code=13)
    told = slackwater("rollback", url, "--to", "newest-verified").stderr
    assert "note: epoch 5 was passed over: " in told and "note: epoch 4 was passed over: " in told
    plan = answer("rollback", url, "--to", "newest-verified", "--yes")["plan"]
    assert plan["to_epoch"] == 3 and [passed["epoch"] for passed in plan["passed_over"]] == [5, 4]


def test_what_a_time_has_passed_over_is_told(url: str) -> None:
    assert slackwater("rollback", url, "--to", "3", "--yes").returncode == 0
    for args in (
        ["rollback", url, "--to", "@2026-11-15T10:03"],
        ["savepoint", "create", url, "sound", "--at", "@2026-11-15T10:03"],
    ):
        told = slackwater(*args).stderr
        assert "@2026-11-15T10:03 (no zone was given: read as UTC) is epoch 3, made at 2026-11-15T10:02" in told
        assert "note: epoch 4 was passed over: undone by a rollback" in told and "epoch 5" not in told


@pytest.mark.parametrize("point", ["claim.after", "rollback.manifest.after", "rollback.append.after"])
def test_a_command_that_is_killed_is_run_again(url: str, tmp_path: Path, point: str) -> None:
    killed = slackwater("rollback", url, "--to", "2", "--yes", **{VARIABLE: f"{point}=kill"})
    assert killed.returncode == -signal.SIGKILL
    assert slackwater("rollback", url, "--to", "2", "--yes").returncode == 0
    driver = Driver(tmp_path)
    assert driver.sinks["totals"].rows() == ["rows of 0", "rows of 1"]
    driver.step()
    assert slackwater("verify", url, "--read-data").returncode == 0
