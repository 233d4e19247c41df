"""The order in which modules may know each other, read from their imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "slackwater"

# A part may import those of the rows above its own, and what lies inside itself.
ORDER = [
    {"addresses", "errors"},
    {"extras", "failpoints", "settings", "world"},
    {"formats"},
    {"store"},
    {"artifacts", "lost"},
    {"log"},
    {"labels", "pointer"},
    {"checkpointer"},
    {"recovery"},
    {"ownership", "retention", "rewind"},
    {"fallback", "forget", "repairing"},
    {"inspect"},
    {"incremental", "laminar", "library"},
    {"receive"},
    {"spark"},
    {"pipeline"},
    {"cli", "testing"},
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}

# Foreign packages with a fence around them: who may import them.
ONLY_IN = {
    "obstore": {"store", "testing"},
    "pyspark": {"spark", "pipeline", "testing"},
    "rocksdict": {"incremental"},
    "starlette": {"receive"},
}
# The formats are pure: no I/O, no clock, no randomness.
NEVER_IN = {"formats": {"os", "time", "random", "secrets", "uuid_utils", "obstore", "pyspark", "pathlib"}}

# The public façade names what lies anywhere below, and imports it only when it is asked for. Nothing below may import
# it in turn, but for the version, which is kept there.
FACADE = "slackwater"
VERSION = "slackwater.__version__"

CODE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def modules() -> dict[str, str]:
    """Map the dotted name of every module to its source; that of a package ends in ``.__init__``."""
    found = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    found.pop(f"{FACADE}.__init__", None)
    return found


def imported(module: str, source: str) -> set[str]:
    """Name, in full, all that ``source`` imports, wherever in the file that is."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            # `from .. import store` names a part only together with what it takes.
            names.update([f"{FACADE}.{alias.name}" for alias in node.names] if origin == FACADE else [origin])
    return names


def violations(module: str, source: str) -> list[str]:
    """Say what ``source``, as the text of ``module``, imports against the order."""
    part = module.split(".")[1]
    if part not in LEVEL:
        return [f"{module}: {part} has no place in the order"]
    found = []
    for name in sorted(imported(module, source) - {VERSION}):
        top, *rest = name.split(".")
        if top == FACADE:
            other = rest[0] if rest else FACADE
            if other != part and LEVEL.get(other, len(ORDER)) >= LEVEL[part]:
                found.append(f"{module} imports {name}, which is not below {part}")
        elif part not in ONLY_IN.get(top, {part}) or top in NEVER_IN.get(part, ()):
            found.append(f"{module} imports {name}")
    return found


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
    return found


def test_every_module_imports_only_what_lies_below_it():
    sources = modules()
    assert "slackwater.errors" in sources and "slackwater.formats.__init__" in sources
    assert [line for module, source in sources.items() for line in violations(module, source)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("slackwater.store", "from .log import append"),
        ("slackwater.store", "from . import log"),
        ("slackwater.store", "import slackwater.protocol.log"),
        ("slackwater.store", "from slackwater import log"),
        ("slackwater.store", "import slackwater"),
        ("slackwater.cli.run", "from slackwater import writeStream"),
        ("slackwater.store", "def later():\n    from .checkpointer import save"),
        ("slackwater.store", "if TYPE_CHECKING:\n    from .spark.capture import capture"),
        ("slackwater.formats.record", "from ..store import Store"),
        ("slackwater.formats.__init__", "from ..store import Store"),
        ("slackwater.sinks.delta.sink", "from ...cli.show import show"),
        ("slackwater.cli.show", "from ..testing import oracle"),
        ("slackwater.protocol.checkpoint", "from .recovery import recover"),
        ("slackwater.protocol.log", "import obstore"),
        ("slackwater.sinks.delta.sink", "from obstore.store import S3Store"),
        ("slackwater.protocol.recovery", "from pyspark.sql import SparkSession"),
        ("slackwater.formats.ids", "import uuid_utils"),
        ("slackwater.formats.ids", "def mint():\n    from time import time_ns"),
        ("slackwater.formats.keys", "import os.path"),
        ("slackwater.misc", ""),
    ],
)
def test_an_import_against_the_order_is_found(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("slackwater.store", "import obstore\nfrom .formats import layout\nfrom .errors import NotFound"),
        ("slackwater.formats.record", "from . import layout\nfrom .ids import parse\nfrom ..errors import Corrupt"),
        ("slackwater.formats.__init__", "from .ids import parse"),
        ("slackwater.sinks.delta.sink", "from pyspark.sql import DataFrame\nfrom ...spark import session"),
        (
            "slackwater.cli.show",
            "import click\nfrom .. import __version__, inspect\nfrom slackwater.protocol.retention import plan",
        ),
    ],
)
def test_an_import_along_the_order_is_not_complained_about(module, source):
    assert violations(module, source) == []


def test_every_error_code_has_its_row_in_the_documentation():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\|\s*`([^`]+)`\s*\|", text, re.MULTILINE)
    raised = set().union(*(codes_of(source) for source in modules().values()))
    assert sorted(raised - set(documented)) == [], "codes without a row"
    assert sorted(set(documented) - raised) == [], "rows without a code"
    assert len(documented) == len(set(documented)), "a code has two rows"


def test_a_code_is_found_wherever_a_call_gives_it():
    source = (
        'raise E("m", code="a.b")\nf(code="b.left" if x else "b.right")\nf(code=f"c.{x}")\nf(code=code, hint="d.e")'
    )
    assert codes_of(source) == {"a.b", "b.left", "b.right", "f'c.{x}'"}
