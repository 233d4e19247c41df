"""The scheduler: lets the real protocol code run, crash, stall and lose answers, as a seed says.

Every actor is a thread, but only one runs at a time: each verb of the store or of a sink is a step, and the seed says
who makes the next one. The same seed gives the same trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import NoReturn

from slackwater.errors import Conflict, Corrupt, NotFound, Unavailable
from slackwater.store import Buffer, Listed, Listing, Names, Requests, Stream
from slackwater.testing.faulty_store import FATES, Kind, spoil

TICKS_A_SECOND = 20


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
    def __init__(self, simulation: Simulation, name: str, faults: bool) -> None:
        self.simulation, self.name, self.faults = simulation, name, faults
        self.turn = _closed()
        self.thread: threading.Thread
        self.done = False
        # Its process is gone: what would still run in it, to clean up, does nothing.
        self.is_dead = False
        self.stalled_until = 0
        # Until when its store is not to be had, and why.
        self.away_until = 0
        self.away: Kind = "503"
        # It sleeps long where that may do harm: before it commits what others may have undone.
        self.drowsy = False
        # What it has read wrong, though it is stored right.
        self.spoilt: set[str] = set()
        # And how often, ever.
        self.misread = 0
        self.error: BaseException | None = None


class Simulation:
    """The shared clock: objects, sinks, time, and whose turn it is.

    ``late_risk``: how many times likelier than elsewhere an actor dies or sleeps between a record and a sink, where it
    leaves work for others, and can do harm when it wakes.
    """

    def __init__(self, seed: int, *, max_steps: int = 100_000, late_risk: int = 4) -> None:
        self.random = Random(seed)
        self.objects: dict[str, bytes] = {}
        # Every object as it was put, for judges: what was deleted or damaged since is still here. A number of the log
        # that was created again after a trim has its first record, the one that counted.
        self.written: dict[str, bytes] = {}
        self.sinks: dict[str, SinkMemory] = {}
        self.trace: list[str] = []
        self.now = 0
        self._in_flight: list[Callable[[], object]] = []
        self.actors: list[Actor] = []
        self._control = _closed()
        self._max_steps = max_steps
        self.late_risk = late_risk
        # Why a store may not be to be had; how likely it is that a put loses its answer, a read is spoilt, a sink fails
        self.outages: tuple[Kind, ...] = ("503",)
        self.put_risk = self.read_risk = self.sink_risk = 0.0
        # How many checkpoints drivers have tried to make.
        self.attempts = 0
        # Records that were damaged while they were the newest.
        self.bad_records: set[str] = set()
        self._failure: BaseException | None = None
        # After a failure nobody goes on.
        self._over = False

    def spawn(self, name: str, body: Callable[[Actor], None], *, faults: bool = True, delay: int = 0) -> Actor:
        actor = Actor(self, name, faults)
        actor.stalled_until = self.now + delay

        def run() -> None:
            actor.turn.acquire()
            try:
                if not self._over:
                    body(actor)
            except Crashed:
                pass
            except BaseException as error:
                actor.error = error
            actor.done = True
            if not self._over:
                self._end_turn(actor)

        actor.thread = threading.Thread(target=run, daemon=True)
        actor.thread.start()
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Run until every actor has ended; an error that no actor may end with is raised."""
        first = self._choose()
        if first is not None:
            first.turn.release()
            self._control.acquire()
        if self._failure is not None:
            self._over = True
            for actor in self.actors:
                if not actor.done:
                    actor.turn.release()
                    actor.thread.join()
            raise self._failure

    def _choose(self) -> Actor | None:
        """Choose whose turn is next; None when all have ended."""
        while pending := [actor for actor in self.actors if not actor.done]:
            self.now += 1
            if self.now > self._max_steps:
                raise Violation("progress: the actors do not come to an end")
            if self._in_flight and self.random.random() < 0.1:
                self._in_flight.pop(self.random.randrange(len(self._in_flight)))()
            ready = [actor for actor in pending if actor.stalled_until <= self.now]
            if ready:
                return self.random.choice(ready)
            self.now = min(actor.stalled_until for actor in pending)
        return None

    def _end_turn(self, actor: Actor) -> None:
        """Hand over for good."""
        if actor.error is not None and not isinstance(cause := _root(actor.error), Conflict | Unavailable):
            # Who reads something wrong may stop there; a second try reads it right.
            # A damaged newest record stops everybody, until a user has it repaired.
            stopped = actor.spoilt or (self.bad_records and getattr(cause, "code", "") == "log.corrupt")
            if not (isinstance(cause, Corrupt) and stopped):
                self._failure = cause
        following = None
        try:
            following = None if self._failure else self._choose()
        except Violation as endless:
            self._failure = endless
        (following.turn if following else self._control).release()

    def step(self, actor: Actor, what: str, *, risk: int = 1, writes: bool = False) -> None:
        """Give up the turn; come back when the seed says so, unless the process dies here."""
        following = None if self._over else self._choose()
        if following is not None and following is not actor:
            following.turn.release()
            actor.turn.acquire()
        if self._over or actor.is_dead:
            raise Crashed
        self.trace.append(f"{actor.name} {what}")
        self._maybe_crash(actor, risk)
        if not actor.faults:
            return
        if self.random.random() < 0.02 * risk:
            actor.stalled_until = self.now + self.random.randint(20, 400)
            self.step(actor, f"wakes before {what}")
        if self.random.random() < 0.01:
            actor.away_until, actor.away = self.now + self.random.randint(1, 30), self.random.choice(self.outages)
        if actor.away_until > self.now and (writes or actor.away != "full-disk"):
            self.trace.append(f"{actor.name} {actor.away}")
            raise Unavailable(f"the simulated store: {actor.away}", code=_CODES.get(actor.away, "store.unavailable"))

    def pause(self, actor: Actor, ticks: int) -> None:
        """Give up the turn for a while in which nothing befalls the actor."""
        actor.stalled_until = self.now + ticks
        faults, actor.faults = actor.faults, False
        self.step(actor, "waits")
        actor.faults = faults

    def after(self, actor: Actor) -> None:
        self._maybe_crash(actor)

    def _maybe_crash(self, actor: Actor, risk: int = 1) -> None:
        if actor.faults and self.random.random() < 0.01 * risk:
            self.trace.append(f"{actor.name} dies")
            self.kill(actor)

    def kill(self, actor: Actor) -> NoReturn:
        """End the actor's process here."""
        actor.is_dead = True
        raise Crashed

    def lose_answer(self, actor: Actor, key: str, data: bytes) -> None:
        """The answer to a create is lost: it has landed, lands later, or never does."""
        if actor.faults and self.random.random() < 0.08:
            self._lose_answer(actor, f"create {key}", lambda: self.land(key, data))

    def lose_put(self, actor: Actor, key: str, data: bytes) -> None:
        """The answer to a put is lost, as that to a create may be."""
        if actor.faults and self.random.random() < self.put_risk:
            self._lose_answer(actor, f"put {key}", lambda: self.store(key, data))

    def _lose_answer(self, actor: Actor, what: str, act: Callable[[], object]) -> NoReturn:
        fate = self.random.choice(FATES)
        self.trace.append(f"{actor.name} {what}: answer lost, {fate}")
        if fate == "landed":
            act()
        elif fate == "later":
            self._in_flight.append(act)
        raise Unavailable("the simulated answer was lost", code="store.unavailable")

    def land_all(self) -> None:
        """Let all that is in flight land."""
        while self._in_flight:
            self._in_flight.pop(0)()

    def store(self, key: str, data: bytes) -> None:
        self.objects[key] = self.written[key] = data

    def spoil_read(self, actor: Actor, key: str, data: bytes) -> bytes:
        """Read something else than what is stored; the next read may be right."""
        if not actor.faults or self.random.random() >= self.read_risk:
            return data
        kind: Kind = self.random.choice(("truncated", "bit-flipped"))
        actor.spoilt.add(key)
        actor.misread += 1
        self.trace.append(f"{actor.name} get {key}: {kind}")
        if kind == "truncated":  # which the store's own code finds out
            raise Corrupt(f"the simulated read of {key} ends early", code="object.damaged")
        return spoil(kind, data, self.random)

    def land(self, key: str, data: bytes) -> bool:
        """Create an object unless its name is taken."""
        if key in self.objects:
            return False
        self.objects[key] = data
        self.written.setdefault(key, data)
        return True

    def stall(self, names: str, share: float, most: int) -> None:
        """Let some of those whose names begin so sleep: they wake up to a world that has gone on."""
        for actor in self.actors:
            if actor.name.startswith(names) and not actor.done and self.random.random() < share:
                actor.stalled_until = max(actor.stalled_until, self.now + self.random.randint(1, most))

    def damage(self, key: str) -> None:
        """Flip one bit of a stored object, as a disk may."""
        self.objects[key] = spoil("bit-flipped", self.objects[key], self.random)
        self.trace.append(f"a bit of {key} flips")

    def lose(self, key: str) -> None:
        """Lose a stored object, as a disk may."""
        del self.objects[key]
        self.trace.append(f"{key} is lost")

    def mend(self, key: str) -> None:
        """Put an object back from a copy."""
        self.objects[key] = self.written[key]


_CODES: dict[Kind, str] = {"full-disk": "store.full", "denied": "store.denied"}


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
        return self._sim.spoil_read(self._actor, key, data[offset : None if size is None else offset + size])

    def put(self, key: str, data: bytes | Sequence[Buffer] | Stream) -> None:
        self._sim.step(self._actor, f"put {key}", writes=True)
        whole = data if isinstance(data, bytes) else b"".join(data)
        self._sim.lose_put(self._actor, key, whole)
        self._sim.store(key, whole)
        self._sim.after(self._actor)

    def create(self, key: str, data: bytes) -> bool:
        self._sim.step(self._actor, f"create {key}", risk=2, writes=True)
        self._sim.lose_answer(self._actor, key, data)
        created = self._sim.land(key, data)
        self._sim.after(self._actor)
        return created

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        self._sim.step(self._actor, f"list {prefix}")
        keys = sorted(key for key in self._sim.objects if key.startswith(prefix) and key > (after or ""))
        return [Listed(key, len(self._sim.objects[key])) for key in keys]

    def list_names(self, prefix: str, *, after: str | None = None) -> Names:
        listed = self.list(prefix, after=None if after is None else prefix + after)
        return [one.key.removeprefix(prefix) for one in listed]

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

    def remove_unfinished(self, prefix: str) -> int:
        return 0


class SimClock:
    """One actor's clock and ids."""

    def __init__(self, simulation: Simulation, actor: Actor) -> None:
        self._sim, self._actor = simulation, actor
        self._ids = 0

    def now_ms(self) -> int:
        return self._sim.random.randint(0, 10**6)  # Clocks decide nothing, so any will do.

    def monotonic(self) -> float:
        return self._sim.now / TICKS_A_SECOND

    def sleep(self, seconds: float) -> None:
        if seconds:
            self._actor.stalled_until = self._sim.now + round(TICKS_A_SECOND * seconds)
            self._sim.step(self._actor, "sleeps")

    @property
    def attempts(self) -> int:
        return self._sim.attempts

    @property
    def driven(self) -> bool:
        """Whether somebody may still make a checkpoint."""
        return any(actor.name.startswith("driver") and not actor.done for actor in self._sim.actors)

    def choose(self, among: Sequence[int]) -> int:
        return self._sim.random.choice(among)

    def pause(self, seconds: float) -> None:
        """Sleep, and nothing befalls the actor meanwhile."""
        self._sim.pause(self._actor, round(TICKS_A_SECOND * seconds))

    def random_id(self) -> str:
        return f"{self._sim.random.getrandbits(128):032x}"

    def checkpoint_id(self) -> str:
        bits = f"{self._sim.random.getrandbits(128):032x}"
        return f"{bits[:8]}-{bits[8:12]}-7{bits[13:16]}-8{bits[17:20]}-{bits[20:]}"
