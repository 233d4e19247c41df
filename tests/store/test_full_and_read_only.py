"""A disk that is really full, and a folder that is really read-only: mounted for one program, in its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--mount", "--map-root-user"]
PROGRAM = """
import os, sys
from slackwater.errors import SlackwaterError
from slackwater.store import open_store
from slackwater.store.probe import probe
store = open_store(sys.argv[1])
def attempt(name, act):
    try:
        print(name, act())
    except SlackwaterError as error:
        print(name, error.code, error.exit_code, bool(error.hint))
def files():
    return sorted(name for _, _, names in os.walk(sys.argv[1]) for name in names)
"""
FULL = """
store.put("log/1", b"old")
attempt("put", lambda: store.put("log/1", bytes(2 << 20)))
attempt("create", lambda: store.create("log/2", bytes(2 << 20)))
attempt("many", lambda: store.put("log/3", [bytes(1 << 16)] * 32))
print(files(), store.get("log/1"))
attempt("small", lambda: store.create("log/2", b"fits"))
"""
READ_ONLY = """
attempt("put", lambda: store.put("log/1", b"new"))
attempt("create", lambda: store.create("log/2", b""))
attempt("folder", lambda: store.put("new/1", b""))
attempt("delete", lambda: store.delete(["log/1"]))
attempt("move", lambda: store.move("log/1", "log/2"))
attempt("get", lambda: store.get("log/1"))
report = probe(store)
print(report.permissions.missing, report.left, report.refusal().exit_code)
print(files())
"""


def can_mount() -> bool:
    trial = [*NAMESPACE, "sh", "-c", "mount -t tmpfs none /mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(trial, capture_output=True, check=False).returncode == 0
    )


pytestmark = pytest.mark.skipif(not can_mount(), reason="this user may not mount")


def run(mount: str, program: str, folder: Path) -> list[str]:
    """Run a program that sees ``folder`` after ``mount``, and return the lines that it prints."""
    script = f'{mount} && exec "$1" -c "$2" "$0"'
    ran = subprocess.run(
        [*NAMESPACE, "sh", "-ec", script, str(folder), sys.executable, PROGRAM + program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode().splitlines()


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    assert run('mount -t tmpfs -o size=1m none "$0"', FULL, tmp_path) == [
        "put store.full 12 True",
        "create store.full 12 True",
        "many store.full 12 True",
        "['1'] b'old'",
        "small True",
    ]


def test_a_read_only_folder_is_named_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/1").write_bytes(b"old")
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    assert run(mount, READ_ONLY, tmp_path) == [
        "put store.denied 12 True",
        "create store.denied 12 True",
        "folder store.denied 12 True",
        "delete store.denied 12 True",
        "move store.denied 12 True",
        "get b'old'",
        "['write files'] [] 12",
        "['1']",
    ]
