"""The keys of objects: where each object of a pipeline is in its store. Built, parsed and checked here alone.

Keys are relative to the pipeline's own folder ``{store}/{pipeline}``, so a pipeline can be moved as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from ..errors import Corrupt, InvalidInput
from .ids import parse_checkpoint_id

LOG = "log/"
CHECKPOINTS = "checkpoints/"
LATEST = "checkpoints/_latest"
MAX_PATH_BYTES = 1024
_MAX_COMPONENT_BYTES = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Backslashes separate elsewhere; a lone surrogate is no text, and no file can have it in its name.
_NOT_IN_PATHS = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")

ArtifactKind = Literal["snap", "delta"]


class RecordKey(msgspec.Struct, frozen=True):
    number: int


class LatestKey(msgspec.Struct, frozen=True):
    pass


class ManifestKey(msgspec.Struct, frozen=True):
    checkpoint_id: str


class ArtifactKey(msgspec.Struct, frozen=True):
    checkpoint_id: str
    operator: str
    partition: int
    kind: ArtifactKind


class BatchKey(msgspec.Struct, frozen=True):
    checkpoint_id: str
    number: int


Key = RecordKey | LatestKey | ManifestKey | ArtifactKey | BatchKey


def format_name(name: str) -> str:
    """Format a name of the user's or of Spark's as one path component.

    >>> format_name("0-stateStoreSave"), format_name("a/b c")
    ('0-stateStoreSave', 'a%2Fb%20c')
    """
    if not isinstance(name, str) or not name or name in (".", "..") or _CONTROL.search(name):
        raise InvalidInput(
            f"{name!r} cannot be a name: it is not text, is empty, made of dots, or has control characters",
            code="name.invalid",
        )
    try:
        # "~" is safe to urllib, but not a character that every store keeps as it is.
        component = quote(name, safe="").replace("~", "%7E")
    except UnicodeEncodeError:
        raise InvalidInput(f"{name!r} cannot be a name: it is not valid Unicode", code="name.invalid") from None
    if component.startswith("."):  # Hidden files are not listed.
        component = f"%2E{component[1:]}"
    if len(component) > _MAX_COMPONENT_BYTES:
        raise InvalidInput(
            f"the name {name[:40]!r}… takes {len(component)} bytes, the limit is {_MAX_COMPONENT_BYTES}",
            code="name.invalid",
        )
    return component


def parse_name(component: str) -> str:
    """Parse a path component back; only the one way of writing a name is accepted, so no two keys share a name."""
    try:
        name = unquote(component, errors="strict")
        if format_name(name) == component:
            return name
    except (UnicodeDecodeError, InvalidInput):
        pass
    raise Corrupt(f"{component[:80]!r} is not a name that Slackwater writes", code="manifest.invalid")


def record_key(number: int) -> str:
    return f"{LOG}{number:020d}.json"


def checkpoint_folder(checkpoint_id: str) -> str:
    return f"{CHECKPOINTS}{parse_checkpoint_id(checkpoint_id)}/"


def manifest_key(checkpoint_id: str) -> str:
    return f"{checkpoint_folder(checkpoint_id)}manifest.json"


def artifact_key(checkpoint_id: str, operator: str, partition: int, kind: ArtifactKind) -> str:
    return f"{checkpoint_folder(checkpoint_id)}operators/{format_name(operator)}/partition-{partition}.{kind}"


def batch_key(checkpoint_id: str, number: int) -> str:
    return f"{checkpoint_folder(checkpoint_id)}batches/{number:020d}.lcb"


_RECORD = re.compile(r"log/([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"checkpoints/([^/]+)/(.+)")
_BATCH = re.compile(r"batches/([0-9]{20})\.lcb")
_PARTITION = re.compile(r"partition-(0|[1-9][0-9]{0,9})\.(snap|delta)")
_ARTIFACT = re.compile(rf"operators/([^/]+)/{_PARTITION.pattern}")


def parse_key(key: str) -> Key:
    """Parse any key that this module builds; everything else in the folder is foreign.

    >>> parse_key(batch_key("0192d3f0-7b7c-7000-8000-0123456789ab", 3)).number
    3
    """
    if key == LATEST:
        return LatestKey()
    if match := _RECORD.fullmatch(key):
        return RecordKey(int(match[1]))
    try:
        if match := _CHECKPOINT.fullmatch(key):
            checkpoint_id, rest = parse_checkpoint_id(match[1]), match[2]
            if rest == "manifest.json":
                return ManifestKey(checkpoint_id)
            if match := _BATCH.fullmatch(rest):
                return BatchKey(checkpoint_id, int(match[1]))
            if match := _ARTIFACT.fullmatch(rest):
                kind: ArtifactKind = "snap" if match[3] == "snap" else "delta"
                return ArtifactKey(checkpoint_id, parse_name(match[1]), int(match[2]), kind)
    except InvalidInput:
        pass
    raise Corrupt(f"{key[:120]!r} is not a key of a pipeline's folder", code="manifest.invalid")


def are_artifact_keys(keys: Sequence[str]) -> bool:
    """Tell whether all of these are keys of artifacts. Many share a folder, and each folder is parsed once."""
    split = [key.rpartition("/") for key in keys]
    try:
        for folder in {folder for folder, _, _ in split}:
            parse_key(f"{folder}/partition-0.snap")
    except Corrupt:
        return False
    return all(map(_PARTITION.fullmatch, [name for _, _, name in split]))


def record_name(number: int) -> str:
    """Name a record within the folder of the log."""
    return record_key(number).removeprefix(LOG)


def parse_record_name(name: str) -> int | None:
    """Parse the number of a record; a stray file is not a record, and decides nothing.

    >>> parse_record_name(record_name(7)), parse_record_name("notes.txt")
    (7, None)
    """
    match = _RECORD.fullmatch(LOG + name)
    return int(match[1]) if match else None


def check_paths(paths: Sequence[str]) -> None:
    """Check many paths, as one text first: that is fast, and nearly always enough."""
    text = f"/{'/'.join(paths)}/"
    hostile = any(part in text for part in ("//", "/./", "/../", "\\")) or not text.isprintable()
    # A character takes at most four bytes.
    if paths and (hostile or max(map(len, paths)) > MAX_PATH_BYTES // 4):
        for path in paths:
            check_path(path)


def check_path(path: str) -> str:
    """Check a relative path that was read from storage, before it is joined to any folder."""
    parts = path.split("/")
    hostile = _NOT_IN_PATHS.search(path) or any(part in ("", ".", "..") for part in parts)
    if hostile or len(path.encode()) > MAX_PATH_BYTES:
        raise Corrupt(f"the path {path[:80]!r} is not a plain relative path", code="manifest.invalid")
    return path
