"""The folder that a sink writes to: as our store, Spark and the operating system name it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...artifacts import in_parallel
from ...errors import Conflict, InvalidInput, Unavailable
from ...store import Store, open_store

CONCURRENCY = 8
# How often a folder may be pruned by somebody else just before one is made in it.
_LOST_RACES = 100


class Target:
    """A folder, opened; nothing is read or written yet."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str]) -> None:
        self.store: Store = open_store(os.fspath(path), None, **options)
        self.url = self.store.url
        scheme = urlsplit(self.url).scheme
        self.local = Path(unquote(urlsplit(self.url).path)) if scheme == "file" else None
        if scheme not in ("file", "s3", "gs"):
            raise InvalidInput(
                f"a sink cannot write to {self.url}: Spark's executors do not reach it by this URL",
                code="sink.bad_target",
                hint="write a path, file:///path, s3://bucket/prefix or gs://bucket/prefix",
            )

    def for_spark(self, key: str) -> str:
        """Name a key as Hadoop does, which takes a local path as it is, without percent-encoding."""
        if self.local is not None:
            return f"file://{self.local}/{key}"
        return f"{self.url}/{key}".replace("s3://", "s3a://", 1)

    def sync(self, folder: str, files: Iterable[str] = (), *, may_be_gone: bool = False) -> None:
        """Make files, and the folders from ``folder`` up to the root, durable: executors and deletes do not sync."""
        if self.local is None:
            return
        with self.disk_errors():
            paths = [self.local / key for key in files]
            in_parallel([lambda path=path: _sync(path, may_be_gone) for path in paths], CONCURRENCY)  # type: ignore[misc]
            path = self.local / folder
            while True:
                _sync(path, may_be_gone=True)  # pruned, when its last object went
                if path == self.local:
                    return
                path = path.parent

    def make(self, folder: str) -> None:
        """Make a folder before executors write into it: those above it then are not empty, and nobody prunes them."""
        if self.local is None:
            return
        with self.disk_errors():
            for tried in range(_LOST_RACES):
                try:
                    (self.local / folder).mkdir(parents=True, exist_ok=True)
                    return
                except FileNotFoundError:
                    if tried == _LOST_RACES - 1:
                        raise

    def clear(self, folder: str) -> bool:
        """Delete a folder, and those above it that are empty then; say whether it is gone.

        It is not when a writer who does not know yet that it is fenced has just put something into it.
        """
        if self.local is None:
            self.store.delete([listed.key for listed in self.store.list(folder)])
            return True
        path = self.local / folder
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            return False
        with suppress(OSError):  # not empty
            while (path := path.parent) != self.local:
                path.rmdir()
        return True

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unavailable(self.url, error.strerror or type(error).__name__) from error


def unavailable(url: str, reason: str) -> Unavailable:
    return Unavailable(
        f"the sink at {url} could not be read or written: {reason}",
        code="sink.unavailable",
        hint="check that it can be reached and written to, then start again: what counts is committed first",
    )


def other_pipeline(url: str, pipeline: str) -> Conflict:
    return Conflict(
        f"{url} has output of another pipeline under the name {pipeline!r}",
        code="sink.other_pipeline",
        hint="give the pipeline another name or the sink another address; if the store of the older one is lost on "
        "purpose, pass take_over=True to the sink once: the new pipeline then adds to what is there",
    )


def shared(taken: str) -> InvalidInput:
    return InvalidInput(
        f"{taken} already, and can be no other",
        code="sink.shared",
        hint="make a sink object of its own for each .to(…) of each pipeline; they may have one address",
    )


def _sync(path: Path, may_be_gone: bool) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if may_be_gone:
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
