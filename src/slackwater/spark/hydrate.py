"""Hydrate: a checkpoint → a fresh working directory that Spark goes on from."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ..errors import Corrupt, InvalidInput, Unavailable
from ..formats.keys import check_path
from ..formats.manifest import Manifest
from ..keyed.format import is_keyed
from ..protocol.artifacts import Holdings, get_artifacts
from ..protocol.kinds import check_kind
from ..settings import Settings
from ..store import Store
from .capture import capture
from .checkpoint_files import OperatorMetadata, decode_operator

_NAMES_SCHEMAS = re.compile(r"state/\d+/_metadata/v2/\d+")
_unfinished: set[Path] = set()
_ending = threading.Event()
_PATIENCE_S = 2.0


def checkpoint_location(directory: Path) -> str:
    """Name a local directory as Spark's option ``checkpointLocation`` takes it: as it is, never percent-encoded.

    >>> checkpoint_location(Path("/tmp/50% of a b"))
    'file:///tmp/50% of a b'
    """
    return f"file://{directory}"


def hydrate(store: Store, manifest: Manifest, directory: Path, settings: Settings) -> Holdings:
    """Write a checkpoint's files, each verified, below ``directory``, and check that Spark will find all that it needs.

    The directory must be new or empty. It has its name only when it is whole: until then, and after a crash, what is
    written is in a hidden one beside it.
    """
    check_kind(manifest, "spark")
    return write_files(store, manifest, directory, settings, check_structure)


def write_files(
    store: Store,
    manifest: Manifest,
    directory: Path,
    settings: Settings,
    check: Callable[[Path, Manifest], None] | None = None,
) -> Holdings:
    """Write a checkpoint's files, each verified, below a directory that is new or empty; whole, or not at all."""
    directory = directory.resolve()
    partial: Path | None = None
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InvalidInput(
                f"{directory} is not empty, and Spark would mix what it finds there with the checkpoint"
                if directory.is_dir()
                else f"{directory} is a file, and a directory is needed",
                code="hydrate.not_empty",
                hint="name a directory that does not exist yet",
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        # Known before it is there: a signal may come at any point.
        partial = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.partial")
        _unfinished.add(partial)
        partial.mkdir()
        partial.chmod(0o755)
        holdings = get_artifacts(store, manifest, settings, _Writer(partial, directory).write)
        if check is not None:
            check(partial, manifest)
        partial.rename(directory)
    except BaseException as error:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
            _unfinished.discard(partial)
        if isinstance(error, OSError):
            raise _unwritable(directory, error) from error
        raise
    _unfinished.discard(partial)
    return holdings


def remove_unfinished() -> None:
    """Remove what is half written: for a process that must end before those who write can. They begin no other file."""
    _ending.set()
    for partial in list(_unfinished):
        deadline = time.monotonic() + _PATIENCE_S
        # One that has begun may put its file there while the others go.
        while partial.exists() and time.monotonic() < deadline:
            shutil.rmtree(partial, ignore_errors=True)


def check_structure(directory: Path, manifest: Manifest) -> None:
    """Resolve a hydrated directory as capture does, and see that it holds the manifest's state, all of it."""
    try:
        cut = capture(directory, manifest.micro_batch)
    except Corrupt as error:
        raise Corrupt(
            f"checkpoint {manifest.checkpoint_id} was restored, but is not whole: {error.message}",
            code="hydrate.not_whole",
            hint="restore another checkpoint; what this one was captured from must have been damaged",
        ) from error
    found = {
        operator.name: [
            (p.partition, p.path, p.version, p.unique_id, sum(file.size_bytes for file in p.files))
            for p in operator.partitions
        ]
        for operator in cut.operators
    }
    named = {
        name: [(p.partition, p.path, p.version, p.unique_id, p.size_bytes) for p in operator.partitions]
        for name, operator in manifest.operators.items()
        if not all(is_keyed(p.path) for p in operator.partitions)
    }
    if found != named:
        wrong = min(name for name in found.keys() | named.keys() if found.get(name) != named.get(name))
        raise Corrupt(
            f"the state of {wrong} that was restored is not what checkpoint {manifest.checkpoint_id} names",
            code="hydrate.state_differs",
            hint="slackwater verify URL --read-data",
        )
    # Reference tables lie beside; who opens them checks them.
    if {file.path for file in cut.files} != {file.path for file in manifest.files if not is_keyed(file.path)}:
        raise Corrupt(
            f"the files that were restored are not those that checkpoint {manifest.checkpoint_id} names",
            code="hydrate.files_differ",
            hint="slackwater verify URL --read-data",
        )


class _Writer:
    """Writes below one directory that nobody else has, and that will be named ``final``. Called from many threads."""

    def __init__(self, directory: Path, final: Path) -> None:
        self._directory, self._final = directory, final

    def write(self, path: str, parts: Iterator[bytes]) -> None:
        if _NAMES_SCHEMAS.fullmatch(check_path(path)):
            parts = iter([move_schema_paths(b"".join(parts), path, f"file:{self._final}")])
        if _ending.is_set():
            raise KeyboardInterrupt
        target = self._directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(parts)  # which holds one at a time


def move_schema_paths(data: bytes, path: str, root: str) -> bytes:
    """Point an operator's metadata at schema files below another root; all else stays byte for byte.

    Spark writes these paths in full, so that a directory that was moved does not start.
    """
    moved: list[str] = []
    for old in _schema_paths(decode_operator(data, path)):
        # The old root may hold such a folder too, so it ends before the last one.
        _, folder, rest = old.rpartition(f"/{path.partition('/_metadata/')[0]}/")
        if not folder:
            raise Corrupt(f"{path} names a schema outside of its own folder: {old[:200]}", code="hydrate.schema_path")
        moved.append(f"{root}{folder}{rest}")
        data = data.replace(msgspec.json.encode(old), msgspec.json.encode(moved[-1]))
    if _schema_paths(decode_operator(data, path)) != moved:
        raise Corrupt(f"{path} writes the path of a schema in a way that cannot be moved", code="hydrate.schema_path")
    return data


def _schema_paths(operator: OperatorMetadata) -> list[str]:
    return [path for store in operator.stores for path in store.schema_paths]


def _unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{directory} cannot be written: {error.strerror}",
        code="hydrate.unwritable",
        hint="see that this user may write there, and that the disk has room",
    )
