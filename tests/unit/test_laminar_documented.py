"""docs/laminardb.md: every name of LaminarDB has its row, and every row leads somewhere."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.golden.samples import FOLDER

ROOT = Path(__file__).parents[2]
# Taken once from LaminarDB's documents: structs, enums with their variants, constants, functions, options and tests.
NAMES: dict[str, list[str]] = json.loads((FOLDER / "laminar" / "names.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "laminardb.md").read_text(encoding="utf-8")
DEFECT = re.compile(r"\b([A-F][0-9]{1,2})\b")


def rows(section: str) -> dict[str, tuple[str, str]]:
    (body,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|(.*)\|$", body, re.MULTILINE)
    assert len(found) == len({name for name, _, _ in found}), "a name has two rows"
    return {name: (ref, remark.strip()) for name, ref, remark in found}


ROWS = [(section, name, *row) for section in NAMES for name, row in rows(section).items()]


@cache
def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@cache
def named_defects() -> set[str]:
    tests = [name for path in (ROOT / "tests").rglob("test_*.py") for name in defined_in(path)]
    return {part for name in tests if name.startswith("test_") for part in name.split("_") if DEFECT.fullmatch(part)}


def resolve(ref: str) -> None:
    """Follow a reference; raise when it leads nowhere."""
    if "::" in ref:
        path, _, name = ref.partition("::")
        assert name in defined_in(ROOT / path), ref
    elif DEFECT.fullmatch(ref):
        assert ref in named_defects(), f"no test names {ref}"
    else:
        module, _, names = ref.partition(":")
        found: Any = import_module(module)
        for name in names.split("."):
            # A field of a struct or of a protocol may be known by its annotation alone.
            found = getattr(found, name, None) or getattr(found, "__annotations__", {})[name]


@pytest.mark.parametrize("section", NAMES)
def test_every_name_of_a_document_has_its_row_in_the_order_of_laminar(section):
    assert list(rows(section)) == NAMES[section]


@pytest.mark.parametrize(("section", "name", "ref", "remark"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_every_row_leads_to_a_symbol_a_test_or_a_defect_with_a_test(section, name, ref, remark):
    resolve(ref)
    for other in re.findall(r"`(slackwater[^`]+)`", remark):
        resolve(other)
    for defect in DEFECT.findall(remark):
        resolve(defect)


@pytest.mark.parametrize(
    "ref",
    ["slackwater.nothing:x", "slackwater.store:nothing", "tests/unit/test_manifest.py::test_nothing", "A99",
     "slackwater.settings:Settings.nothing"],
)  # fmt: skip
def test_a_row_that_leads_nowhere_is_found(ref):
    with pytest.raises((AssertionError, ImportError, KeyError)):
        resolve(ref)


def test_the_defects_of_laminar_are_all_named():
    rows = {"A": 15, "B": 16, "C": 16, "D": 11, "E": 18, "F": 8}
    assert {f"{part}{n}" for part, count in rows.items() for n in range(1, count + 1)} <= named_defects()


def test_the_files_that_the_page_names_are_there():
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/[^`:]+\.py)", PAGE))


def test_the_page_can_be_found():
    assert "(docs/laminardb.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
