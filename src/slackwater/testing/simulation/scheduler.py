"""A seeded, deterministic world in which the real protocol code runs, crashes, stalls and loses answers.

Every actor is a thread, but only one runs at a time: each verb of the store or of a sink is a step, and the seed says
who makes the next one. The same seed gives the same trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from ...errors import Conflict, NotFound, Unavailable
from ...store import Listed, Listing, Names, Requests


class Crashed(BaseException):
    """The actor's process is gone; nothing in it may notice."""


class Violation(AssertionError):
    """An invariant does not hold; ``args[0]`` begins with its name."""


class SinkMemory:
    """What a sink's target holds: durable, shared by all drivers."""

    def __init__(self, *, can_undo: bool = True) -> None:
        self.uid: str | None = None
        self.epoch = 0
        self.committed: list[tuple[int, list[int]]] = []
        self.staged: dict[str, list[int]] = {}
        self.can_undo = can_undo
        # The user gave up its output: what was staged for it may be gone when a late driver commits.
        self.given_up = False


class Actor:
    def __init__(self, name: str, faults: bool) -> None:
        self.name, self.faults = name, faults
        self.turn = _closed()
        self.done = False
        self.stalled_until = 0
        self.away_until = 0
        self.error: BaseException | None = None


class Simulation:
    """The shared world: objects, sinks, time, and whose turn it is.

    ``late_risk``: how many times likelier than elsewhere an actor dies or sleeps between a record and a sink, where it
    leaves work for others, and can do harm when it wakes.
    """

    def __init__(self, seed: int, *, max_steps: int = 20_000, late_risk: int = 4) -> None:
        self.random = Random(seed)
        self.objects: dict[str, bytes] = {}
        # Every object as it was put, for judges: what was deleted or damaged since is still here.
        self.written: dict[str, bytes] = {}
        self.sinks: dict[str, SinkMemory] = {}
        self.trace: list[str] = []
        self.now = 0
        self._in_flight: list[tuple[str, bytes]] = []
        self._actors: list[Actor] = []
        self._control = _closed()
        self._max_steps = max_steps
        self.late_risk = late_risk
        self._failure: BaseException | None = None

    def spawn(self, name: str, body: Callable[[Actor], None], *, faults: bool = True, delay: int = 0) -> Actor:
        actor = Actor(name, faults)
        actor.stalled_until = self.now + delay

        def run() -> None:
            actor.turn.acquire()
            try:
                body(actor)
            except Crashed:
                pass
            except BaseException as error:
                actor.error = error
            actor.done = True
            self._end_turn(actor)

        threading.Thread(target=run, daemon=True).start()
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Run until every actor has ended; an error that no actor may end with is raised."""
        first = self._choose()
        if first is not None:
            first.turn.release()
            self._control.acquire()
        if self._failure is not None:
            raise self._failure

    def _choose(self) -> Actor | None:
        """Choose whose turn is next; None when all have ended."""
        while pending := [actor for actor in self._actors if not actor.done]:
            self.now += 1
            if self.now > self._max_steps:
                raise Violation("progress: the actors do not come to an end")
            if self._in_flight and self.random.random() < 0.1:
                self._land(self._in_flight.pop(self.random.randrange(len(self._in_flight))))
            ready = [actor for actor in pending if actor.stalled_until <= self.now]
            if ready:
                return self.random.choice(ready)
            self.now = min(actor.stalled_until for actor in pending)
        return None

    def _end_turn(self, actor: Actor) -> None:
        """Hand over for good."""
        if actor.error is not None and not isinstance(cause := _root(actor.error), Conflict | Unavailable):
            self._failure = cause
        following = None
        try:
            following = None if self._failure else self._choose()
        except Violation as endless:
            self._failure = endless
        (following.turn if following else self._control).release()

    def step(self, actor: Actor, what: str, *, risk: int = 1) -> None:
        """Give up the turn; come back when the seed says so, unless the process dies here."""
        following = self._choose()
        if following is not None and following is not actor:
            following.turn.release()
            actor.turn.acquire()
        self.trace.append(f"{actor.name} {what}")
        self._maybe_crash(actor, risk)
        if not actor.faults:
            return
        if self.random.random() < 0.02 * risk:
            actor.stalled_until = self.now + self.random.randint(20, 400)
            self.step(actor, f"wakes before {what}")
        if self.random.random() < 0.01:
            actor.away_until = self.now + self.random.randint(1, 30)
        if actor.away_until > self.now:
            raise Unavailable("the simulated store is away", code="store.unavailable")

    def after(self, actor: Actor) -> None:
        self._maybe_crash(actor)

    def _maybe_crash(self, actor: Actor, risk: int = 1) -> None:
        if actor.faults and self.random.random() < 0.01 * risk:
            self.trace.append(f"{actor.name} dies")
            raise Crashed

    def lose_answer(self, actor: Actor, key: str, data: bytes) -> None:
        """The answer to a create is lost: it has landed, lands later, or never does."""
        if actor.faults and self.random.random() < 0.08:
            fate = self.random.choice(("landed", "later", "never"))
            self.trace.append(f"{actor.name} create {key}: answer lost, {fate}")
            if fate == "landed":
                self._land((key, data))
            elif fate == "later":
                self._in_flight.append((key, data))
            raise Unavailable("the simulated answer was lost", code="store.unavailable")

    def _land(self, write: tuple[str, bytes]) -> None:
        self.objects.setdefault(*write)

    def damage(self, key: str) -> None:
        """Flip one bit of a stored object, as a disk may."""
        data = bytearray(self.objects[key])
        bit = self.random.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        self.objects[key] = bytes(data)
        self.trace.append(f"bit {bit} of {key} flips")

    def mend(self, key: str) -> None:
        """Put an object back from a copy, if it is still there."""
        if key in self.objects:
            self.objects[key] = self.written[key]


def _closed() -> threading.Lock:
    """Make a gate that one thread opens for another."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ is not None else error


class SimStore:
    """One actor's client of the shared objects."""

    def __init__(self, simulation: Simulation, actor: Actor) -> None:
        self._sim, self._actor = simulation, actor
        self.url = "sim:"
        self.requests = Requests()

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        self._sim.step(self._actor, f"get {key}")
        data = self._sim.objects.get(key)
        if data is None:
            raise NotFound(f"no object {key}", code="store.not_found")
        return data[offset : None if size is None else offset + size]

    def put(self, key: str, data: bytes | Sequence[bytes | bytearray | memoryview]) -> None:
        self._sim.step(self._actor, f"put {key}")
        whole = data if isinstance(data, bytes) else b"".join(data)
        self._sim.objects[key] = self._sim.written[key] = whole
        self._sim.after(self._actor)

    def create(self, key: str, data: bytes) -> bool:
        self._sim.step(self._actor, f"create {key}", risk=2)
        self._sim.lose_answer(self._actor, key, data)
        created = self._sim.objects.setdefault(key, data) is data
        self._sim.after(self._actor)
        return created

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        self._sim.step(self._actor, f"list {prefix}")
        keys = sorted(key for key in self._sim.objects if key.startswith(prefix) and key > (after or ""))
        return [Listed(key, len(self._sim.objects[key])) for key in keys]

    def list_folders(self, prefix: str) -> Names:
        self._sim.step(self._actor, f"list folders {prefix}")
        return sorted({key[len(prefix) :].split("/")[0] for key in self._sim.objects if key.startswith(prefix)})

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._sim.step(self._actor, f"delete {key}")
            self._sim.objects.pop(key, None)
        self._sim.after(self._actor)

    def move(self, source: str, target: str) -> None:
        self._sim.step(self._actor, f"move {source}")
        self._sim.objects[target] = self._sim.objects.pop(source)


class SimWorld:
    """One actor's clock and ids."""

    def __init__(self, simulation: Simulation, actor: Actor) -> None:
        self._sim, self._actor = simulation, actor
        self._ids = 0

    def now_ms(self) -> int:
        return self._sim.random.randint(0, 10**6)  # Clocks decide nothing, so any will do.

    def monotonic(self) -> float:
        return self._sim.now / 20

    def sleep(self, seconds: float) -> None:
        if seconds:
            self._sim.step(self._actor, "sleeps")

    def random_id(self) -> str:
        return f"{self._sim.random.getrandbits(128):032x}"

    def checkpoint_id(self) -> str:
        bits = f"{self._sim.random.getrandbits(128):032x}"
        return f"{bits[:8]}-{bits[8:12]}-7{bits[13:16]}-8{bits[17:20]}-{bits[20:]}"
