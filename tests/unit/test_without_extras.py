"""Tools and calls where libraries that are extras are not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from slackwater.extras import needed_for
from tests.commands import environment
from tests.pipelines import FolderSink, make_pipeline

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("pyarrow", "deltalake", "pyspark")))  # to import them fails
from slackwater.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_python(program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_a_rollback_is_planned_and_done_without_looking_at_the_sinks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderSink, "kind", kind)
    pipeline = make_pipeline(tmp_path, 3)
    for more in ([], ["--yes"]):
        ran = run_python(WITHOUT, "rollback", str(pipeline), "--to", "2", *more, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert "was not looked at from here" in ran.stdout


SERVE = "from slackwater.streaming.metrics import serve; serve(0, 'orders')"


@pytest.mark.parametrize(
    ("missing", "call", "what", "install"),
    [
        ("pyspark", "sw.session()", "sw.session", "spark"),
        ("pyspark", "sw.writeStream", "sw.writeStream", "spark"),
        ("pyarrow", "sw.DeltaSink", "sw.DeltaSink", "spark,delta"),
        ("deltalake", "sw.DeltaSink", "sw.DeltaSink", "spark,delta"),
        ("rocksdict", "sw.table", "sw.table", "spark,keyed"),
        ("rocksdict", "sw.inbox", "sw.inbox", "spark,keyed"),
        ("rocksdict", "sw.KeyedState('restored', read_only=True)", "sw.KeyedState", "keyed"),
        ("rocksdict", "sw.open_keyed(sw.CheckpointConfig('store/counts'))", "sw.open_keyed", "keyed"),
        ("prometheus_client", SERVE, "the option metrics", "metrics"),
    ],
)
def test_a_library_that_is_missing_is_told_with_the_command_that_installs_it(
    tmp_path: Path, missing: str, call: str, what: str, install: str
) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nimport slackwater as sw\n{call}"
    ran = run_python(program, cwd=tmp_path)
    told = f"[extra.missing] {what} needs the package {missing}, which is not installed"
    assert ran.stderr.rstrip().endswith(f"{told} (hint: pip install 'slackwater[{install}]')")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("rocksdict", ["http", "inbox"]),
        ("rocksdict", ["show", "inbox"]),
        ("starlette", ["http", "inbox"]),
        ("uvicorn", ["http", "inbox"]),
        ("websockets", ["ws", "inbox", "wss://example.com/feed"]),
    ],
)
def test_a_receiver_that_lacks_a_library_says_so_and_receives_nothing(
    tmp_path: Path, missing: str, words: list[str]
) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nfrom slackwater.cli import main\nmain(sys.argv[1:])"
    ran = run_python(program, "receive", *words, cwd=tmp_path)
    told = f"error: [extra.missing] slackwater receive needs the package {missing}, which is not installed"
    assert ran.stderr == f"{told}\nhint: pip install 'slackwater[receive]'\n"
    assert list(tmp_path.iterdir()) == []


def test_a_module_of_our_own_that_is_missing_is_blamed_on_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"slackwater\.nothing"), needed_for("slackwater receive", "receive"):
        import_module("slackwater.nothing")
