"""The order in which modules may know each other, read from their imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "slackwater"

# The rooms, in the order of docs/design/012. A room may import those before it, and what lies inside itself.
ROOMS = [
    {"errors"},
    {"clock", "extras", "failpoints", "network", "parallel", "settings"},
    {"formats"},
    {"store"},
    {"protocol"},
    {"rocks"},
    {"inboxes", "keyed"},
    {"laminar"},
    {"program"},
    {"spark"},
    {"sinks"},
    {"sources"},
    {"tables"},
    {"ops"},
    {"streaming"},
    {"cli", "testing"},
]
# Inside the protocol: a module may import those before it, and none beside it.
PROTOCOL = [
    {"cut", "keep_rules", "placement", "sinks", "state"},
    {"artifacts", "decision", "log_damage"},
    {"log", "verified_reads"},
    {"address", "directory", "labels", "latest"},
    {"pipeline"},
    {"checkpoint", "kinds", "retention", "rollback"},
    {"recovery"},
    {"driver"},
]
LEVEL = {part: level for level, parts in enumerate(ROOMS) for part in parts}
PROTOCOL_LEVEL = {part: level for level, parts in enumerate(PROTOCOL) for part in parts}

# Foreign packages with a fence around them: who may import them.
SPARK = {"spark", "sinks", "sources", "tables", "streaming"}
ONLY_IN = {
    "obstore": {"store", "testing"},
    "pyspark": SPARK,
    "rocksdict": {"rocks"},
    "starlette": {"inboxes"},
    "deltalake": {"sinks"},
    "rich": {"cli"},
    "click": {"cli"},
}
# The formats are pure: no I/O, no clock, no randomness.
NEVER_IN = {"formats": {"os", "time", "random", "secrets", "uuid_utils", "obstore", "pyspark", "pathlib"}}

# The public façade names what lies anywhere below, and imports it only when it is asked for. Nothing below may import
# it in turn, but for the version, which is kept there.
FACADE = "slackwater"
VERSION = "slackwater.__version__"


def modules() -> dict[str, str]:
    """Map the dotted name of every module to its source; that of a package ends in ``.__init__``."""
    found = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    found.pop(f"{FACADE}.__init__", None)
    return found


def imported(module: str, source: str, *, to_modules: bool = False) -> set[str]:
    """Name, in full, all that ``source`` imports, wherever in the file that is; ``to_modules``, with what it takes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            taken = [f"{origin}.{alias.name}" for alias in node.names]
            # `from .. import store` names a part only together with what it takes.
            rooms = {FACADE, f"{FACADE}.protocol"}
            names.update(taken if origin in rooms else [origin, *taken] if to_modules else [origin])
    return names


def violations(module: str, source: str) -> list[str]:
    """Say what ``source``, as the text of ``module``, imports against the order."""
    _, room, *inside = module.split(".")
    if room not in LEVEL:
        return [f"{module}: {room} has no place in the order"]
    if room == "protocol" and inside[0] not in {"__init__", *PROTOCOL_LEVEL}:
        return [f"{module}: {inside[0]} has no place in the order of the protocol"]
    found = []
    for name in sorted(imported(module, source) - {VERSION}):
        top, *rest = name.split(".")
        if top == FACADE:
            other, *within = rest or [FACADE]
            if other != room and LEVEL.get(other, len(ROOMS)) >= LEVEL[room]:
                found.append(f"{module} imports {name}, which is not below {room}")
            elif other == room == "protocol" and not is_before(within[0], inside[0]):
                found.append(f"{module} imports {name}, which is not before it")
        elif room not in ONLY_IN.get(top, {room}) or top in NEVER_IN.get(room, ()):
            found.append(f"{module} imports {name}")
    return found


def is_before(module: str, other: str) -> bool:
    return PROTOCOL_LEVEL.get(module, len(PROTOCOL)) < PROTOCOL_LEVEL[other]


def imports_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """Map each module to those modules of ours that it imports."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = imported(module, source, to_modules=True)
        found[module] = {name for name in names if name in sources} | {
            f"{name}.__init__" for name in names if f"{name}.__init__" in sources
        }
        found[module] -= {module}
    return found


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Find modules that import each other in a ring."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if ring := visit(other, [*path, module]):
                return ring
        done.add(module)
        return []

    return next((ring for module in sorted(graph) if (ring := visit(module, []))), [])


def test_every_module_imports_only_what_lies_below_it():
    sources = modules()
    assert "slackwater.errors" in sources and "slackwater.formats.__init__" in sources
    assert [line for module, source in sources.items() for line in violations(module, source)] == []


def test_no_module_imports_itself_through_others():
    assert find_cycle(imports_of(modules())) == []


def test_a_cycle_is_found_wherever_its_imports_are():
    sources = {
        "slackwater.tables.rows": "from .casts import cast",
        "slackwater.tables.casts": "def later():\n    from . import table",
        "slackwater.tables.table": "from ..tables import rows",
    }
    assert find_cycle(imports_of(sources)) == [
        "slackwater.tables.casts",
        "slackwater.tables.table",
        "slackwater.tables.rows",
        "slackwater.tables.casts",
    ]


def test_the_plan_of_the_house_names_what_is_there():
    """A room or a module of the protocol that is gone leaves the order, too."""
    sources = modules()
    assert set(LEVEL) == {module.split(".")[1] for module in sources}
    inside = {module.split(".")[2] for module in sources if module.startswith("slackwater.protocol.")}
    assert set(PROTOCOL_LEVEL) == inside - {"__init__"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("slackwater.store", "from .protocol.log import append"),
        ("slackwater.store", "from . import protocol"),
        ("slackwater.store", "import slackwater.protocol.log"),
        ("slackwater.store", "from slackwater import protocol"),
        ("slackwater.store", "import slackwater"),
        ("slackwater.cli.run", "from slackwater import writeStream"),
        ("slackwater.store", "def later():\n    from .protocol.checkpoint import save"),
        ("slackwater.store", "if TYPE_CHECKING:\n    from .spark.capture import capture"),
        ("slackwater.formats.record", "from ..store import Store"),
        ("slackwater.formats.__init__", "from ..store import Store"),
        ("slackwater.sinks.delta.sink", "from ...cli.show import show"),
        ("slackwater.program", "from .ops.savepoint import create_label"),
        ("slackwater.keyed.metadata", "from ..inboxes.reader import report"),
        ("slackwater.protocol.checkpoint", "from .recovery import recover"),
        ("slackwater.protocol.checkpoint", "from . import driver"),
        ("slackwater.protocol.rollback", "from .retention import sweep"),
        ("slackwater.protocol.log", "import obstore"),
        ("slackwater.sinks.delta.sink", "from obstore.store import S3Store"),
        ("slackwater.protocol.recovery", "from pyspark.sql import SparkSession"),
        ("slackwater.ops.list", "import rich"),
        ("slackwater.formats.ids", "import uuid_utils"),
        ("slackwater.formats.ids", "def mint():\n    from time import time_ns"),
        ("slackwater.formats.keys", "import os.path"),
        ("slackwater.misc", ""),
        ("slackwater.protocol.misc", ""),
    ],
)
def test_an_import_against_the_order_is_found(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("slackwater.store", "import obstore\nfrom .formats import keys\nfrom .errors import NotFound"),
        ("slackwater.formats.record", "from . import keys\nfrom .ids import parse\nfrom ..errors import Corrupt"),
        ("slackwater.formats.__init__", "from .ids import parse"),
        ("slackwater.sinks.delta.sink", "from pyspark.sql import DataFrame\nfrom ...spark import session"),
        ("slackwater.protocol.driver", "from . import recovery\nfrom .checkpoint import Checkpointer"),
        ("slackwater.protocol.log", "from .state import apply"),
        (
            "slackwater.cli.show",
            "import click\nfrom .. import __version__, ops\nfrom slackwater.protocol.retention import plan",
        ),
    ],
)
def test_an_import_along_the_order_is_not_complained_about(module, source):
    assert violations(module, source) == []
