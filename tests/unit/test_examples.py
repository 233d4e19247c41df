"""The examples in the docstrings, and those of sessions in the documentation, are true."""

from __future__ import annotations

import doctest
import re
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
WITH_EXAMPLES = [path for path in sorted((SOURCE / "slackwater").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_examples_in_the_docstrings_are_true(path, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # so that what they make goes
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(import_module(name))
    assert not results.failed
    # None may be where doctest does not look, or be left out.
    assert results.attempted == path.read_text().count(">>> ") and "+SKIP" not in path.read_text()


def test_the_sessions_in_the_documentation_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for session in re.findall(r"```pycon\n(.*?)```", page.read_text(), re.DOTALL):
            runner.run(doctest.DocTestParser().get_doctest(session, {}, str(page), None, 0))
    assert runner.summarize().attempted >= 8 and runner.summarize().failed == 0
