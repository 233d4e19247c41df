"""Whether a store honours what the protocol needs, seen by trying it."""

from __future__ import annotations

import os
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from ..errors import Code, Corrupt, NotFound, SlackwaterError, Unavailable, Unsupported
from .opening import local_folder
from .verbs import Names, Store

Outcome = Literal["ok", "failed", "denied", "skipped"]

_SAMPLES = 5
_RACES = 3
_CONTENDERS = 8
_T = TypeVar("_T")

# What the verbs need to be allowed, by the kind of store.
_PERMISSIONS = {
    "s3": {"list": "s3:ListBucket", "put": "s3:PutObject", "get": "s3:GetObject", "delete": "s3:DeleteObject"},
    "gs": {
        "list": "storage.objects.list",
        "put": "storage.objects.create",
        "get": "storage.objects.get",
        "delete": "storage.objects.delete",
    },
    "az": {"list": "container list", "put": "blob write", "get": "blob read", "delete": "blob delete"},
    "file": {"list": "read folders", "put": "write files", "get": "read files", "delete": "delete files"},
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the protocol needs, and whether the store does it."""

    name: str
    outcome: Outcome
    detail: str | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long the calls of one verb took."""

    verb: str
    calls: int
    median_ms: float
    max_ms: float


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What must be allowed; ``unknown`` is what could not be tried because something else failed."""

    needed: list[str]
    missing: list[str]
    unknown: list[str]


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe has seen. ``left`` has the keys that it could not remove."""

    url: str
    checks: list[Check]
    permissions: Permissions
    latencies: list[Latency]
    left: list[str]

    def refusal(self) -> SlackwaterError | None:
        """Say why this store cannot be used, the reason that is hardest to fix first."""
        failed = {check.name: check for check in self.checks if check.outcome == "failed"}
        for name in (_CREATE, _TAKEN, _RACE):
            if name in failed:
                return Unsupported(
                    f"{name}: {failed[name].detail}",
                    code="store.unsupported",
                    hint="use a server that honours If-None-Match on PUT, or a file system with hard links",
                )
        if failed:
            return Unsupported(
                "; ".join(f"{check.name}: {check.detail}" for check in failed.values()),
                code="store.unsupported",
                hint="use another store, or report this to its maker",
            )
        if any(check.outcome == "denied" for check in self.checks):
            missing = ", ".join(self.permissions.missing) or "access"
            return Unavailable(f"not allowed: {missing}", code=Code.STORE_DENIED, hint="allow it, then probe again")
        return None


def name_folder() -> str:
    """Name a folder for one probe."""
    return f"_probe-{secrets.token_hex(8)}/"


def probe(store: Store, folder: str | None = None, *, pause: Callable[[], None] = lambda: None) -> ProbeResult:
    """Try all that the protocol needs below a folder of the probe's own, and remove what was written.

    ``store`` comes from ``open_unproven``. ``pause`` is called before every request but those that remove: what it
    raises ends the probe in order. An error that says nothing about what the store honours, such as no connection, is
    raised.
    """
    trial = _Trial(store, folder or name_folder(), pause)
    with _folders_removed(store.url):
        try:
            checks = [trial.check(*row) for row in _CHECKS]
        finally:
            left = trial.remove()
    return ProbeResult(
        url=store.url,
        checks=checks,
        permissions=trial.permissions(),
        latencies=[_latency(verb, seconds) for verb, seconds in trial.seconds.items()],
        left=left,
    )


def _latency(verb: str, seconds: Sequence[float]) -> Latency:
    median, longest = (round(1000 * value, 3) for value in (statistics.median(seconds), max(seconds)))
    return Latency(verb=verb, calls=len(seconds), median_ms=median, max_ms=longest)


class _Broken(Exception):
    """The store has answered something else than it should."""


class _Trial:
    """The verbs, timed, below a folder of their own; all that is written is remembered first."""

    def __init__(self, store: Store, folder: str, pause: Callable[[], None]) -> None:
        self.store, self.folder = store, folder
        self.seconds: dict[str, list[float]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._verbs: dict[str, set[Outcome]] = {}
        self._pause = pause
        self._written: set[str] = set()

    def check(self, name: str, verb: str, needs: Sequence[str], act: Callable[[_Trial], None]) -> Check:
        """Do one check, unless one that it builds on has not gone well."""
        outcome: Outcome = "ok"
        detail = None
        unmet = [need for need in needs if self.outcomes[need] != "ok"]
        if unmet:
            outcome, detail = "skipped", f"needs: {', '.join(unmet)}"
        else:
            try:
                act(self)
            except _Broken as broken:
                outcome, detail = "failed", str(broken)
            except SlackwaterError as error:
                if error.code == Code.STORE_DENIED:
                    outcome = "denied"
                elif isinstance(error, Corrupt | Unsupported) or _says_no(error):
                    outcome = "failed"
                else:
                    raise
                detail = error.message
            self._verbs.setdefault(verb, set()).add(outcome)
        self.outcomes[name] = outcome
        return Check(name=name, outcome=outcome, detail=detail)

    def permissions(self) -> Permissions:
        """Name what the store's kind needs to be allowed, and what of it was denied."""
        by_verb = _PERMISSIONS.get(urlsplit(self.store.url).scheme, {})
        missing = [name for verb, name in by_verb.items() if "denied" in self._verbs.get(verb, ())]
        unknown = [name for verb, name in by_verb.items() if verb not in self._verbs]
        return Permissions(needed=list(by_verb.values()), missing=missing, unknown=unknown)

    def timed(self, verb: str, act: Callable[[], _T]) -> _T:
        self._pause()
        began = time.perf_counter()
        try:
            return act()
        finally:
            self.seconds.setdefault(verb, []).append(time.perf_counter() - began)

    def get(self, name: str, *, offset: int = 0, size: int | None = None) -> bytes:
        return self.timed("get", lambda: self.store.get(self.folder + name, offset=offset, size=size))

    def put(self, name: str, data: bytes) -> None:
        with self._remembered(name) as key:
            self.timed("put", lambda: self.store.put(key, data))

    def create(self, name: str, data: bytes) -> bool:
        with self._remembered(name) as key:
            return self.timed("create", lambda: self.store.create(key, data))

    def move(self, source: str, target: str) -> None:
        with self._remembered(target) as key:
            self.timed("move", lambda: self.store.move(self.folder + source, key))

    def delete(self, names: Sequence[str]) -> None:
        self.timed("delete", lambda: self.store.delete([self.folder + name for name in names]))

    def list(self, inside: str = "", after: str | None = None) -> dict[str, int]:
        behind = None if after is None else self.folder + after
        listed = self.timed("list", lambda: self.store.list(self.folder + inside, after=behind))
        return {one.key.removeprefix(self.folder): one.size_bytes for one in listed}

    def is_missing(self, name: str) -> bool:
        try:
            self.get(name)
        except NotFound as error:
            if error.code == Code.STORE_NOT_FOUND:
                return True
            raise
        return False

    @contextmanager
    def _remembered(self, name: str) -> Iterator[str]:
        key = self.folder + name
        fresh = key not in self._written
        self._written.add(key)
        try:
            yield key
        except SlackwaterError as error:
            if fresh and error.code == Code.STORE_DENIED:
                self._written.discard(key)
            raise

    def remove(self) -> Names:
        """Remove everything, and return what is there all the same."""
        keys = sorted(self._written)
        if not keys:
            return []
        try:
            self.store.delete(keys)
        except SlackwaterError as error:
            if error.code != Code.STORE_DENIED:
                raise Unavailable(
                    f"what the probe wrote may still be there: {error.message}",
                    code=Code.STORE_UNAVAILABLE,
                    hint=f"remove the folder {self.folder} from {self.store.url}",
                ) from error
            removed = False
        else:
            removed = True
        try:
            return [listed.key for listed in self.store.list(self.folder)]
        except SlackwaterError:
            return [] if removed else keys


def _says_no(error: SlackwaterError) -> bool:
    """Tell the answer of a server that will never do what was asked from one that may do it later."""
    status = error.details.get("status", 0)
    return error.code == Code.STORE_NOT_FOUND or 400 <= status < 500 or status == 501


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Broken(otherwise)


def _list_nothing(trial: _Trial) -> None:
    _require(trial.list() == {}, "a folder that is not there lists objects")


def _put(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        trial.put(f"put/{number}", b"%d" % number * 100)


def _read_after_write(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        _require(trial.get(f"put/{number}") == b"%d" % number * 100, "other bytes are read than were written")


def _read_after_overwrite(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        trial.put("put/0", new := b"%d" % number * (number + 1))
        _require(trial.get("put/0") == new, "an older content is read after an overwrite")


def _range(trial: _Trial) -> None:
    trial.put("range", b"0123456789")
    try:
        part = trial.get("range", offset=3, size=4)
    except Unavailable:
        trial.get("range")  # fails too where the reason is another one
        raise _Broken("a range is refused, or answered with the whole object") from None
    _require(part == b"3456", "a range returns other bytes")
    _require(trial.get("range", offset=7) == b"789", "the end of an object is not what it should be")
    with suppress(Corrupt):
        trial.get("range", offset=8, size=5)
        raise _Broken("a range past the end is answered as if it were whole")


def _missing(trial: _Trial) -> None:
    _require(trial.is_missing("never"), "an object that was never written can be read")


def _create(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        # A retry inside may have been told of what the first try wrote; then the object is there all the same.
        created = trial.create(f"create/{number}", b"first")
        _require(created or not trial.is_missing(f"create/{number}"), "a create of a free name is refused")


def _create_taken(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        won = trial.create(f"create/{number}", b"second")
        _require(not won, "an object that was to be created only if absent was overwritten")
    if trial.outcomes[_READ] == "ok":
        _require(trial.get("create/0") == b"first", "a create that was refused has changed the object")


def _create_race(trial: _Trial) -> None:
    with ThreadPoolExecutor(_CONTENDERS) as pool:
        for race in range(_RACES):
            gate = threading.Barrier(_CONTENDERS)

            def contend(mine: bytes, name: str = f"race/{race}", gate: threading.Barrier = gate) -> bool:
                gate.wait()
                return trial.create(name, mine)

            minds = [b"%d" % number for number in range(_CONTENDERS)]
            winners = [mine for mine, won in zip(minds, pool.map(contend, minds), strict=True) if won]
            _require(len(winners) <= 1, f"{len(winners)} of {_CONTENDERS} concurrent creates of one name have won")
            if trial.outcomes[_READ] == "ok":
                there = trial.get(f"race/{race}")
                _require(there in (winners or minds), "the object is not that of the create that has won")


def _list_after_write(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        trial.put(f"listed/{number}", bytes(number))
        expected = {f"listed/{before}": before for before in range(number + 1)}
        _require(trial.list("listed/") == expected, "a listing lacks what was just written, or has wrong sizes")


def _list_after_key(trial: _Trial) -> None:
    for number in range(_SAMPLES):
        found = sorted(trial.list("listed/", f"listed/{number}"))
        behind = [f"listed/{later}" for later in range(number + 1, _SAMPLES)]
        _require(found == behind, "a listing after a key does not begin right behind it")


def _list_folders(trial: _Trial) -> None:
    found = trial.timed("list", lambda: trial.store.list_folders(trial.folder))
    _require({"listed", "put"} <= set(found), "a folder is missing in the list of folders")


def _delete(trial: _Trial) -> None:
    trial.delete(["put/1"])
    _require(_are_missing(trial, ["put/1"]), "a deleted object can still be read")


def _are_missing(trial: _Trial, names: Sequence[str]) -> bool:
    """See that objects are gone, where the store tells what is missing."""
    return trial.outcomes[_MISSING] != "ok" or all(map(trial.is_missing, names))


def _delete_missing(trial: _Trial) -> None:
    trial.delete(["never"])
    trial.delete(["put/1"])


def _delete_bulk(trial: _Trial) -> None:
    names = [f"put/{number}" for number in range(2, _SAMPLES)]
    trial.delete([*names, "put/never"])
    _require(_are_missing(trial, names), "not all of several objects were deleted")


def _list_after_delete(trial: _Trial) -> None:
    _require(list(trial.list("put/")) == ["put/0"], "a listing still has what was deleted")


def _move(trial: _Trial) -> None:
    trial.put("source", b"moved")
    trial.move("source", "target")
    _require(trial.get("target") == b"moved" and trial.is_missing("source"), "a move has lost or kept the object")


_LIST, _PUT, _READ, _DELETE = "list", "put", "read after write", "delete"
_CREATE, _TAKEN, _RACE = "create", "create of a taken name", "concurrent creates"
_LISTED, _BULK, _MISSING = "list after write", "bulk delete", "missing object"

# Name, the verb whose permission it shows, the checks that it builds on, the check. The first one writes nothing: a
# store that cannot be reached is told before anything could be left in it.
_CHECKS: list[tuple[str, str, Sequence[str], Callable[[_Trial], None]]] = [
    (_LIST, "list", (), _list_nothing),
    (_PUT, "put", (), _put),
    (_READ, "get", (_PUT,), _read_after_write),
    ("read after overwrite", "get", (_READ,), _read_after_overwrite),
    ("ranges", "get", (_READ,), _range),
    # S3 denies a missing object, instead of saying so, to those who may not list.
    (_MISSING, "list", (_READ,), _missing),
    (_CREATE, "put", (_PUT,), _create),
    (_TAKEN, "put", (_CREATE,), _create_taken),
    (_RACE, "put", (_TAKEN,), _create_race),
    (_LISTED, "list", (_LIST, _PUT), _list_after_write),
    ("list after a key", "list", (_LISTED,), _list_after_key),
    ("list folders", "list", (_LISTED,), _list_folders),
    (_DELETE, "delete", (_PUT,), _delete),
    ("delete of a missing key", "delete", (_DELETE,), _delete_missing),
    (_BULK, "delete", (_DELETE,), _delete_bulk),
    ("list after delete", "list", (_LISTED, _BULK), _list_after_delete),
    ("move", "put", (_MISSING, _DELETE), _move),
]


@contextmanager
def _folders_removed(url: str) -> Iterator[None]:
    """Remove the folders above a disk's objects that were not there before."""
    made = []
    path = local_folder(url) or Path("/")
    while not os.path.lexists(path):
        made.append(path)
        path = path.parent
    try:
        yield
    finally:
        with suppress(OSError):  # somebody else uses it by now
            for folder in made:
                os.rmdir(folder)
