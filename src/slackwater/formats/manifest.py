"""Manifest version 3: the JSON that lists everything a checkpoint needs, each with key, size and digest.

Field by field in ``docs/spec/manifest.md``. A manifest is canonical JSON (sorted keys); its SHA-256 is in the log
record, so nothing in it can change unseen. Required fields are required and unknown ones refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, NoReturn

import msgspec
from msgspec import Meta

from ..errors import Corrupt, InvalidInput
from .ids import CheckpointId, Count, Name, RandomId, Sha256
from .keys import ArtifactKey, BatchKey, are_artifact_keys, check_path, check_paths, parse_key
from .query import Query
from .sealed import unknown_version

VERSION: Final = 3
# The file in which a program that is not Spark keeps its offsets, beside its state.
OFFSETS_FILE = "offsets.json"
# The file in which a keyed pipeline keeps its figures, beside its tables.
KEYED_FILE = "metadata.json"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024

Index = Annotated[int, Meta(ge=0, le=1_000_000)]
# A SHA-256 of which a manifest may have thousands: that their digits are such is looked at for all of them together.
Digest = Annotated[str, Meta(min_length=64, max_length=64)]
# Whose a checkpoint is: a Spark query's, a program's, a keyed pipeline's, or another system's.
Kind = Literal["spark", "program", "keyed", "imported"]
# A whole number that may be negative or past 2^53 - 1, as text.
WideNumber = Annotated[str, Meta(pattern=r"^(0|-?[1-9][0-9]{0,19})\Z")]


class Object(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A stored object that the checkpoint needs, of its own or of an older checkpoint.

    A ``batch`` is referenced whole, with its digest; its own index says what is inside. An ``object`` is one
    partition's files, one after the other: each file that is needed has its range and digest. The whole has one too,
    for files that are no longer needed.
    """

    key: str
    kind: Literal["batch", "object"]
    sha256: Digest
    size_bytes: Count


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One file of the working directory: inline, or in an object at an offset, or in a batch under its path."""

    inline: str | None = None
    object: Index | None = None
    offset: Count | None = None
    path: str
    sha256: Digest
    size_bytes: Count


class Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The state of one partition of one store: ``files``, and all that the batches hold below ``path``."""

    files: list[File]
    kind: Literal["snap", "delta"]
    partition: Index
    path: str
    size_bytes: Count
    unique_id: Name
    version: Count


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    operator_id: Index
    operator_name: Name
    partitions: list[Partition]
    size_bytes: Count
    store: Name


class SourcePosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a source stands: as plain pairs for tools, and verbatim for Spark. ``metadata`` are the connector's."""

    metadata: dict[str, str]
    offsets: dict[str, str]
    source_type: Name
    verbatim: str


class SinkOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sink has staged for this epoch; the descriptors are the sink's own words."""

    address: str
    can_undo: bool
    descriptors: list[dict[str, Any]]
    kind: Name


class RolledBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a rollback: the checkpoint whose content this one has, and the sinks that keep their rows all the same.

    ``unsettled``, of a repair alone: sinks may lack the target's output, so its descriptors are here, committed first.
    """

    keep: list[Name]
    to_epoch: Count
    to_id: CheckpointId
    unsettled: bool = False


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a checkpoint that was imported: the checkpoint of the other system, and the digest of its manifest."""

    checkpoint_id: Name
    epoch: Count
    format: Name
    manifest_sha256: Sha256
    pipeline_hash: WideNumber | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checkpoint_id: CheckpointId
    created_at_ms: Count
    epoch: Count
    files: list[File]
    micro_batch: Count
    objects: list[Object]
    operators: dict[str, Operator]
    origin: Origin | None
    parent_id: CheckpointId | None
    pipeline: Name
    pipeline_hash: Sha256 | None
    query: Query | None
    rollback: RolledBack | None
    sink_epochs: dict[str, Count]
    sink_names: list[Name]
    sinks: dict[str, SinkOutput]
    source_names: list[Name]
    source_offsets: dict[str, SourcePosition]
    source_watermarks: dict[str, WideNumber]
    table_offsets: dict[str, SourcePosition]
    table_store_path: str | None
    total_size_bytes: Count
    uid: RandomId
    version: Literal[3]
    vnode_count: Index | None
    watermark_ms: Count


class _Versioned(msgspec.Struct):
    version: int


_decoder = msgspec.json.Decoder(Manifest)
_version_decoder = msgspec.json.Decoder(_Versioned)


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest to its canonical bytes; one that could not be read again is refused before it can count."""
    validate(manifest)
    try:
        # The fields of every struct are declared in the order of their names, which is quicker than to sort them.
        data = msgspec.json.encode(manifest, order="deterministic")
        sinks = _decode(data).sinks
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the manifest could not be read again: {error}", code="checkpoint.unwritable") from None
    # The descriptors alone are whatever a sink has said; all else is typed.
    if changed := [name for name, output in manifest.sinks.items() if sinks[name] != output]:
        raise InvalidInput(
            f"the descriptors of the sink {changed[0]!r} would not be read as they were written",
            code="checkpoint.unwritable",
            hint="let it describe what it has staged by text, finite numbers, lists and dictionaries by text",
        )
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInput(
            f"the manifest takes {len(data)} bytes, the limit is {MAX_MANIFEST_BYTES}", code="checkpoint.unwritable"
        )
    return data


def decode(data: bytes, *, sha256: str, checkpoint_id: str) -> Manifest:
    """Decode a manifest whose digest the log vouches for, and check that its parts agree."""
    if len(data) > MAX_MANIFEST_BYTES or hashlib.sha256(data).hexdigest() != sha256:
        raise Corrupt(
            f"the manifest of checkpoint {checkpoint_id} is not the one that the log names",
            code="object.damaged",
            hint="slackwater verify URL",
            checkpoint_id=checkpoint_id,
        )
    try:
        manifest = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            version = _version_decoder.decode(data).version
            if version != VERSION:
                raise unknown_version("the manifest", version, VERSION, code="format.unknown_version") from None
        raise Corrupt(f"the manifest does not decode: {error}", code="manifest.invalid") from None
    if manifest.checkpoint_id != checkpoint_id:
        raise Corrupt(f"the manifest of {checkpoint_id} names {manifest.checkpoint_id}", code="manifest.invalid")
    validate(manifest)
    return manifest


def _decode(data: bytes) -> Manifest:
    manifest = _decoder.decode(data)
    digests = [entry.sha256 for entry in manifest.objects]
    digests += [file.sha256 for file in all_files(manifest)]
    if "".join(digests).encode().translate(None, b"0123456789abcdef"):
        raise msgspec.ValidationError("Expected SHA-256 digests in lower-case hex")
    return manifest


def validate(manifest: Manifest) -> None:
    """Check what the types cannot say: that every reference leads somewhere, and nothing is there twice."""

    def fail(what: str) -> NoReturn:
        raise Corrupt(f"the manifest of {manifest.checkpoint_id} {what}", code="manifest.invalid")

    def need(holds: bool, what: str) -> None:
        if not holds:
            fail(what)

    # What is there by the thousands is looked at without a call for each.
    keys = [entry.key for entry in manifest.objects]
    need(len(set(keys)) == len(keys), "names an object twice")
    artifacts_named = are_artifact_keys([entry.key for entry in manifest.objects if entry.kind == "object"])
    for entry in manifest.objects:
        if entry.kind == "object" and artifacts_named:
            continue
        key = parse_key(entry.key)
        need(isinstance(key, BatchKey if entry.kind == "batch" else ArtifactKey), f"misnames the object {entry.key}")
    files = all_files(manifest)
    paths = [file.path for file in files]
    need(len(set(paths)) == len(paths), "names a file twice")
    check_paths(paths)
    for file in _misplaced(files, manifest.objects):
        fail(f"does not say where {file.path} is" if file.object is None else f"misplaces {file.path}")
    for operator in manifest.operators.values():
        numbers = [partition.partition for partition in operator.partitions]
        need(numbers == list(range(len(numbers))), f"skips or repeats a partition of {operator.operator_name}")
        for partition in operator.partitions:
            left = partition.size_bytes
            for file in partition.files:
                left -= file.size_bytes
            if left < 0:
                fail(f"has more files in {partition.path} than its size")
        need(_size(operator.partitions) == operator.size_bytes, f"sums up {operator.operator_name} wrongly")
    folders = [partition.path for operator in manifest.operators.values() for partition in operator.partitions]
    need(len(set(folders)) == len(folders), "names a partition's folder twice")
    check_paths(folders)
    total = _size(manifest.files) + _size(manifest.operators.values())
    need(total == manifest.total_size_bytes, f"names {total} bytes, and says {manifest.total_size_bytes}")
    sources = sorted(manifest.source_offsets)
    need(sources == sorted(manifest.source_names), "has sources without offsets, or offsets without sources")
    need(sorted(manifest.sinks) == sorted(manifest.sink_names), "has sinks without output, or output without sinks")
    need(manifest.source_watermarks.keys() <= set(sources), "has the watermark of a source that it does not name")
    newest = manifest.origin.epoch if manifest.origin else manifest.epoch
    need(all(epoch <= newest for epoch in manifest.sink_epochs.values()), "has a sink past its own epoch")
    if manifest.table_store_path is not None:
        check_path(manifest.table_store_path)
    if manifest.rollback is not None:
        need(manifest.rollback.to_epoch < manifest.epoch, "rolls back to itself, or forward")
        staged = any(sink.descriptors for sink in manifest.sinks.values())
        need(not staged or manifest.rollback.unsettled, "is a rollback, and has output to commit")


def _misplaced(files: Iterable[File], objects: list[Object]) -> Iterator[File]:
    """Find files that are not in exactly one place, or past the end of their object."""
    # A batch has no offsets: its files end before they begin.
    ends = [stored.size_bytes if stored.kind == "object" else -1 for stored in objects]
    for file in files:
        number, offset = file.object, file.offset
        if number is None:
            right = file.inline is not None and offset is None
        elif file.inline is not None or number >= len(ends):
            right = False
        elif offset is None:
            right = ends[number] < 0
        else:
            right = offset + file.size_bytes <= ends[number]
        if not right:
            yield file


def _size(parts: Iterable[File | Partition | Operator]) -> int:
    return sum([part.size_bytes for part in parts])


def all_files(manifest: Manifest) -> list[File]:
    """List every file that the manifest names one by one."""
    return [
        *manifest.files,
        *(f for op in manifest.operators.values() for partition in op.partitions for f in partition.files),
    ]


def decode_inline(file: File) -> bytes:
    """Decode and verify the bytes of an inline file."""
    try:
        data = base64.b64decode(file.inline or "", validate=True)
    except ValueError:
        data = b""
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise Corrupt(f"the inline file {file.path} is damaged", code="manifest.invalid")
    return data


def kind_of(manifest: Manifest) -> Kind:
    """Tell whose checkpoint it is. Spark keeps its offsets in a folder, and nothing in files of these names."""
    if manifest.origin is not None:
        return "imported"
    paths = {file.path for file in manifest.files}
    return "program" if OFFSETS_FILE in paths else "keyed" if KEYED_FILE in paths else "spark"


def vouch(manifest: Manifest, data: bytes) -> dict[str, Any]:
    """Say what a record says of a manifest that is stored as ``data``: the fields of a ``NewCheckpoint``."""
    return {
        "epoch": manifest.epoch,
        "checkpoint_id": manifest.checkpoint_id,
        "manifest_sha256": hashlib.sha256(data).hexdigest(),
        "manifest_size_bytes": len(data),
        "parent_id": manifest.parent_id,
    }


def references(manifest: Manifest) -> frozenset[str]:
    """Name every object that the checkpoint needs, its manifest apart."""
    return frozenset(entry.key for entry in manifest.objects)
