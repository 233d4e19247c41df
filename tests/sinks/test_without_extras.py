"""Tools where the libraries of the sinks, which are extras, are not installed."""

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
