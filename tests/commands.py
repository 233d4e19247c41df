"""Processes as users run them: the command line, and a program of the documentation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from slackwater.failpoints import VARIABLE

ROOT = Path(__file__).parents[1]
# A store in which nobody answers, unless AWS_ENDPOINT_URL says who.
NOWHERE = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_REGION": "us-east-1"}


def command(*args: object, python: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *python, "-m", "slackwater.cli", *map(str, args)]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLACKWATER_", "AWS_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **variables}


def finish(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(arguments, check=False, env=environment(**variables), capture_output=True, timeout=60)


def slackwater(*args: object, **variables: str) -> subprocess.CompletedProcess[str]:
    done = finish(command(*args), **variables)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def answer(*args: object, code: int = 0, **variables: str) -> Any:
    """Run with --json, and return the one document on stdout."""
    done = slackwater(*args, "--json", **variables)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def lines(*args: object, code: int = 0, **variables: str) -> list[str]:
    """Run for a person, and return the lines of stdout; a success says nothing on stderr."""
    done = slackwater(*args, **variables)
    assert done.returncode == code, done.stderr
    assert code or not done.stderr
    return done.stdout.splitlines()


def refusal(*args: object, code: int, **variables: str) -> str:
    """Run what must fail, and return stderr; stdout stays empty."""
    done = slackwater(*args, **variables)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: [") and "Traceback" not in done.stderr
    return done.stderr


def program_of(page: str) -> str:
    """Take the one program out of a page of the documentation; it is to be a dozen lines."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 14
    return str(code)


def run_program(code: str, folder: Path, failpoints: str = "") -> int:
    """Run it in a folder to its end, or to the failpoint that kills it."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(**{VARIABLE: failpoints}),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode
