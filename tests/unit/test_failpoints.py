"""Failpoints: off by default, and exact when armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slackwater import failpoints
from slackwater.errors import InvalidInput

SOURCE = Path(failpoints.__file__).parent
THREE_STEPS = """
from slackwater.failpoints import reach
for name in ("one", "two", "one", "two"):
    reach(name)
    print(name, flush=True)
"""


def start(armed: str | None) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != failpoints.VARIABLE}
    environment["PYTHONPATH"] = str(SOURCE.parent)
    if armed is not None:
        environment[failpoints.VARIABLE] = armed
    command = [sys.executable, "-c", THREE_STEPS]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(armed: str | None) -> tuple[int, list[str], str]:
    process = start(armed)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.split(), err


@pytest.mark.parametrize("armed", [None, "", "three=kill", "one@3=kill"])
def test_a_point_that_is_not_armed_does_nothing(armed):
    assert run(armed) == (0, ["one", "two", "one", "two"], "")


@pytest.mark.parametrize(
    ("armed", "reached"), [("one=kill", []), ("two=kill", ["one"]), ("one@2=kill", ["one", "two"])]
)
def test_an_armed_point_kills_at_the_hit_that_was_named(armed, reached):
    code, out, err = run(armed)
    assert (code, out) == (-signal.SIGKILL, reached)
    assert err == f"failpoint {armed.split('@')[0].split('=')[0]}: kill\n"


def test_an_armed_point_raises():
    code, out, err = run("two=raise,three=kill")
    assert (code, out) == (1, ["one"])
    assert "[failpoint.raised] failpoint two was armed" in err


def test_a_stopped_process_goes_on_when_it_is_told_to():
    process = start("two=stop")
    try:
        status = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 30
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "the process did not stop"
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (0, ["one", "two", "one", "two"])
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("text", ["one", "one=", "=kill", "one=explode", "one@x=kill", "one@-1=kill", "@2=kill"])
def test_a_malformed_setting_is_refused_and_not_ignored(text):
    with pytest.raises(InvalidInput) as caught:
        failpoints.parse(text)
    assert caught.value.code == "option.invalid" and "SLACKWATER_FAILPOINTS" in str(caught.value)


def test_several_points_can_be_armed():
    assert failpoints.parse("a.b=kill,c@3=stop,") == {"a.b": (1, "kill"), "c": (3, "stop")}
