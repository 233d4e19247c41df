"""obstore's verbs, made alike across its stores."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from obstore import exceptions as foreign
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from ..durable import Buffer
from ..settings import MIB
from .translation import no_conditional_put

PAGE = 1000  # keys in one answer to a list, or in one bulk delete
ONE_PUT_BYTES = 64 * MIB
PART_BYTES = 16 * MIB
_PARTS_AT_ONCE = 4


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

    def __init__(self, objects: S3Store | GCSStore | AzureStore | MemoryStore, proof: Proof | None = None) -> None:
        self._objects = objects
        self._proof = proof

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
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

    def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        if sum(memoryview(buffer).nbytes for buffer in buffers) <= ONE_PUT_BYTES:
            self._objects.put(key, _joined(buffers), use_multipart=False)
        else:  # never joined: what is held beside the caller's buffers are the parts on their way
            parts = _cut(buffers)
            self._objects.put(key, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool:
        if self._proof:
            self._proof.see(self._see_a_create_refused)
        return self._create(key, _joined(buffers))

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._objects.put(key, data, mode="create", use_multipart=False)
        except (foreign.AlreadyExistsError, foreign.PreconditionError):
            return False
        return True

    def _see_a_create_refused(self) -> None:
        probe = f"_probe-{secrets.token_hex(8)}"
        self._objects.put(probe, b"", use_multipart=False)
        try:
            refused = not self._create(probe, b"")
        finally:
            self._objects.delete(probe)
        if not refused:
            raise no_conditional_put()

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        pages = self._objects.list(prefix or None, offset=after, chunk_size=PAGE)
        found = [(meta["path"], meta["size"]) for page in pages for meta in page]
        return [pair for pair in found if after is None or pair[0] > after]

    def list_folders(self, prefix: str) -> Sequence[str]:
        folders = self._objects.list_with_delimiter(prefix or None)["common_prefixes"]
        return [folder.rstrip("/").rsplit("/", 1)[-1] for folder in folders]

    def delete(self, keys: Sequence[str]) -> None:
        try:
            self._objects.delete(list(keys))
        except FileNotFoundError:  # where deletes are single requests, the first missing object stops them
            for key in keys:
                with suppress(FileNotFoundError):
                    self._objects.delete(key)

    def move(self, source: str, target: str) -> None:
        try:
            self._objects.copy(source, target)
        except FileNotFoundError:
            self._objects.head(target)
        else:
            self.delete([source])


def _joined(buffers: Sequence[Buffer]) -> bytes:
    """Return immutable bytes: ``memory:`` keeps the very buffer that it is given."""
    return bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)


def _cut(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), PART_BYTES):
            yield view[start : start + PART_BYTES]
