"""One seed played: actors that crash and stall, then two starts without faults, then the judge."""

from __future__ import annotations

from typing import cast

from ... import recovery, rewind
from ...formats.states import LiveCheckpoint, State
from .actors import SINKS, Program, Scene, driver, failing_disk, forgetter, labeller, reader, roller
from .judge import check
from .scheduler import Actor, Simulation, SinkMemory, Violation


def play(seed: int, *, crowded: bool = False) -> Simulation:
    """Play one seed; ``crowded``: with more of everything that makes a missing guard show."""
    simulation = Simulation(seed, late_risk=8 if crowded else 4)
    scene = Scene(simulation)
    random = simulation.random
    simulation.sinks.update({name: SinkMemory(can_undo=random.random() > 0.05) for name in SINKS})
    drivers = random.choice((3, 4, 5) if crowded else (2, 3, 4, 5))
    # From this driver on, one of the sinks is not in the program.
    gone = random.randrange(drivers) if random.random() < 0.15 else drivers
    for number in range(drivers):
        fallback = random.random() < 0.5
        program = Program(fallback=fallback)
        if number >= gone:
            program = Program(sinks=SINKS[:1], drop=SINKS[1:] if random.random() < 0.7 else (), fallback=fallback)
        simulation.spawn(f"driver-{number}", driver(scene, program), delay=random.randint(0, 350 * number + 1))
    simulation.spawn("labeller", labeller(scene), delay=random.randint(0, 200))
    simulation.spawn("reader", reader(scene), delay=random.randint(0, 200))
    for number in range(random.choice((3, 4, 5) if crowded else (0, 2, 3, 4))):
        simulation.spawn(f"roller-{number}", roller(scene), delay=random.randint(100, 350 * (number + 1)))
    for number in range(random.choice((0, 1, 2))):
        simulation.spawn(f"forgetter-{number}", forgetter(scene), delay=random.randint(50, 350 * (number + 1)))
    if random.random() < (0.5 if crowded else 0.25):
        simulation.spawn("disk", failing_disk(scene), faults=False, delay=random.randint(50, 400))
    simulation.run()
    if scene.damaged:
        mend(scene)
    # Twice: the first may still delete what the crashed ones retired, the second finds a settled world.
    back = gone == drivers or random.random() < 0.5
    last_program = Program(fallback=True) if back else Program(sinks=SINKS[:1], drop=SINKS[1:], fallback=True)
    for number in (1, 2):
        last = simulation.spawn(f"last-{number}", driver(scene, last_program), faults=False)
        simulation.run()
        if last.error is not None:
            raise Violation(f"available: a start after the crashes fails with {last.error!r}")
    check(scene)
    return simulation


def mend(scene: Scene) -> None:
    """Put the damaged objects back from a copy, if no checkpoint can be restored without them."""

    def body(actor: Actor) -> None:
        store, _, log = scene.tools(actor)

        def restore(entry: LiveCheckpoint) -> None:
            """Look without the code under test, which a mutation may have blinded."""
            recovery.restore(store, recovery.load_manifest(store, entry), scene.settings, lambda path, data: None)

        if rewind.newest_verified(store, cast(State, log.read()), scene.settings, try_out=restore) is None:
            for key in scene.damaged:
                scene.simulation.mend(key)
            scene.damaged.clear()

    scene.simulation.spawn("mender", body, faults=False)
    scene.simulation.run()
