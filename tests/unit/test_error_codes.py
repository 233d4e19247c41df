"""The codes of errors: each has its row in the documentation, and none is compared as text."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slackwater.errors import Code, Conflict

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "slackwater"

# More than that nobody knows.
MOST = 110

CODE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def sources() -> dict[str, str]:
    """Map the path of every module to its source."""
    return {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def codes_of(source: str) -> set[str]:
    """Collect what calls in ``source`` give as ``code=``; an f-string counts as itself, so it can have no row."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "code":
            for value in ast.walk(node.value):
                if isinstance(value, ast.JoinedStr):
                    found.add(ast.unparse(value))
                elif isinstance(value, ast.Constant) and CODE.fullmatch(str(value.value)):
                    found.add(str(value.value))
                else:
                    found.update(str(Code[name]) for name in members_in(value))
    return found


def members_in(node: ast.AST) -> list[str]:
    """Name the member of ``Code`` that this is."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code":
        return [node.attr]
    return []


def is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "code"


def compared(source: str) -> Iterator[ast.AST]:
    """Yield what a ``.code`` is compared with or looked up in, also where that has a name of the module."""
    tree = ast.parse(source)
    named: dict[str, ast.AST] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            named[line.targets[0].id] = line.value
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            named[line.target.id] = line.value
    for node in ast.walk(tree):
        others: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(map(is_code, (sides := [node.left, *node.comparators]))):
            others = [side for side in sides if not is_code(side)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if is_code(node.func.value):  # a method of str: startswith, partition
                others = list(node.args)
            elif any(map(is_code, node.args)):  # a lookup: get
                others = [node.func.value]
        elif isinstance(node, ast.Subscript) and is_code(node.slice):
            others = [node.value]
        elif isinstance(node, ast.Match) and is_code(node.subject):
            yield from (part for case in node.cases for part in ast.walk(case.pattern))
        for other in others:
            held = named.get(other.id, other) if isinstance(other, ast.Name) else other
            for part in held.keys if isinstance(held, ast.Dict) else [held]:
                yield from ast.walk(part) if part is not None else ()


def literals(source: str) -> list[str]:
    """Name the texts that a ``.code`` is compared with."""
    return [node.value for node in compared(source) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_error_code_has_its_row_in_the_documentation():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\|\s*`([^`]+)`\s*\|", text, re.MULTILINE)
    raised = set().union(*map(codes_of, sources().values()))
    assert sorted(raised - set(documented)) == [], "codes without a row"
    assert sorted(set(documented) - raised) == [], "rows without a code"
    assert len(documented) == len(set(documented)), "a code has two rows"
    assert len(documented) == len(raised) <= MOST


def test_a_code_is_found_wherever_a_call_gives_it():
    source = (
        'raise E("m", code="a.b")\nf(code="b.left" if x else "b.right")\nf(code=f"c.{x}")\nf(code=code, hint="d.e")\n'
        "f(code=Code.DRIVER_FENCED)"
    )
    assert codes_of(source) == {"a.b", "b.left", "b.right", "f'c.{x}'", "driver.fenced"}


def test_no_code_is_compared_as_text():
    found = {path: literals(source) for path, source in sources().items()}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_a_code_that_is_branched_on_is_never_written_as_text():
    members = {str(member) for member in Code}
    found = [
        f"{path}:{node.lineno}: {node.value}"
        for path, source in sources().items()
        if path != "errors.py"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value in members
    ]
    assert found == []


def test_every_member_is_branched_on_somewhere():
    used = {name for source in sources().values() for node in compared(source) for name in members_in(node)}
    assert used == set(Code.__members__)


@pytest.mark.parametrize(
    "source",
    [
        'error.code == "a.b"',
        '"a.b" != error.code',
        'error.code in ("a.b", Code.X)',
        'error.code not in {"a.b"}',
        'error.code.startswith("a.")',
        'error.code.startswith(("a.", "b."))',
        'ANSWERS = {"a.b": 1}\nANSWERS[error.code]',
        'ANSWERS: dict[str, int] = {"a.b": 1}\nANSWERS.get(error.code)',
        '{"a.b": 1}.get(error.code, 2)',
        'GONE = ("a.b",)\ndef f(error):\n    return error.code in GONE',
        'match error.code:\n    case "a.b":\n        pass',
    ],
)
def test_a_code_that_is_compared_as_text_is_found(source):
    assert literals(source)


@pytest.mark.parametrize(
    "source",
    [
        "error.code == Code.X",
        "end.code is None",
        "error.code == other.code",
        "print(f'[{error.code}]')",
        'HEADS = {Code.X: "a.b"}\nHEADS.get(error.code)',
    ],
)
def test_what_compares_no_text_is_not_complained_about(source):
    assert literals(source) == []


def test_a_member_is_plain_text_wherever_it_is_seen():
    error = Conflict("another driver", code=Code.DRIVER_FENCED, hint="stop")
    assert str(error) == "[driver.fenced] another driver (hint: stop)"
    assert type(error.code) is str and f"{error.code}" == "driver.fenced"
    assert msgspec.json.encode({"code": error.code}) == b'{"code":"driver.fenced"}'
    data = pickle.dumps(error)
    assert b"Code" not in data and str(pickle.loads(data)) == str(error)
    assert f"{Code.DRIVER_FENCED}" == "driver.fenced"
    assert msgspec.json.encode({"code": Code.DRIVER_FENCED}) == b'{"code":"driver.fenced"}'
