"""The real protocol code under crashes, stalls, lost answers, second drivers, rollbacks, flipped bits, by seed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import simulation
from simulation import actors, play
from simulation.__main__ import main
from simulation.inbox import InboxMemory
from simulation.many import play_many, play_one
from simulation.scheduler import Actor, Simulation
from slackwater.errors import Conflict
from slackwater.inboxes import reader as inbox_reader
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.rollback import roll_back
from slackwater.testing.faulty_store import KINDS
from tests.faults.guards import MUTATIONS, Guard, sinks_commit_twice

ROOT = Path(__file__).parents[2]

SEEDS = int(os.environ.get("SEEDS", "3000"))
# Each of pytest's other workers has a core to itself: their tests wait for things to come to pass in time.
JOBS = max(1, (os.cpu_count() or 1) + 1 - int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
# Of these, some one must show that a guard is off. They are the first of those that pass with all guards on.
TELLING = range(100)


def test_no_seed_breaks_an_invariant() -> None:
    assert [found for found in play_many(range(max(SEEDS, len(TELLING))), jobs=JOBS) if found] == []


@pytest.mark.parametrize("seed", [10717, 14461])  # a manifest was damaged while a verifier was at work
def test_a_seed_that_broke_an_invariant_once_breaks_none(seed: int) -> None:
    assert play_one(seed)[1] is None


def test_one_seed_gives_one_trace() -> None:
    assert play(7).trace == play(7).trace
    assert play(7).trace != play(8).trace


def test_another_process_plays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "simulation", "--seed", "7", "--trace"]
    for hashing in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hashing)
        *steps, _ = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        assert steps == play(7).trace


def test_receivers_die_answers_are_lost_and_messages_are_dropped() -> None:
    steps = [step for seed in range(40) for step in play(seed).trace if step.startswith("receiver")]
    for what in ("dies", "answer is lost", "write", "publish", "answer", "drop up to"):
        assert sum(what in step for step in steps) > 3, what


def test_an_inbox_that_is_put_back_from_a_copy_has_what_was_dropped() -> None:
    scenario = Simulation(0)
    scene = actors.Scene(scenario)
    inbox = scene.inbox = InboxMemory("0" * 32, actors.TOTAL)
    actors.push(scene, faults=False)
    scenario.spawn("driver", actors.driver(scene, actors.Program()), faults=False)
    scenario.run()
    actors.push(scene, faults=False)
    scenario.run()
    state = scene.newest()
    assert state is not None and 0 < inbox.description.dropped == inbox.published.dropped == scene.covered(state)
    kept = inbox.kept
    inbox.put_back(2)
    (chunk,) = inbox_reader.chunks_of(cast(Any, inbox), "0" * 32, 2, actors.TOTAL)
    assert [message.content for message in chunk] == [str(number).encode() for number in range(2, actors.TOTAL)]
    assert inbox.published.dropped == inbox.description.dropped == 2 and inbox.kept == kept


def test_a_tool_that_slept_until_its_target_was_gone_learns_that_it_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Simulation(0)
    scene = actors.Scene(scenario)
    scene.settings = msgspec.structs.replace(scene.settings, keep_last=1)
    monkeypatch.setattr(actors, "TOTAL", 2)
    scenario.spawn("first", actors.driver(scene, actors.Program()), faults=False)
    scenario.run()
    monkeypatch.undo()

    def sleepy_tool(actor: Actor) -> None:
        pipeline = scene.open(actor)
        with claim_driver(pipeline, actor.name) as driver:
            assert driver.state.head is not None
            actor.stalled_until = scenario.now + 1000
            roll_back(pipeline, driver.permit, driver.state.head.epoch)

    tool = scenario.spawn("tool", sleepy_tool, faults=False)
    scenario.spawn("second", actors.driver(scene, actors.Program()), faults=False, delay=30)
    scenario.run()
    assert isinstance(tool.error, Conflict) and tool.error.code == "driver.fenced"


def rules() -> set[int]:
    """Read the numbers of the rules off the protocol, without those that are not there yet."""
    text = (ROOT / "docs" / "spec" / "log.md").read_text(encoding="utf-8")
    found = re.finditer(r"^(\d+)\. \*\*.*?(?=^\d+\. \*\*|^\w)", text, re.MULTILINE | re.DOTALL)
    return {int(rule[1]) for rule in found if "Not there yet" not in rule[0]}


def test_every_rule_has_a_guard_that_can_be_switched_off() -> None:
    assert {guard.rule for guard in MUTATIONS} == rules()
    assert [guard.rule for guard in MUTATIONS] == sorted(guard.rule for guard in MUTATIONS)


@pytest.mark.parametrize("guard", MUTATIONS, ids=lambda guard: f"{guard.rule}-{guard.off.__name__}")
def test_without_a_guard_some_seed_breaks_an_invariant(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.off(monkeypatch)
    if guard.scenario is not None:
        guard.scenario(monkeypatch)
    others = set[str]()
    for seed in TELLING:
        _, found = play_one(seed)
        if found is not None:
            if found.invariant in guard.breaks:
                return
            others.add(found.invariant)  # What else goes wrong on the way counts for nothing.
    pytest.fail(f"no seed breaks one of {sorted(guard.breaks)}, but {sorted(others)}")


@pytest.mark.parametrize(
    "scenario",
    [guard.scenario for guard in MUTATIONS if guard.scenario],
    ids=lambda scenario: scenario.__name__,
)
def test_with_all_guards_on_no_scenario_breaks_an_invariant(
    scenario: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(monkeypatch)
    assert [found for seed in TELLING if (found := play_one(seed)[1])] == []


def raised() -> set[str]:
    """Collect the invariants that the simulation's code names when they do not hold."""
    folder = Path(simulation.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    return set(re.findall(r"Violation\(\s*f?\"([a-z-]+):", sources))


def documented(section: str) -> list[str]:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| (?:\d+ \| )?`([^`]+)` \|", body, re.MULTILINE)


def test_every_invariant_has_its_row_in_the_documentation() -> None:
    assert len(raised()) > 10
    assert documented("Invariants") == sorted(raised())


def test_every_guard_has_its_row_in_the_documentation() -> None:
    assert documented("Guards") == [guard.off.__name__ for guard in MUTATIONS]


def test_every_fault_has_its_row_in_the_documentation() -> None:
    assert documented("A faulty store") == list(KINDS)


def test_the_command_plays_seeds_and_tells_how_to_see_one_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--jobs", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["first"], told["broken"]) == (3, 0, [])
    assert main(["--seed", "7", "--trace"]) == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert steps == play(7).trace
    assert last.endswith("none broken")


def test_the_command_names_the_seed_and_the_invariant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks_commit_twice(monkeypatch)
    assert main(["--seeds", "2", "--from", "5", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert "seed 5 breaks undone: " in shown
    assert "python -m simulation --seed 6 --trace" in shown
    assert main(["--seed", "5", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["broken"][0]["invariant"] == "undone"
