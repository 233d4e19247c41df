"""Hydrate: a checkpoint → a fresh working directory that Spark goes on from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import Corrupt
from ..formats.manifest import Manifest
from ..keyed.documents import is_keyed
from ..protocol.artifacts import Holdings
from ..protocol.directory import write_directory
from ..protocol.kinds import check_kind
from ..settings import Settings
from ..store import Store
from .capture import capture
from .checkpoint_files import OperatorMetadata, decode_operator

_NAMES_SCHEMAS = re.compile(r"state/\d+/_metadata/v2/\d+")


def checkpoint_location(directory: Path) -> str:
    """Name a local directory as Spark's option ``checkpointLocation`` takes it: as it is, never percent-encoded.

    >>> checkpoint_location(Path("/tmp/50% of a b"))
    'file:///tmp/50% of a b'
    """
    return f"file://{directory}"


def hydrate(
    store: Store, manifest: Manifest, directory: Path, settings: Settings, *, durable: bool = False
) -> Holdings:
    """Write a checkpoint into a directory that is new or empty, and check that Spark will find all that it needs.

    A working directory is thrown away, so it is not synced; what is to last is ``durable``.
    """
    check_kind(manifest, "spark")
    root = f"file:{directory.resolve()}"

    def rewrite(path: str, parts: Iterator[bytes]) -> Iterator[bytes]:
        return iter([move_schema_paths(b"".join(parts), path, root)]) if _NAMES_SCHEMAS.fullmatch(path) else parts

    return write_directory(
        store, manifest, directory, settings, durable=durable, check=check_structure, rewrite=rewrite
    )


def check_structure(directory: Path, manifest: Manifest) -> None:
    """Resolve a hydrated directory as capture does, and see that it holds the manifest's state, all of it."""
    try:
        cut = capture(directory, manifest.micro_batch)
    except Corrupt as error:
        raise Corrupt(
            f"checkpoint {manifest.checkpoint_id} was restored, but is not whole: {error.message}",
            code="restore.damaged",
            hint="restore another checkpoint; what this one was captured from must have been damaged",
        ) from error
    found = {
        operator.name: [(p.partition, p.path, p.version, p.unique_id, p.size_bytes) for p in operator.partitions]
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
            code="restore.damaged",
            hint="slackwater verify URL --read-data",
        )
    # Reference tables lie beside; who opens them checks them.
    if {file.path for file in cut.files} != {file.path for file in manifest.files if not is_keyed(file.path)}:
        raise Corrupt(
            f"the files that were restored are not those that checkpoint {manifest.checkpoint_id} names",
            code="restore.damaged",
            hint="slackwater verify URL --read-data",
        )


def move_schema_paths(data: bytes, path: str, root: str) -> bytes:
    """Point an operator's metadata at schema files below another root; all else stays byte for byte.

    Spark writes these paths in full, so that a directory that was moved does not start.
    """
    moved: list[str] = []
    for old in _schema_paths(decode_operator(data, path)):
        # The old root may hold such a folder too, so it ends before the last one.
        _, folder, rest = old.rpartition(f"/{path.partition('/_metadata/')[0]}/")
        if not folder:
            raise Corrupt(f"{path} names a schema outside of its own folder: {old[:200]}", code="restore.damaged")
        moved.append(f"{root}{folder}{rest}")
        data = data.replace(msgspec.json.encode(old), msgspec.json.encode(moved[-1]))
    if _schema_paths(decode_operator(data, path)) != moved:
        raise Corrupt(f"{path} writes the path of a schema in a way that cannot be moved", code="restore.damaged")
    return data


def _schema_paths(operator: OperatorMetadata) -> list[str]:
    return [path for store in operator.stores for path in store.schema_paths]
