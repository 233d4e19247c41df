"""The life of a driver is written once: who may claim, sweep and release is read from the calls in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import slackwater

PACKAGE = Path(slackwater.__file__).parent

# What only some modules call, by any name that leads there: functions, methods, and the changes that they append.
CALLERS = {
    "Permit": {"protocol/log.py"},
    "Claim": {"protocol/log.py"},
    "claim": {"protocol/driver.py"},
    "sweep": {"protocol/driver.py"},
    "delete_retired": {"protocol/driver.py"},
    "note_deleted": {"protocol/driver.py"},
    "Checkpointer": {"protocol/driver.py"},
    "recover": {"protocol/driver.py"},
    "Release": {"protocol/driver.py"},
    "Checkpoint": {"protocol/checkpoint.py", "rocks/database.py"},  # RocksDB has one of its own
    "Rollback": {"protocol/rollback.py"},
    "roll_back": {"protocol/recovery.py", "ops/rollback.py"},
    "claim_driver": {"protocol/driver.py", "ops/rollback.py"},
    "Repair": {"ops/repair.py"},
    "Retire": {"ops/forget.py"},
    "Deleted": {"ops/forget.py"},
}
# Who appends to a log without a permit: whoever may do so beside a driver.
WITHOUT_PERMIT = {"protocol/labels.py", "ops/savepoint.py", "ops/forget.py"}


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Go through the calls of a source, each with the last name of what it calls."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr, node


def appends_without_permit(name: str, call: ast.Call) -> bool:
    """Tell an append to a log, by what that is called: a list is called otherwise."""
    if name != "append" or not isinstance(call.func, ast.Attribute):
        return False
    to = ast.unparse(call.func.value)
    to_log = to.rpartition(".")[2].lstrip("_") == "log" or to.startswith("Log(")
    return to_log and not any(keyword.arg == "permit" for keyword in call.keywords)


def found(source: str) -> set[str]:
    """Name what a source calls that only some may."""
    named = set()
    for name, call in calls(source):
        if name in CALLERS:
            named.add(name)
        if appends_without_permit(name, call):
            named.add("append without a permit")
    return named


def sources() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_nobody_but_the_driver_claims_sweeps_and_releases():
    allowed = {**CALLERS, "append without a permit": WITHOUT_PERMIT}
    calling = {(name, module) for module, source in sources().items() for name in found(source)}
    assert calling == {(name, module) for name, modules in allowed.items() for module in modules}


def test_a_permit_is_made_in_one_place_by_the_claim():
    made = [(module, call) for module, source in sources().items() for name, call in calls(source) if name == "Permit"]
    (_, call), *others = made
    log = ast.parse(sources()["protocol/log.py"])
    (claim,) = (node for node in ast.walk(log) if isinstance(node, ast.FunctionDef) and node.name == "claim")
    assert others == [] and ast.dump(call) in [ast.dump(node) for node in ast.walk(claim)]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("permit = Permit(generation=state.generation)", {"Permit"}),
        ("permit = log_module.Permit(3)", {"Permit"}),
        ("pipeline.log.claim(uid, 'tool')", {"claim"}),
        ("retention.sweep(pipeline, permit, survey, {}, references)", {"sweep"}),
        ("log.append(lambda _: Release(generation=1, settled=None, deleted=[]), permit=permit)", {"Release"}),
        ("self._log.append(decide)", {"append without a permit"}),
        ("Log(store, clock, settings).append(decide)", {"append without a permit"}),
        ("pipeline.log.append(decide, permit=driver.permit)", set()),
        ("findings.append(Finding())", set()),
        ("match change:\n    case Release():\n        pass", set()),
        ("with open_driver(pipeline, name, hydrate=take) as driver:\n    driver.checkpoint(cut, attempt)", set()),
    ],
)
def test_a_call_that_is_not_allowed_is_found(source, named):
    assert found(source) == named
