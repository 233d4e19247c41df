"""How far ``slackwater verify`` is: on a terminal, and where there is none."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slackwater.cli import progress_bar
from tests.commands import NOWHERE, command, environment, slackwater
from tests.pipelines import make_pipeline
from tests.services.tiny_s3 import TinyS3

HIDE_CURSOR, SHOW_CURSOR, ERASE_LINE = b"\x1b[?25l", b"\x1b[?25h", b"\x1b[2K"


@contextmanager
def on_a_terminal(*args: object, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command whose stderr is a terminal; give that, too."""
    ours, theirs = pty.openpty()
    variables = environment(**variables, TERM="xterm", COLUMNS="100")
    with subprocess.Popen(command(*args), env=variables, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        yield process, ours
    os.close(ours)


def read(terminal: int, until: bytes = b"not said by any command") -> bytes:
    """Read until these words come, or the process has ended."""
    told = b""
    while until not in told:
        try:
            told += os.read(terminal, 1000)
        except OSError:  # nobody holds the other end any more
            break
    return told


def test_a_terminal_shows_a_bar_and_is_left_as_it_was(tmp_path: Path) -> None:
    with on_a_terminal("verify", make_pipeline(tmp_path, 2), "--read-data") as (process, terminal):
        told = read(terminal)
        assert process.wait(timeout=60) == 0
    assert b"reading" in told and told.endswith(ERASE_LINE)
    assert told.rindex(SHOW_CURSOR) > told.rindex(HIDE_CURSOR)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bar_gives_the_cursor_back(tiny: TinyS3, tmp_path: Path, number: signal.Signals) -> None:
    url = make_pipeline(tmp_path, 2)
    tiny.objects = {str(path.relative_to(url.parent)): path.read_bytes() for path in url.rglob("*") if path.is_file()}
    tiny.delays_s = {"get": 20}  # so that the client waits in native code
    variables = {**NOWHERE, "AWS_ENDPOINT_URL": tiny.options["endpoint"]}
    with on_a_terminal("verify", "s3://bucket/orders", "--read-data", **variables) as (process, terminal):
        told = read(terminal, b"reading")
        while "get" not in tiny.asked:
            time.sleep(0.01)
        process.send_signal(number)
        told += read(terminal)
        assert process.wait(timeout=15) == 130
    assert b"interrupted" in told and told.rindex(SHOW_CURSOR) > told.rindex(HIDE_CURSOR)


def test_a_pipe_gets_no_control_characters(tmp_path: Path) -> None:
    assert slackwater("verify", make_pipeline(tmp_path, 2), "--read-data").stderr == ""


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar.progress_bar("reading") as tell:
        tell(1024, 4096)
        monkeypatch.setattr(progress_bar, "PLAIN_LINE_S", 0.0)
        tell(2048, 4096)
    assert capsys.readouterr().err == "reading: 2.0 KiB of 4.0 KiB\n"
