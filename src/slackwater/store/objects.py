"""obstore's verbs, made alike across its stores."""

from __future__ import annotations

import io
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from obstore import exceptions as foreign
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from ..settings import MIB
from .translation import is_broken, no_conditional_put
from .verbs import Buffer, Stream, size_of

PAGE = 1000  # keys in one answer to a list, or in one bulk delete
# What a put holds beside the caller's buffers: up to ONE_PUT_BYTES; by parts, those on their way and one that fills.
ONE_PUT_BYTES = 8 * MIB
PART_BYTES = 8 * MIB
_PARTS_AT_ONCE = 3
_BY_PARTS_AT_ONCE = 2
_LONGEST_PAUSE_S = 2.0
_T = TypeVar("_T")


class Proof:
    """That a store refuses to create what is there: seen once, before anything relies on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = False

    def see(self, look: Callable[[], None]) -> None:
        """Call ``look``, which raises when it sees something else; once it has not, never again."""
        with self._lock:
            if not self._seen:
                look()
                self._seen = True


class Objects:
    """obstore's verbs. With a ``proof`` nothing is created before the store is seen to honour the condition."""

    def __init__(
        self,
        objects: S3Store | GCSStore | AzureStore | MemoryStore,
        proof: Proof | None = None,
        total_timeout_s: float = 0.0,
    ) -> None:
        self._objects = objects
        self._proof = proof
        # Threads of their own, and few: the allocator keeps for each thread what a put by parts has needed.
        self._by_parts = ThreadPoolExecutor(_BY_PARTS_AT_ONCE, thread_name_prefix="slackwater-parts")
        self._total_timeout_s = total_timeout_s

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        return self._until_answered(lambda: self._get(key, offset, size, admit))

    def _get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        if size == 0:  # HTTP has no empty range
            admit(self._objects.head(key)["size"])
            return b""
        try:
            if size is not None:
                result = self._objects.get(key, options={"range": (offset, offset + size)})
            else:
                result = self._objects.get(key, options={"range": {"offset": offset}} if offset else None)
        except foreign.GenericError as error:
            # A range that begins at the end or after it is an error, worded by each store in its own way.
            if "range" not in str(error).lower() or admit(self._objects.head(key)["size"]):
                raise
            return b""
        admit(result.meta["size"])
        return bytes(result.bytes())

    def put(self, key: str, buffers: Sequence[Buffer] | Stream) -> None:
        if size_of(buffers) <= ONE_PUT_BYTES:
            self._objects.put(key, _joined(buffers), use_multipart=False)
        else:
            self._by_parts.submit(self._put_by_parts, key, buffers).result()

    def _put_by_parts(self, key: str, buffers: Iterable[Buffer]) -> None:
        """Put without joining. When a part is refused, or the buffers end in an error, obstore aborts the upload."""
        parts = _cut(buffers)
        self._objects.put(key, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool:
        if self._proof:
            self._proof.see(self._see_a_create_refused)
        return self._create(key, _joined(buffers))

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._until_answered(lambda: self._objects.put(key, data, mode="create", use_multipart=False))
        except (foreign.AlreadyExistsError, foreign.PreconditionError):
            return False
        return True

    def _see_a_create_refused(self) -> None:
        probe = f"_probe-{secrets.token_hex(8)}"
        self._objects.put(probe, b"", use_multipart=False)
        try:
            refused = not self._create(probe, b"")
        finally:
            self.delete([probe])
        if not refused:
            raise no_conditional_put()

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        def read() -> list[tuple[str, int]]:
            pages = self._objects.list(prefix or None, offset=after, chunk_size=PAGE)
            return [(meta["path"], meta["size"]) for page in pages for meta in page]

        found = self._until_answered(read)
        return [pair for pair in found if after is None or pair[0] > after]

    def list_folders(self, prefix: str) -> Sequence[str]:
        listed = self._until_answered(lambda: self._objects.list_with_delimiter(prefix or None))
        folders = listed["common_prefixes"]
        return [folder.rstrip("/").rsplit("/", 1)[-1] for folder in folders]

    def delete(self, keys: Sequence[str]) -> None:
        try:
            self._until_answered(lambda: self._objects.delete(list(keys)))
        except FileNotFoundError:  # where deletes are single requests, the first missing object stops them
            for key in keys:
                with suppress(FileNotFoundError):
                    self._until_answered(lambda key=key: self._objects.delete(key))  # type: ignore[misc]

    def move(self, source: str, target: str) -> None:
        try:
            self._until_answered(lambda: self._objects.copy(source, target))
        except FileNotFoundError:
            self._objects.head(target)
        else:
            self.delete([source])

    def remove_unfinished(self, prefix: str) -> int:
        """Do nothing: a server drops by itself what is not whole."""
        return 0

    def _until_answered(self, ask: Callable[[], _T]) -> _T:
        """Ask again when the connection broke or the answer was cut, where obstore gives up at once.

        That is for what does no harm when it is done twice; a create does none because its caller reads back.
        """
        return until_answered(ask, self._total_timeout_s, is_broken)


def _joined(buffers: Iterable[Buffer]) -> bytes:
    """Return immutable bytes: ``memory:`` keeps the very buffer that it is given."""
    if isinstance(buffers, Sequence) and len(buffers) == 1:
        return bytes(buffers[0])
    whole = io.BytesIO()  # b"".join would hold all parts of a stream beside the whole
    whole.writelines(buffers)
    return whole.getvalue()


def _cut(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), PART_BYTES):
            yield view[start : start + PART_BYTES]


def until_answered(ask: Callable[[], _T], total_timeout_s: float, broke: Callable[[Exception], bool]) -> _T:
    """Ask again, until an answer comes or the time is up; only for what does no harm when it is done twice."""
    deadline, pause_s = time.monotonic() + total_timeout_s, 0.1
    while True:
        try:
            return ask()
        except Exception as error:
            if not broke(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(random.uniform(pause_s / 2, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
