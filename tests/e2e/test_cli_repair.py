"""``slackwater repair``, as a user meets it; and what every command says of a damaged newest record."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from slackwater.cli.repair import command as repair_command
from slackwater.errors import Conflict
from slackwater.failpoints import VARIABLE
from slackwater.ops.pipelines import read_pipeline
from tests.commands import answer, command, environment, lines, refusal, slackwater
from tests.pipelines import Driver, FolderSink, flip, make_pipeline


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A pipeline of five epochs, the savepoint on its second, whose newest record, of the fifth, is damaged."""
    pipeline = make_pipeline(tmp_path, 4)
    assert slackwater("savepoint", "create", pipeline, "kept", "--at", "2").returncode == 0
    Driver(tmp_path).step()
    flip(max((pipeline / "log").iterdir()))
    return str(pipeline)


def newest(url: str) -> str:
    return max((Path(url) / "log").iterdir()).name


@pytest.mark.parametrize(
    "args",
    [
        ["list"],
        ["show"],
        ["verify"],
        ["savepoint", "list"],
        ["savepoint", "create", "URL", "label"],
        ["savepoint", "delete", "URL", "kept"],
        ["restore", "URL", "--to", "DIR"],
        ["rollback", "URL", "--to", "2", "--yes"],
        ["forget", "URL", "--keep-last", "1"],
    ],
    ids=" ".join,
)
def test_every_command_says_so_and_what_it_may_have_been(url: str, tmp_path: Path, args: list[str]) -> None:
    before = newest(url)
    args = args if "URL" in args else [*args, "URL"]
    words = [{"URL": url, "DIR": str(tmp_path / "restored")}.get(arg, arg) for arg in args]
    told = refusal(*words, code=13)
    assert "[log.corrupt]" in told and "may have been checkpoint 5" in told and "ends at epoch 4" in told
    assert f"slackwater repair {url}" in told
    assert newest(url) == before


def test_pipelines_names_the_problem(url: str) -> None:
    (found,) = answer("pipelines", Path(url).parent)["pipelines"]
    assert found["problem"]["code"] == "log.corrupt" and "checkpoint 5" in found["problem"]["message"]


def test_without_yes_the_plan_is_shown_and_nothing_changes(url: str) -> None:
    before = newest(url)
    done = slackwater("repair", url)
    assert done.returncode == 0 and "nothing was changed; add --yes to do it" in done.stderr
    shown = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "record 9" in shown["damaged"] and "checkpoint 5" in shown["it"]
    assert "record 8, which ends at epoch 4" in shown["from"] and "epoch 4" in shown["to"]
    assert "epoch 6" in shown["as"] and "3 checkpoints: 1, 3, 4" in shown["retired"] and "kept" in shown["savepoints"]
    assert "undo" in shown["totals"] and "400" in shown["0"] and "300" in shown["0"]
    assert "--keep-older" in done.stderr
    assert newest(url) == before


def test_with_yes_it_is_on_record_and_the_next_start_follows(url: str, tmp_path: Path) -> None:
    planned = answer("repair", url)
    assert planned["acted"] is False and planned["plan"]["damaged_records"] == [9]
    done = answer("repair", url, "--yes")
    assert done["acted"] is True and done["plan"] == planned["plan"]
    assert [entry["epoch"] for entry in answer("list", url)["checkpoints"]] == [2, 6]
    again = slackwater("repair", url, "--yes")
    assert (again.returncode, again.stdout) == (0, "") and "nothing to repair" in again.stderr
    assert answer("repair", url, "--yes") == {"url": url, "acted": False, "plan": None}
    assert any("head, repaired to 4" in line for line in lines("list", url))
    assert "6 (head, repaired to 4)" in lines("show", url)[1]
    driver = Driver(tmp_path)
    assert driver.sinks["totals"].rows() == [f"rows of {n}" for n in range(4)]
    driver.step()
    assert driver.sinks["totals"].rows() == [f"rows of {n}" for n in range(5)]
    assert slackwater("verify", url, "--read-data").returncode == 0


def test_older_checkpoints_are_kept_when_told(url: str) -> None:
    assert answer("repair", url, "--keep-older", "--yes")["plan"]["retired"] == []
    assert [entry["epoch"] for entry in answer("list", url)["checkpoints"]] == [1, 2, 3, 4, 6]


def test_what_cannot_be_repaired_exits_13_and_names_the_record(url: str) -> None:
    for path in sorted((Path(url) / "log").iterdir())[:-1]:
        flip(path)
    told = refusal("repair", url, "--yes", code=13)
    assert "[head.none_verifies] the log record " in told and f"restore log/{newest(url)}" in told


def test_wrong_input_is_refused_with_its_code(url: str, tmp_path: Path) -> None:
    assert "[sink.invalid] the pipeline has no sink named 'sales'" in refusal("repair", url, "--keep", "sales", code=2)
    assert "[pipeline.not_found]" in refusal("repair", tmp_path / "store" / "nothing", code=10)


def test_a_plan_that_a_sink_refuses_does_not_ask_for_yes(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: FolderSink, to_epoch: int) -> str:
        raise Conflict("somebody else has written", code="sink.undo_refused")

    monkeypatch.setattr(FolderSink, "plan_undo", refuse)
    monkeypatch.setattr("slackwater.ops.repair.open_sink", lambda kind, address: FolderSink(Path(address)))
    repair_command.main([url], standalone_mode=False)
    told = capsys.readouterr().err
    assert "--keep totals leaves its rows" in told and "with --yes it would be refused" in told


@pytest.mark.parametrize("point", ["repair.manifest.before", "repair.manifest.after", "repair.append.after"])
def test_a_command_that_is_killed_is_run_again(url: str, tmp_path: Path, point: str) -> None:
    killed = slackwater("repair", url, "--yes", **{VARIABLE: f"{point}=kill"})
    assert killed.returncode == -signal.SIGKILL
    assert slackwater("repair", url, "--yes").returncode == 0
    driver = Driver(tmp_path)
    assert driver.sinks["totals"].rows() == [f"rows of {n}" for n in range(4)]
    driver.step()
    assert slackwater("verify", url, "--read-data").returncode == 0
    assert len(read_pipeline(url).state.live) == 3


def test_ctrl_c_ends_it_with_130_and_it_is_run_again(url: str) -> None:
    stopped = subprocess.Popen(
        command("repair", url, "--yes"),
        env=environment(**{VARIABLE: "repair.manifest.after=stop"}),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert stopped.stderr is not None and b"repair.manifest.after" in stopped.stderr.readline()
    stopped.send_signal(signal.SIGINT)
    stopped.send_signal(signal.SIGCONT)
    _, words = stopped.communicate(timeout=30)
    assert stopped.returncode == 130 and b"interrupted" in words and b"Traceback" not in words
    assert slackwater("repair", url, "--yes").returncode == 0
