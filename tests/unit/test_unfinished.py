"""Files that a killed writer has left on a disk: the next start or trim removes them, and disturbs nobody at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.protocol.log import Log
from slackwater.protocol.retention import References, sweep
from slackwater.store import disk, open_store
from tests.pipelines import Driver

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
# A program that is killed while it writes the n-th file of its second checkpoint.
KILLED = """
import os, signal, stat, sys
import slackwater as sw
from slackwater.store import files
class Dying:
    left = int(sys.argv[2])
    def __getattr__(self, name): return getattr(os, name)
    def fsync(self, descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            Dying.left -= 1
            if Dying.left < 0: os.kill(os.getpid(), signal.SIGKILL)
        os.fsync(descriptor)
pipeline = sw.open_pipeline(sys.argv[1], "p", settings=sw.Settings(object_min_bytes=1000))
state = {"large": {0: b"1" * 100_000}, "small": {0: b"1"}}
pipeline.checkpoint(offsets={}, state=state)
files.os = Dying()
pipeline.checkpoint(offsets={}, state={name: {0: held[0] + b"2"} for name, held in state.items()})
"""


def unfinished(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".*.tmp"))


def kill(folder: Path, file: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(file)], check=False, env=ENVIRONMENT)
    assert killed.returncode == -9
    assert len(unfinished(folder)) == 1


@pytest.mark.parametrize(("file", "epoch"), [(0, 1), (1, 1), (3, 2)], ids=["object", "manifest", "latest"])
def test_a_start_removes_what_a_killed_writer_has_left(tmp_path: Path, file: int, epoch: int) -> None:
    kill(tmp_path, file)
    with sw.open_pipeline(tmp_path, "p") as pipeline:
        assert unfinished(tmp_path) == []
        assert pipeline.epoch == epoch


def test_a_trim_removes_what_a_killed_writer_has_left_of_a_record(tmp_path: Path) -> None:
    kill(tmp_path, 2)
    strange = tmp_path / "p" / "log" / ".notes.tmp"
    strange.write_bytes(b"whose is it?")
    log = Log(open_store(str(tmp_path / "p")), SystemClock(), sw.Settings())
    log.read()
    log.trim()
    assert unfinished(tmp_path) == [strange]
    with sw.open_pipeline(tmp_path, "p") as pipeline:
        assert pipeline.epoch == 1


def test_a_sweep_removes_what_a_killed_writer_has_left_and_counts_it(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.step()
    left = driver.pipeline / "checkpoints" / "._latest.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    started = driver.driver
    references = References(driver.place)
    assert sweep(driver.place, started.permit, started.claimed.survey, driver.sinks, references) == 1
    assert not left.exists()


@pytest.mark.parametrize(
    "name",
    [
        ".mine.tmp",
        "._latest.0123456789ABCDEF.tmp",
        "._latest.0123456789abcdeg.tmp",
        "._latest.0123456789abcde.tmp",
        "_latest.0123456789abcdef.tmp",
        "._latest.0123456789abcdef.tmp~",
        f".{'x' * 33}.0123456789abcdef.tmp",
        "_latest#1",
        "operators/.partition-0.snap.tmp",
    ],
)
def test_a_hidden_file_that_is_not_ours_stays(tmp_path: Path, name: str) -> None:
    Driver(tmp_path).step()
    path = tmp_path / "store" / "orders" / "checkpoints" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"whose is it?")
    Driver(tmp_path)
    assert path.exists()


@pytest.mark.parametrize(("verb", "call"), [("put", "rename"), ("create", "link"), ("create", "unlink")])
def test_a_writer_whose_file_is_removed_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, call: str
) -> None:
    store = open_store(str(tmp_path))
    removed: list[int] = []

    class Slow:
        """The file is removed right before one call, once."""

        def __getattr__(self, name: str) -> object:
            if name == call and not removed:
                removed.append(0)  # what is removed is removed by the same call
                removed.append(store.remove_unfinished("log/"))
            return getattr(os, name)

    def listed(prefix: str) -> list[str]:
        return [entry.key for entry in store.list(prefix)]

    monkeypatch.setattr(disk, "os", Slow())
    answer = getattr(store, verb)("log/00000000000000000001.json", b"whole")
    monkeypatch.undo()
    assert removed == [0, 1] and answer in (None, True), "it was this writer that has created it"
    assert store.get("log/00000000000000000001.json") == b"whole"
    assert listed("") == ["log/00000000000000000001.json"] and unfinished(tmp_path) == []
