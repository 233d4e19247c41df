"""Artifacts on their way between a working directory and the store, both ways."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from ..errors import Corrupt, NotFound, Unavailable
from ..formats import batch
from ..formats.change import NOTHING_PACKED, Packed
from ..formats.keys import ArtifactKind, artifact_key, batch_key, check_path
from ..formats.manifest import (
    File,
    Manifest,
    Object,
    Operator,
    Partition,
    all_files,
    decode_inline,
)
from ..parallel import in_parallel
from ..settings import MIB, Settings
from ..store import Buffer, Store, Stream
from .cut import Cut, CutFile
from .placement import NewFile, plan_placement

# What one file on its way out holds in memory, and one on its way in. Out: hashed and written while a cache has it.
# In: a request each.
_OUT_BYTES = 1 * MIB
_IN_BYTES = 8 * MIB
# Large files beside the state are kept as partitions of this; no operator of Spark's has such a name.
_BESIDE = "files"


class Held(msgspec.Struct, frozen=True):
    """Where stored bytes of a file are: at an offset of an object, or (offset None) in a batch under its path."""

    object: Object
    offset: int | None
    sha256: str
    size_bytes: int


# Files by path that a checkpoint holds in objects, which its child may reference. Inline files are carried instead.
Holdings = Mapping[str, Held]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a manifest that says where everything is."""

    operators: dict[str, Operator]
    files: list[File]
    objects: list[Object]
    total_size_bytes: int
    new_bytes: int
    new_files: int
    new_file_bytes: int
    packed: Packed
    holdings: dict[str, Held]


def put_artifacts(store: Store, cut: Cut, checkpoint_id: str, parent: Holdings, settings: Settings) -> Stored:
    """Put what the parent does not hold, concurrently, and say where every file of the cut is."""
    groups = {partition.path: (op.name, partition) for op in cut.operators for partition in op.partitions}
    state = [(file, partition.path) for _, partition in groups.values() for file in partition.files]
    sources = {file.path: file for file in (*cut.files, *(file for file, _ in state))}
    new = [NewFile(file.path, file.size_bytes, None) for file in cut.files]
    new += [NewFile(file.path, file.size_bytes, group) for file, group in state if file.path not in parent]
    placement = plan_placement(new, settings)

    packed: list[Packed] = []

    def put_batch(number: int, paths: list[str]) -> dict[str, Held]:
        key = batch_key(checkpoint_id, number)
        data, index = batch.encode({path: _read(sources[path]) for path in paths})
        stored = Object(key=key, kind="batch", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        store.put(key, data)
        entries = index.values()
        before, after = sum(entry.size_bytes for entry in entries), sum(entry.stored_bytes for entry in entries)
        packed.append(Packed(batches=1, entries=len(index), bytes_before=before, bytes_after=after, puts=1))
        return {path: Held(stored, None, index[path].sha256, index[path].size_bytes) for path in paths}

    def put_object(operator: str, partition: int, kind: ArtifactKind, paths: list[str]) -> dict[str, Held]:
        key = artifact_key(checkpoint_id, operator, partition, kind)
        stream = _Files([sources[path] for path in paths])
        store.put(key, stream)
        stored = Object(key=key, kind="object", sha256=stream.sha256, size_bytes=stream.size_bytes)
        held, offset = {}, 0
        for file, sha256 in zip(stream.files, stream.sha256s, strict=True):
            held[file.path] = Held(stored, offset, sha256, file.size_bytes)
            offset += file.size_bytes
        return held

    jobs = [partial(put_batch, number, paths) for number, paths in enumerate(placement.batches)]
    for group, paths in placement.objects.items():
        operator, partition = groups[group]
        kind: ArtifactKind = "snap" if any(file.path in paths for file in partition.snapshot) else "delta"
        jobs.append(partial(put_object, operator, partition.partition, kind, paths))
    beside = _BESIDE
    while any(op.name == beside for op in cut.operators):  # of another system's, perhaps
        beside += "_"
    jobs += [partial(put_object, beside, number, "snap", [path]) for number, path in enumerate(placement.large)]
    holdings = {file.path: parent[file.path] for file, _ in state if file.path in parent}
    for held in in_parallel(jobs, settings.concurrency):
        holdings.update(held)
    inline = {path: _read(sources[path]) for path in placement.inline}
    # A file that went in and is not in the manifest would restore as an empty partition: refuse to go on.
    if lost := sources.keys() - holdings.keys() - inline.keys():
        raise Corrupt(f"{len(lost)} captured files were not stored, {min(lost)} among them", code="capture.damaged")
    operators, files, objects = _describe(cut, holdings, inline)
    placed = [file.size_bytes for file in new if file.group is not None]
    return Stored(
        operators=operators,
        files=files,
        objects=objects,
        total_size_bytes=sum(file.size_bytes for file in sources.values()),
        new_bytes=sum(stored.size_bytes for stored in objects if f"/{checkpoint_id}/" in stored.key),
        new_files=len(placed),
        new_file_bytes=sum(placed),
        packed=sum(packed, NOTHING_PACKED),
        holdings=holdings,
    )


def _describe(
    cut: Cut, holdings: dict[str, Held], inline: dict[str, bytes]
) -> tuple[dict[str, Operator], list[File], list[Object]]:
    objects = sorted({held.object.key: held.object for held in holdings.values()}.items())
    numbers = {key: number for number, (key, _) in enumerate(objects)}

    def describe(file: CutFile) -> File:
        if file.path in inline:
            data = inline[file.path]
            return File(
                path=file.path,
                sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data),
                inline=base64.b64encode(data).decode(),
            )
        held = holdings[file.path]
        return File(
            path=file.path,
            sha256=held.sha256,
            size_bytes=held.size_bytes,
            object=numbers[held.object.key],
            offset=held.offset,
        )

    def batched(file: CutFile) -> bool:
        return file.path in holdings and holdings[file.path].offset is None

    operators = {
        op.name: Operator(
            operator_id=op.operator_id,
            operator_name=op.operator_name,
            store=op.store,
            size_bytes=sum(partition.size_bytes for partition in op.partitions),
            partitions=[
                Partition(
                    partition=partition.partition,
                    path=partition.path,
                    kind="delta" if partition.deltas else "snap",
                    version=partition.version,
                    unique_id=partition.unique_id,
                    size_bytes=partition.size_bytes,
                    files=[describe(file) for file in partition.files if not batched(file)],
                )
                for partition in op.partitions
            ],
        )
        for op in cut.operators
    }
    return operators, [describe(file) for file in cut.files], [stored for _, stored in objects]


class _Files(Stream):
    """Files one after the other, digested on their way: the whole, and each."""

    def __init__(self, files: list[CutFile]) -> None:
        self.files, self.size_bytes = files, sum(file.size_bytes for file in files)
        self.sha256, self.sha256s = "", list[str]()

    def __iter__(self) -> Iterator[Buffer]:
        whole, self.sha256s = hashlib.sha256(), []
        for file in self.files:
            digest = hashlib.sha256() if len(self.files) > 1 else whole
            for part in _parts(file):
                digest.update(part)
                if digest is not whole:
                    whole.update(part)
                yield part
            self.sha256s.append(digest.hexdigest())
        self.sha256 = whole.hexdigest()


def _parts(file: CutFile) -> Iterator[Buffer]:
    """Read a file of a cut in parts, and see that it is there and has its size."""
    left = file.size_bytes
    for part in _slices(file.source) if isinstance(file.source, bytes) else _read_parts(file, file.source):
        left -= len(part)
        if left < 0:
            break
        yield part
    if left:
        raise Corrupt(f"{file.path} has changed while it was captured", code="capture.damaged")


def _slices(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[at : at + _OUT_BYTES] for at in range(0, len(view), _OUT_BYTES))


def _read_parts(file: CutFile, source: Path) -> Iterator[bytes]:
    try:
        with open(source, "rb", buffering=0) as opened:
            while part := opened.read(_OUT_BYTES):
                yield part
    except FileNotFoundError:
        raise Unavailable(
            f"{file.path} has gone from the working directory",
            code="folder.unavailable",
            hint="Spark has cleaned it up before it was stored: start again, with a larger minBatchesToRetain",
        ) from None
    except OSError as error:
        # Translated here: where it comes out, it would be taken for the store's.
        raise Unavailable(
            f"{file.path} cannot be read: {error.strerror}",
            code="folder.unavailable",
            hint="check the disk of the working directory, then start again",
        ) from error


def _read(file: CutFile) -> bytes:
    if isinstance(file.source, bytes) and len(file.source) == file.size_bytes:
        return file.source
    return b"".join(_parts(file))


# Takes a file's path, and its bytes in parts. The last part comes when the digest of them all is right, or not at all.
Write = Callable[[str, Iterator[bytes]], None]


def get_artifacts(store: Store, manifest: Manifest, settings: Settings, write: Write) -> Holdings:
    """Get every file of a checkpoint, verified, and hand each to ``write``; return what a child may reference."""
    folders = tuple(f"{p.path}/" for op in manifest.operators.values() for p in op.partitions)
    named = {file.path: file for file in all_files(manifest)}
    holdings: dict[str, Held] = {}

    def get_batch(stored: Object) -> None:
        for path, data, sha256 in read_batch(store, stored):
            file = named.get(check_path(path))
            mine = file is not None and file.object is not None and manifest.objects[file.object].key == stored.key
            if mine or (file is None and path.startswith(folders)):
                holdings[path] = Held(stored, None, sha256, len(data))
                write(path, iter([data]))

    def get_file(file: File) -> None:
        if file.object is None:
            write(file.path, iter([decode_inline(file)]))
        else:
            holdings[file.path] = Held(manifest.objects[file.object], file.offset, file.sha256, file.size_bytes)
            parts = read_range(store, manifest.objects[file.object], file)
            write(file.path, parts)
            for _ in parts:  # what is not written is verified all the same
                pass

    jobs = [partial(get_batch, stored) for stored in manifest.objects if stored.kind == "batch"]
    jobs += [partial(get_file, file) for file in named.values() if file.object is None or file.offset is not None]
    in_parallel(jobs, settings.concurrency)
    missing = [f.path for f in named.values() if f.object is not None and f.path not in holdings]
    if missing:
        raise Corrupt(f"{missing[0]} is not in the batch that the manifest names", code="object.damaged")
    return holdings


def read_batch(store: Store, stored: Object) -> Iterator[tuple[str, bytes, str]]:
    """Read a whole batch, verified: path, bytes and SHA-256 of each entry."""
    with _damage_named(stored.key):
        data = store.get(stored.key, max_bytes=stored.size_bytes)
    if len(data) != stored.size_bytes or hashlib.sha256(data).hexdigest() != stored.sha256:
        raise damaged(stored.key)
    index = batch.decode_index(data)
    for path, content in batch.decode(data).items():
        yield path, content, index[path].sha256


def read_range(store: Store, stored: Object, file: File) -> Iterator[bytes]:
    """Read one file out of a partition's object in parts; the last one comes only if the digest is right."""
    digest, left = hashlib.sha256(), file.size_bytes
    for part in get_parts(store, stored.key, file.offset or 0, file.size_bytes):
        digest.update(part)
        left -= len(part)
        if not left and digest.hexdigest() != file.sha256:
            raise damaged(stored.key)
        yield part
        del part  # or it would be held beside the next one


def check_object(store: Store, stored: Object, files: Iterable[File]) -> None:
    """Read a whole object in parts, and see that it is what manifests say of it and of the files in it."""
    ranges = {(file.offset or 0, (file.offset or 0) + file.size_bytes, file.sha256) for file in files}
    covered = 0
    for begin, end, _ in sorted(ranges):
        covered = max(covered, end) if begin <= covered else -1
    # Where the files are all that is in it, their digests are enough.
    if covered != stored.size_bytes:
        ranges.add((0, stored.size_bytes, stored.sha256))
    digests = [(begin, end, hashlib.sha256(), sha256) for begin, end, sha256 in ranges]
    at = 0
    for part in get_parts(store, stored.key, 0, stored.size_bytes, to_end=True):
        view = memoryview(part)
        for begin, end, digest, _ in digests:
            digest.update(view[max(begin - at, 0) : max(end - at, 0)])
        at += len(part)
        del part, view
    if any(digest.hexdigest() != sha256 for _, _, digest, sha256 in digests):
        raise damaged(stored.key)


def get_parts(store: Store, key: str, offset: int, size: int, *, to_end: bool = False) -> Iterator[bytes]:
    """Get a range in parts. If it goes ``to_end``, a byte too many is noticed like one too few."""
    end = offset + size
    for at in range(offset, max(end, offset + 1), _IN_BYTES):
        wanted = min(_IN_BYTES, end - at)
        with _damage_named(key):
            last = to_end and at + wanted == end
            part = store.get(key, offset=at, size=None if last else wanted, max_bytes=wanted)
        if len(part) != wanted:
            raise damaged(key)
        yield part
        del part


@contextmanager
def _damage_named(key: str) -> Iterator[None]:
    """A live checkpoint needs this object: that it is gone, cut or too long is damage."""
    try:
        yield
    except (NotFound, Corrupt) as error:
        raise damaged(key) from error


def damaged(key: str) -> Corrupt:
    return Corrupt(
        f"the object {key} is missing or damaged: it is not what the manifest describes",
        code="object.damaged",
        hint="slackwater verify URL --read-data names every damaged object and each checkpoint that needs it",
        key=key,
    )
