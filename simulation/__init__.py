"""A seeded, deterministic simulation of the protocol: the real code, between actors that crash, sleep and lose answers.

``play(seed)`` plays one seed and raises a ``Violation`` that names the invariant which did not hold. ``make sim
SEEDS=1000`` plays many.

>>> play(1).trace == play(1).trace
True
"""

from simulation.play import play
from simulation.scheduler import Simulation, Violation

__all__ = ["Simulation", "Violation", "play"]
