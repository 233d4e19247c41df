"""The folder that a sink writes files to, as our store, Spark, delta-rs and the operating system name it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import Conflict, InvalidInput, Unavailable
from ..parallel import in_parallel
from ..settings import MIB, Settings
from ..store import Store, Stream, local_folder, open_store
from ..store.files import sync_file, sync_folder
from ..store.opening import allow_http
from ..store.translation import bad_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONCURRENCY = 8
# Storage options that delta-rs reads itself; all others are of the object_store crate, which is under our store too.
_TOTAL_TIMEOUT = "retry_timeout"
_OF_DELTA_RS_ALONE = (_TOTAL_TIMEOUT, "max_retries", "backoff_config", "delta_", "aws_s3_")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# How often a folder may be pruned by somebody else just before one is made in it.
_LOST_RACES = 100


class Target:
    """A folder, opened; nothing is read or written yet."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str]) -> None:
        lower = {name.lower(): value for name, value in options.items()}
        ours = {name: value for name, value in lower.items() if not name.startswith(_OF_DELTA_RS_ALONE)}
        settings = _deadlines(lower)
        self.store: Store = open_store(check_path(path), settings, **ours)
        self.url, self.total_timeout_s = self.store.url, settings.total_timeout_s
        scheme = self.url.partition(":")[0]
        self.local = local_folder(self.url)
        if scheme not in ("file", "s3", "gs"):
            raise InvalidInput(
                f"a sink cannot write to {self.url}: Spark's executors do not reach it by this URL",
                code="sink.invalid",
                hint="write a path, file:///path, s3://bucket/prefix or gs://bucket/prefix",
            )
        self.for_delta_rs = {} if scheme == "file" else _for_delta_rs(scheme, ours, settings) | lower

    def for_spark(self, key: str) -> str:
        """Name a key as Hadoop does, which takes a local path as it is, without percent-encoding."""
        if self.local is not None:
            return f"file://{self.local}/{key}"
        return f"{self.url}/{key}".replace("s3://", "s3a://", 1)

    @contextmanager
    def scratch(self, session: SparkSession) -> Iterator[Target]:
        """Give the target that Spark writes to: this one, or for a cloud a folder here, to be uploaded from.

        Spark has no client for S3 unless it is given one, with settings and credentials of its own; where its executors
        are on this machine, it needs none. The folder is Spark's, which removes it when its JVM ends.
        """
        if self.local is not None or not (session.sparkContext.master or "").startswith("local"):
            yield self
            return
        from pyspark import SparkFiles  # noqa: PLC0415 - the sinks are opened without Spark too

        folder = Path(SparkFiles.getRootDirectory()) / f"slackwater-{secrets.token_hex(8)}"
        try:
            yield Target(folder, {})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def upload(self, scratch: Target, keys: Iterable[str]) -> None:
        """Put files of a scratch under their keys here."""

        def put(key: str) -> None:
            with scratch.disk_errors():
                file = _File(scratch, key)
            self.store.put(key, file)

        in_parallel([partial(put, key) for key in keys], CONCURRENCY)

    def sync(self, folder: str, files: Iterable[str] = (), *, may_be_gone: bool = False) -> None:
        """Make files, and the folders from ``folder`` up to the root, durable: executors and deletes do not sync."""
        if self.local is None:
            return
        with self.disk_errors():
            paths = [self.local / key for key in files]
            gone: tuple[type[OSError], ...] = (FileNotFoundError,) if may_be_gone else ()

            def sync(path: Path) -> None:
                with suppress(*gone):
                    sync_file(path)

            in_parallel([partial(sync, path) for path in paths], CONCURRENCY)
            path = self.local / folder
            while True:
                with suppress(FileNotFoundError):  # pruned, when its last object went
                    sync_folder(path)
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


class _File(Stream):
    """A file of a scratch on its way to the store. It is not mapped: a bad sector is an error then, and no signal."""

    def __init__(self, scratch: Target, key: str) -> None:
        self._scratch, self._path = scratch, f"{scratch.local}/{key}"
        self.size_bytes = os.stat(self._path).st_size

    def __iter__(self) -> Iterator[bytes]:
        left = self.size_bytes
        with self._scratch.disk_errors(), open(self._path, "rb", buffering=0) as file:
            while part := file.read(MIB):
                left -= len(part)
                yield part
        if left:
            raise unavailable(self._scratch.url, "a file has changed while it was uploaded")


def _deadlines(options: Mapping[str, str]) -> Settings:
    """Take the deadline of an operation with all its retries from the options; that of a request is obstore's own."""
    if _TOTAL_TIMEOUT not in options:
        return Settings()
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", options[_TOTAL_TIMEOUT])
    try:
        return msgspec.convert({"total_timeout_s": float(found[1]) * _UNITS_S[found[2]] if found else None}, Settings)
    except msgspec.ValidationError:
        raise bad_option(f"its {_TOTAL_TIMEOUT} is not a time", "write it as 120s or 2m; a day is the most") from None


def check_path(path: object) -> str:
    """Take a path or a URL as text."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidInput(
            f"a sink cannot write to {path!r:.100}, which is neither a path nor a URL",
            code="sink.invalid",
            hint='write it as text, like sw.DeltaSink("/lake/totals")',
        )
    return text


def _for_delta_rs(scheme: str, options: dict[str, str], settings: Settings) -> dict[str, str]:
    """Return the options that make delta-rs as patient as our store is, and as open to a server on this machine."""
    return {
        "timeout": f"{round(settings.request_timeout_s * 1000)}ms",
        "connect_timeout": "5s",
        _TOTAL_TIMEOUT: f"{round(settings.total_timeout_s * 1000)}ms",
        "max_retries": "1000",  # the time decides
        **allow_http(scheme, options),
    }


def unavailable(url: str, reason: str, **details: bool) -> Unavailable:
    return Unavailable(
        f"the sink at {url} could not be read or written: {reason}",
        code="sink.unavailable",
        hint="check that it can be reached and written to, then start again: what counts is committed first",
        **details,
    )


def other_pipeline(url: str, pipeline: str) -> Conflict:
    return Conflict(
        f"{url} has output of another pipeline under the name {pipeline!r}",
        code="sink.other_pipeline",
        hint="see that the store is the right one; a new pipeline takes a new address, or its rows come beside those; "
        "if the store of the older one is lost on purpose, pass take_over=True to the sink once: it then adds to them",
    )


def shared(taken: str) -> InvalidInput:
    return InvalidInput(
        f"{taken} already, and can be no other",
        code="sink.invalid",
        hint="make a sink object of its own for each .to(…) of each pipeline; they may have one address",
    )
