"""A store that fails as stores do, by rule or by seed, below the real code that translates, retries and verifies.

Say what shall go wrong, and run anything on it; what did go wrong is told afterwards.

>>> from slackwater.store import open_store
>>> from slackwater.testing.faulty_store import Fault, Faults, FaultyStore
>>> faults = Faults(Fault("503", verb="put", key="orders/*", nth=2))
>>> store = FaultyStore(open_store("memory:"), faults)
>>> store.put("orders/1", b"one")
>>> store.put("orders/2", b"two")
Traceback (most recent call last):
slackwater.errors.Unavailable: [store.unavailable] put orders/2 at memory:: the server answered with status 503 (hint: \
check that the endpoint is up and can be reached, then try again)
>>> store.put("orders/2", b"two")
>>> faults.befell
[Befell(kind='503', verb='put', key='orders/2')]

A whole program, whose stores are opened somewhere inside it, runs within ``everywhere``:

>>> with Faults(Fault("bit-flipped", verb="get", probability=0.5, times=None), seed=1).everywhere() as faults:
...     store = open_store("memory:")
...     store.put("a", b"abcdefgh")
...     [store.get("a") == b"abcdefgh" for _ in range(4)]
[False, False, True, False]
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Literal, TypeVar, cast, get_args

import msgspec
from obstore.exceptions import GenericError

from ..store import Buffer, Store, Stream, opening
from ..store.checked import Backend, Checked

Kind = Literal[
    "fail-before",  # nothing was done, and the request fails
    "fail-after",  # it was done, and the request fails all the same
    "lost-answer",  # the request fails, and whether it was done, will be, or never is, nobody tells
    "slow",  # it takes its time
    "503",  # the server is overloaded, and has done nothing
    "429",  # the client has asked too often, and the server has done nothing
    "truncated",  # what is read ends early
    "bit-flipped",  # what is read has one bit changed
    "missing",  # what is there is not found, and not listed
    "full-disk",  # there is no room
    "denied",  # the user may not do that
]
Verb = Literal["get", "put", "create", "list", "delete", "move"]
Fate = Literal["landed", "later", "never"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FATES: tuple[Fate, ...] = get_args(Fate)
VERBS: tuple[Verb, ...] = get_args(Verb)

# What can befall only some of the verbs.
_ONLY: dict[Kind, tuple[Verb, ...]] = {
    "truncated": ("get",),
    "bit-flipped": ("get",),
    "missing": ("get", "list"),
    "full-disk": ("put", "create", "move"),
}
_MOST_CALLS_LATE = 10
_T = TypeVar("_T")


class Fault(msgspec.Struct, frozen=True):
    """One rule: what befalls which calls.

    A call matches by its ``verb`` (None: all that the fault can befall) and its ``key``, a pattern as for file names; a
    list by the folder that it lists (a missing object by its own key), a delete by its first key. From the ``nth`` call
    that matches on, ``times`` of them (None: all) are in for it, each with the ``probability``. ``seconds`` are a slow
    one's; the ``fate`` is that of a lost answer, drawn by the seed if it is None.
    """

    kind: Kind
    verb: Verb | None = None
    key: str = "*"
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    seconds: float = 1.0
    fate: Fate | None = None

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("verb", (None, *VERBS)), ("fate", (None, *FATES))):
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"a fault has no {name} {given!r}: it is one of {', '.join(map(str, known))}")
        if self.verb not in (None, *(able := _ONLY.get(self.kind, VERBS))):
            raise ValueError(f"{self.kind} cannot befall a {self.verb}, but only a {' or '.join(able)}")
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise ValueError(f"calls are counted from 1: nth is {self.nth}, times is {self.times}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"a probability is from 0 to 1, not {self.probability}")

    def matches(self, verb: Verb, key: str) -> bool:
        return verb in _ONLY.get(self.kind, VERBS) and self.verb in (None, verb) and fnmatchcase(key, self.key)


class Befell(msgspec.Struct, frozen=True):
    """A fault that came true."""

    kind: Kind
    verb: Verb
    key: str


class Faults:
    """What shall go wrong with one or more stores, and what has. Of several rules for a call, the first is taken.

    The same seed and the same calls in the same order give the same faults.
    """

    def __init__(self, *rules: Fault, seed: int = 0, sleep: Callable[[float], None] = time.sleep) -> None:
        self.befell: list[Befell] = []
        self._rules, self._random, self._sleep = rules, Random(seed), sleep
        self._seen = [0] * len(rules)
        self._calls = 0
        self._in_flight: list[tuple[int, Callable[[], object]]] = []
        self._lock = threading.RLock()

    @contextmanager
    def everywhere(self) -> Iterator[Faults]:
        """Let every store that this process opens within the block be a faulty one."""
        opened: Any = opening
        real = opened.Checked, opened.CheckedDisk
        opened.Checked = opened.CheckedDisk = lambda url, backend: Checked(url, _FaultyBackend(backend, self))
        try:
            yield self
        finally:
            opened.Checked, opened.CheckedDisk = real

    def land(self) -> None:
        """Do now what was to be done later, its answers being lost."""
        with self._lock:
            landing, self._in_flight = self._in_flight, []
        for _, act in landing:
            act()

    def _draw(self, verb: Verb, key: str, *, listed: bool = False) -> Fault | None:
        """Find what befalls a call; or, of an object that is ``listed``, whether it is missing."""
        drawn: Fault | None = None
        with self._lock:
            # All rules, because each counts the calls that match it, whatever another does to them.
            for number, rule in enumerate(self._rules):
                if not rule.matches(verb, key) or listed != (verb == "list" and rule.kind == "missing"):
                    continue
                self._seen[number] += 1
                past = self._seen[number] - rule.nth
                in_for_it = past >= 0 and (rule.times is None or past < rule.times)
                if in_for_it and self._random.random() < rule.probability and drawn is None:
                    drawn = rule
            if drawn is not None:
                self.befell.append(Befell(drawn.kind, verb, key))
        return drawn

    def call(self, verb: Verb, key: str, act: Callable[[], _T]) -> _T:
        """Make a call, or what is left of it."""
        self._land_due()
        rule = self._draw(verb, key)
        if rule is None:
            return act()
        if rule.kind == "slow":
            self._sleep(rule.seconds)
            return act()
        if rule.kind in ("truncated", "bit-flipped"):
            with self._lock:
                return cast(_T, spoil(rule.kind, cast(bytes, act()), self._random))
        if rule.kind == "missing":
            raise FileNotFoundError(errno.ENOENT, "missing", key)
        if rule.kind == "fail-after":
            act()
        elif rule.kind == "lost-answer":
            self._lose_answer(rule, act)
        raise _error(rule.kind, key)

    def _lose_answer(self, rule: Fault, act: Callable[[], object]) -> None:
        with self._lock:
            fate = rule.fate or self._random.choice(FATES)
            if fate == "later":
                self._in_flight.append((self._calls + self._random.randint(1, _MOST_CALLS_LATE), act))
        if fate == "landed":
            act()

    def _land_due(self) -> None:
        with self._lock:
            self._calls += 1
            landing = [act for due, act in self._in_flight if due <= self._calls]
            self._in_flight = [(due, act) for due, act in self._in_flight if due > self._calls]
        for act in landing:
            act()

    def hide(self, found: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        """Leave out of a listing what is missing."""
        return [pair for pair in found if self._draw("list", pair[0], listed=True) is None]


def spoil(kind: Kind, data: bytes, random: Random) -> bytes:
    """Cut bytes, or flip a bit of them; nothing stays nothing."""
    if not data:
        return data
    if kind == "truncated":
        return data[: random.randrange(len(data))]
    bit, spoilt = random.randrange(8 * len(data)), bytearray(data)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)


def _error(kind: Kind, key: str) -> Exception:
    """Make the error that a disk or obstore raises; the store's own code makes ours of it."""
    if kind in ("503", "429"):
        return GenericError(f"Server returned non-2xx status code: {kind}")
    number = {"full-disk": errno.ENOSPC, "denied": errno.EACCES, "lost-answer": errno.ETIMEDOUT}.get(kind, errno.EIO)
    return OSError(number, kind, key)


class FaultyStore(Checked):
    """A real store, opened by ``open_store``, with faults between its verbs and what it stores in."""

    def __init__(self, store: Store, faults: Faults) -> None:
        super().__init__(store.url, _FaultyBackend(cast(Checked, store)._backend, faults))


class _FaultyBackend:
    """The verbs of a backend, which may fail."""

    def __init__(self, backend: Backend, faults: Faults) -> None:
        self._backend, self._faults = backend, faults

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        return self._faults.call("get", key, lambda: self._backend.get(key, offset, size, admit))

    def put(self, key: str, buffers: Sequence[Buffer] | Stream) -> None:
        self._faults.call("put", key, lambda: self._backend.put(key, buffers))

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool:
        return self._faults.call("create", key, lambda: self._backend.create(key, buffers))

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        return self._faults.hide(self._faults.call("list", prefix, lambda: self._backend.list(prefix, after)))

    def list_folders(self, prefix: str) -> Sequence[str]:
        return self._faults.call("list", prefix, lambda: self._backend.list_folders(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        self._faults.call("delete", keys[0], lambda: self._backend.delete(keys))

    def move(self, source: str, target: str) -> None:
        self._faults.call("move", source, lambda: self._backend.move(source, target))

    def remove_unfinished(self, prefix: str) -> int:
        return self._backend.remove_unfinished(prefix)
