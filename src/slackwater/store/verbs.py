"""What a store can do, whatever kind it is."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from ..errors import InvalidInput

Buffer = bytes | bytearray | memoryview
# Names that no object has: our unfinished files, and those of obstore and delta-rs, which may share a folder on disk.
HIDDEN = re.compile(r"\..*\.tmp|[^#]*#(?:.*#)?[0-9]+", re.DOTALL)


class Listed(msgspec.Struct, frozen=True):
    """One object of a listing."""

    key: str
    size_bytes: int


class Requests(msgspec.Struct):
    """What a store was asked for, in requests as S3 counts them, without retries."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0

    def add(self, **counts: int) -> None:
        """Count more."""
        with _counting:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def snapshot(self) -> Requests:
        """Copy the counts of this moment."""
        with _counting:
            return Requests(*msgspec.structs.astuple(self))

    def __sub__(self, earlier: Requests) -> Requests:
        pairs = zip(msgspec.structs.astuple(self.snapshot()), msgspec.structs.astuple(earlier), strict=True)
        return Requests(*(now - then for now, then in pairs))


_counting = threading.Lock()


class Stream(Iterable[Buffer]):
    """Bytes that are made while they are written; whoever goes through it again gets all of them again.

    Their size is known before. A part is not changed after it was handed out.
    """

    size_bytes: int

    @abstractmethod
    def __iter__(self) -> Iterator[Buffer]: ...


def size_of(buffers: Sequence[Buffer] | Stream) -> int:
    if isinstance(buffers, Stream):
        return buffers.size_bytes
    return sum(memoryview(buffer).nbytes for buffer in buffers)


# Inside the class below, ``list`` is the verb.
Listing = list[Listed]
Names = list[str]


class Store(Protocol):
    """Objects below one root. Keys are relative, ``/`` between segments, encoded by the layout."""

    url: str
    requests: Requests

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        """Read an object, or exactly ``size`` bytes of it. More than ``max_bytes`` is refused before it is read."""

    def put(self, key: str, data: bytes | Sequence[Buffer] | Stream) -> None:
        """Write an object, over an older one. It is durable when this returns.

        A stream is never held whole when it is large. What it raises is raised here, and nothing is left of the object.
        """

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless its name is taken, and say whether it was written.

        Two creates of one name never both win. ``False`` does not say whose the object is: a retry inside may find what
        the first try wrote. ``Unavailable`` leaves the outcome open. In both cases read back and compare.
        """

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        """List the objects below the folder ``prefix``, sorted; only keys greater than ``after``.

        Use ``after`` on folders without folders inside: not every server sorts those as keys are sorted.
        """

    def list_names(self, prefix: str, *, after: str | None = None) -> Names:
        """List the names of the objects right below ``prefix``, sorted; only names greater than ``after``.

        On a disk it costs a fraction of ``list``, which asks for the size of each.
        """

    def list_folders(self, prefix: str) -> Names:
        """List the names of the folders right below ``prefix``, sorted. One that just fell empty may be among them."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. One that is missing is fine."""

    def move(self, source: str, target: str) -> None:
        """Rename an object. When the source is gone and the target is there, it was done before."""

    def remove_unfinished(self, prefix: str) -> int:
        """Remove what killed writers have left below the folder ``prefix``; return how many files went.

        A writer that is at work, and whose file is removed, writes it again. Servers drop by themselves what is not
        whole: there this does nothing.
        """


def check_key(key: str) -> str:
    """Return ``key`` when every store can hold it and it stays below the root."""
    parts = key.split("/")
    wrong = (
        "" in parts
        or "." in parts
        or ".." in parts
        or _NOT_IN_KEYS.search(key)
        or any(HIDDEN.fullmatch(part) or len(part.encode()) > 255 for part in parts)
        or len(key.encode()) > 1024
    )
    if wrong:
        raise InvalidInput(
            f"{key[:200]!r} cannot be the key of an object",
            code="store.invalid",
            hint="keys are relative, with segments of up to 255 bytes; build them with slackwater.formats.keys",
        )
    return key


# Control characters, the other systems' separator, and surrogates, which are no text.
_NOT_IN_KEYS = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")
