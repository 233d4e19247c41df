"""The demo as its visitor runs it, with a fault that it must see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_row_taken_out_of_a_sink_makes_the_demo_fail(tmp_path: Path) -> None:
    command = [sys.executable, "demo/run.py", "--rows", "9000", "--kills", "1", "--take-a-row"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "140", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {
        line.split()[1]: line
        for line in done.stdout.splitlines()
        if (line.startswith("│ ") and "once" in line) or "NOT" in line
    }
    assert "exactly once" in rows["delta"], "the sink that was left alone is sound"
    assert "NOT EQUAL" in rows["files"]
    assert " 1 " in rows["files"].split("│")[3], "the lost row is counted"
    assert "SIGKILL at stage.after" in done.stdout
    # Nothing is left behind but the folder that it named.
    assert [path.name for path in tmp_path.iterdir() if "hsperf" not in path.name] == ["demo"]
    assert not (tmp_path / "demo" / "work").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [sys.executable, "demo/run.py", "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert (tmp_path / "mine").read_text() == "precious"
