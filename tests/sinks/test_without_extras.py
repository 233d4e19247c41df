"""Tools and calls where libraries that are extras are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines import FolderSink, make_pipeline

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("pyarrow", "deltalake", "pyspark")))  # to import them fails
from slackwater.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_a_rollback_is_planned_and_done_without_looking_at_the_sinks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderSink, "kind", kind)
    pipeline = make_pipeline(tmp_path, 3)
    for more in ([], ["--yes"]):
        command = [sys.executable, "-c", WITHOUT, "rollback", str(pipeline), "--to", "2", *more]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "was not looked at from here" in ran.stdout


@pytest.mark.parametrize(
    ("missing", "call", "install"),
    [
        ("pyspark", "sw.session()", "slackwater[spark]"),
        ("pyspark", "sw.writeStream", "slackwater[spark]"),
        ("pyarrow", "sw.DeltaSink", "slackwater[spark,delta]"),
        ("deltalake", "sw.DeltaSink", "slackwater[spark,delta]"),
        ("rocksdict", "sw.table", "slackwater[spark,keyed]"),
        ("rocksdict", "sw.inbox", "slackwater[spark,keyed]"),
    ],
)
def test_a_library_that_is_missing_is_told_with_the_command_that_installs_it(
    missing: str, call: str, install: str
) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nimport slackwater as sw\n{call}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"[extra.missing] {call.removesuffix('()')} needs the package {missing}, which is not installed"
    assert ran.stderr.rstrip().endswith(f"{told} (hint: pip install '{install}')")
