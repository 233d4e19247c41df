"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = [path for path in sorted((SOURCE / "slackwater").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_examples_in_the_docstrings_are_true(path, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # so that what they make goes
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(import_module(name))
    assert not results.failed
    # None may be where doctest does not look, or be left out.
    assert results.attempted == path.read_text().count(">>> ") and "+SKIP" not in path.read_text()
