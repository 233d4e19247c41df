"""One seed played: actors that crash and stall, then two starts without faults, then the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from simulation.actors import (
    SINKS,
    TOTAL,
    Body,
    Program,
    Scene,
    bad_block,
    driver,
    failing_disk,
    forgetter,
    labeller,
    push,
    reader,
    repairer,
    roller,
    sleeper,
    supervised,
    trimmer,
    verifier,
)
from simulation.inbox import InboxMemory
from simulation.judge import check
from simulation.memory import into
from simulation.scheduler import Actor, Simulation, SinkMemory, Violation
from slackwater.formats.keys import LOG
from slackwater.formats.state import LiveCheckpoint, State
from slackwater.protocol.artifacts import get_artifacts
from slackwater.protocol.rollback import targets
from slackwater.protocol.verified_reads import load_manifest, newest_verified


class Part(NamedTuple):
    """Some actors of one kind: how many, in a calm seed and in a crowded one, and when they begin."""

    name: str
    body: Callable[[Scene], Body]
    calm: tuple[int, ...]
    crowded: tuple[int, ...]
    after: int
    within: int
    faults: bool = True


CAST = (
    Part("labeller", labeller, (1, 2, 3), (1, 2, 3), 0, 300),
    Part("verifier", verifier, (0, 1), (0, 1), 50, 600),
    Part("reader", reader, (1, 2), (2, 3), 0, 200),
    Part("sleeper", sleeper, (0, 1, 2), (2, 3), 0, 400),
    Part("trimmer", trimmer, (0, 1, 2), (0, 1, 2), 0, 400),
    Part("roller", roller, (0, 2, 3, 4), (3, 4, 5), 100, 350),
    Part("forgetter", forgetter, (0, 1, 2), (1, 2, 3), 50, 350),
    Part("disk", failing_disk, (0, 0, 1), (1,), 50, 300, faults=False),
    Part("bad-block", bad_block, (0, 0, 1), (0, 1, 1), 50, 500, faults=False),
)


def play(seed: int, *, watch: Callable[[Simulation], None] | None = None) -> Simulation:
    """Play one seed. Every other one is crowded: with more of everything that makes a missing guard show.

    ``watch`` gets the simulation before it begins, so that it can be looked at even if it does not end well.
    """
    crowded = seed % 2 == 1
    simulation = Simulation(seed, late_risk=8 if crowded else 4)
    if watch is not None:
        watch(simulation)
    scene = Scene(simulation)
    random = simulation.random
    draw_weather(simulation)
    simulation.sinks.update({name: SinkMemory(can_undo=random.random() > 0.05) for name in SINKS})
    if random.random() < scene.pushed_share:
        scene.inbox = InboxMemory(f"{random.getrandbits(128):032x}", TOTAL)
    all_sinks = spawn_drivers(scene, crowded)
    for part in CAST:
        for number in range(random.choice(part.crowded if crowded else part.calm)):
            delay = random.randint(part.after, part.within * (number + 1))
            simulation.spawn(f"{part.name}-{number}", part.body(scene), faults=part.faults, delay=delay)
    push(scene, faults=True)
    simulation.run()
    simulation.land_all()
    if simulation.bad_records:
        repair(scene)
    if scene.damaged:
        mend(scene)
    push(scene, faults=False)
    simulation.run()
    # Twice: the first may still delete what the crashed ones retired, the second finds a settled clock.
    back = all_sinks or random.random() < 0.5
    last_program = Program(fallback=True) if back else Program(sinks=SINKS[:1], drop=SINKS[1:], fallback=True)
    for number in (1, 2):
        last = simulation.spawn(f"last-{number}", driver(scene, last_program), faults=False)
        simulation.run()
        if getattr(last.error, "code", "") == "inbox.dropped" and put_back(scene):
            last = simulation.spawn(f"last-{number}-again", driver(scene, last_program), faults=False)
            simulation.run()
        if last.error is not None:
            raise Violation(f"available: a start after the crashes fails with {last.error!r}")
    push(scene, faults=False)
    simulation.run()
    check(scene)
    return simulation


def spawn_drivers(scene: Scene, crowded: bool) -> bool:
    """Spawn drivers, one after the other; say whether all of them have all sinks."""
    simulation, random = scene.simulation, scene.simulation.random
    drivers = random.choice((2, 3, 4) if crowded else (1, 2, 3))
    # From this driver on, one of the sinks is not in the program.
    gone = random.randrange(drivers) if random.random() < 0.15 else drivers
    for number in range(drivers):
        fallback = random.random() < 0.5
        program = Program(fallback=fallback)
        if number >= gone:
            program = Program(sinks=SINKS[:1], drop=SINKS[1:] if random.random() < 0.7 else (), fallback=fallback)
        body = supervised(driver(scene, program), lives=random.randint(2, 8))
        spawned = simulation.spawn(f"driver-{number}", body, delay=random.randint(0, 350 * number + 1))
        spawned.drowsy = crowded and random.random() < 0.5
    return gone == drivers


def draw_weather(simulation: Simulation) -> None:
    """Draw what the store is in for, beside what it always is: most runs are spared most of it."""
    random = simulation.random
    simulation.outages += tuple(kind for kind in ("429", "full-disk", "denied") if random.random() < 0.3)
    simulation.put_risk = random.choice((0.0, 0.0, 0.03))
    simulation.read_risk = random.choice((0.0, 0.0, 0.01))
    simulation.sink_risk = random.choice((0.0, 0.1))


def repair(scene: Scene) -> None:
    """Repair a damaged newest record, if nobody has; if nothing before it can be gone on from, put it back."""
    simulation = scene.simulation
    last = simulation.spawn("last-repairer", repairer(scene), faults=False)
    simulation.run()
    newest = max(key for key in simulation.objects if key.startswith(LOG))
    if last.error is not None and newest in simulation.bad_records:
        simulation.mend(newest)
        simulation.bad_records.remove(newest)


def mend(scene: Scene) -> None:
    """Put the damaged objects back from a copy, if no checkpoint can be restored without them."""

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)

        def restore(entry: LiveCheckpoint) -> None:
            """Look without the code under test, which a mutation may have blinded."""
            get_artifacts(pipeline.store, load_manifest(pipeline.store, entry), scene.settings, into({}))

        found, _ = newest_verified(targets(cast(State, pipeline.log.read())), restore)
        if found is None:
            for key in scene.damaged:
                scene.simulation.mend(key)
            scene.damaged.clear()

    scene.simulation.spawn("mender", body, faults=False)
    scene.simulation.run()


def put_back(scene: Scene) -> bool:
    """Put the inbox back from a copy, where a lost record had let it drop what a checkpoint needs after the repair."""
    state, inbox = scene.newest(), scene.inbox
    if state is None or inbox is None or scene.covered(state) >= inbox.description.dropped:
        return False
    inbox.put_back(scene.covered(state))
    return True
