"""The real protocol code under crashes, stalls, lost answers, second drivers, rollbacks, flipped bits, by seed."""

from __future__ import annotations

import os

import msgspec
import pytest

from slackwater import recovery, rewind
from slackwater.errors import Conflict, SlackwaterError
from slackwater.testing.simulation import actors, play
from slackwater.testing.simulation.scheduler import Actor, Simulation, Violation
from tests.faults.guards import MUTATIONS

SEEDS = int(os.environ.get("SEEDS", "400"))


def test_no_seed_breaks_an_invariant() -> None:
    for seed in range(SEEDS):
        try:
            play(seed, crowded=seed % 4 == 3)
        except (Violation, SlackwaterError) as error:
            pytest.fail(f"seed {seed}: {error}")


def test_one_seed_gives_one_trace() -> None:
    assert play(7).trace == play(7).trace
    assert play(7).trace != play(8).trace


def test_a_tool_that_slept_until_its_target_was_gone_learns_that_it_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(0)
    scene = actors.Scene(simulation)
    scene.settings = msgspec.structs.replace(scene.settings, keep_last=1)
    monkeypatch.setattr(actors, "TOTAL", 2)
    simulation.spawn("first", actors.driver(scene, actors.Program()), faults=False)
    simulation.run()
    monkeypatch.undo()

    def sleepy_tool(actor: Actor) -> None:
        store, world, log = scene.tools(actor)
        state = recovery.claim(store, log, world, pipeline="p", driver=actor.name, sinks={}).state
        assert state.head is not None
        actor.stalled_until = simulation.now + 1000
        rewind.roll_back(store, log, world, state.head.epoch)

    tool = simulation.spawn("tool", sleepy_tool, faults=False)
    simulation.spawn("second", actors.driver(scene, actors.Program()), faults=False, delay=30)
    simulation.run()
    assert isinstance(tool.error, Conflict) and tool.error.code == "driver.fenced"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_without_a_guard_some_seed_breaks_an_invariant(mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(min(SEEDS, 300)):
        try:
            play(seed, crowded=True)
        except Violation as violation:
            assert str(violation).partition(":")[0] in MUTATIONS[mutation], violation
            return
        except SlackwaterError:
            continue
    pytest.fail("no seed noticed that the guard is off")
