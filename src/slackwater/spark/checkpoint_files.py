"""The files that Spark writes into a checkpoint directory: bytes in, records out.

Only what capture needs is read. Every length is checked before anything is allocated by it. The ``path`` that decoders
take is for their errors.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import Annotated, BinaryIO, NoReturn, TypeVar

import lz4.block
import msgspec
from msgspec import Meta

from ..errors import Corrupt, Unsupported

MAX_LOG_BYTES = 16 * 1024 * 1024
_MAX_ZIP_MEMBERS = 10_000

# These become parts of file names.
UniqueId = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_SstName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]{0,199}\.sst$")]
_StoreName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.-]{0,199}$")]
_OperatorName = Annotated[str, Meta(min_length=1, max_length=200)]
_Version = Annotated[int, Meta(ge=1, le=2**53 - 1)]
_Bytes = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Number = Annotated[int, Meta(ge=0, le=1_000_000)]


# --- metadata


class _Query(msgspec.Struct):
    id: UniqueId


def decode_query_id(data: bytes, path: str) -> str:
    """Decode the id that a query keeps over its restarts."""
    return _json(data, _Query, path).id


# --- offsets/N


class OffsetLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What micro-batch N was to do. A source is its name (None in version 1) with its offset (None before any data)."""

    version: int
    watermark_ms: int
    conf: dict[str, str]
    sources: list[tuple[str | None, str | None]]


class _OffsetMetadata(msgspec.Struct):
    batchWatermarkMs: int = 0
    conf: dict[str, str] = {}


def decode_offsets(data: bytes, path: str) -> OffsetLogEntry:
    """Decode an entry of the offset log, of version 1 or 2."""
    version, text = _split_version(data, path, newest=2)
    first, _, rest = text.partition("\n")
    metadata = _json(first.encode() or b"{}", _OffsetMetadata, path)
    lines = rest.removesuffix("\n").split("\n") if rest else []
    sources: list[tuple[str | None, str | None]] = []
    for line in lines:
        name, colon, offset = line.partition(":") if version == 2 else (None, ":", line)
        if not colon or not offset or (name is not None and not 0 < len(name) <= 200):
            _malformed(path, "has a line that is no offset")
        sources.append((name, None if offset == "-" else offset))
    if len({name for name, _ in sources if name}) != len(sources) and version == 2:
        _malformed(path, "names a source twice")
    return OffsetLogEntry(
        version=version,
        watermark_ms=metadata.batchWatermarkMs,
        conf=metadata.conf,
        sources=sources,
    )


# --- commits/N


class CommitLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What micro-batch N left: per operator, partition and store the id of its state; None before format 2."""

    next_watermark_ms: int
    state_unique_ids: dict[int, list[list[str]]] | None


class _Commit(msgspec.Struct):
    nextBatchWatermarkMs: int = 0
    stateUniqueIds: dict[_Number, list[list[UniqueId]]] | None = None


def decode_commit(data: bytes, path: str) -> CommitLogEntry:
    """Decode an entry of the commit log, of version 1, 2 or 3."""
    version, text = _split_version(data, path, newest=3)
    commit = _json(text.encode(), _Commit, path)
    # Spark 4.0 wrote an empty map into version 1, too.
    ids = commit.stateUniqueIds if version > 1 else None
    return CommitLogEntry(next_watermark_ms=commit.nextBatchWatermarkMs, state_unique_ids=ids)


# --- state/<op>/_metadata


class StoreMetadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    schema_paths: list[str]


class OperatorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """An operator with its stores, in the order in which the commit log has their ids."""

    operator_id: int
    name: str
    stores: list[StoreMetadata]


class _OperatorInfo(msgspec.Struct):
    operatorId: _Number
    operatorName: _OperatorName


class _StoreInfo(msgspec.Struct):
    storeName: _StoreName
    numPartitions: _Number
    stateSchemaFilePaths: list[str] = []
    stateSchemaFilePath: str | None = None


class _OperatorMetadata(msgspec.Struct):
    operatorInfo: _OperatorInfo
    stateStoreInfo: list[_StoreInfo]


def decode_operator(data: bytes, path: str) -> OperatorMetadata:
    """Decode an operator's metadata, of version 1 or 2."""
    _, text = _split_version(data, path, newest=2)
    found = _json(text.encode(), _OperatorMetadata, path)
    if len({store.storeName for store in found.stateStoreInfo}) != len(found.stateStoreInfo):
        _malformed(path, "names a store twice")
    stores = [
        StoreMetadata(
            name=store.storeName,
            partitions=store.numPartitions,
            schema_paths=[*store.stateSchemaFilePaths, *filter(None, [store.stateSchemaFilePath])],
        )
        for store in found.stateStoreInfo
    ]
    return OperatorMetadata(
        operator_id=found.operatorInfo.operatorId, name=found.operatorInfo.operatorName, stores=stores
    )


# --- state/<op>/<partition>/V_<id>.changelog


class Ancestor(msgspec.Struct, frozen=True, rename={"unique_id": "checkpointUniqueId"}):
    """A version of a partition's state that a later one is built on."""

    version: _Version
    unique_id: UniqueId


# The blocks of lz4-java: magic, token (method, size class), then compressed size, size, checksum.
_BLOCK = struct.Struct("<8sBiiI")
_MAGIC = b"LZ4Block"
_RAW, _LZ4 = 0x10, 0x20


def decode_lineage(changelog: BinaryIO, codec: str, path: str) -> list[Ancestor]:
    """Read the versions that a changelog is built on, oldest first, and no more of the file than that."""
    if codec != "lz4":
        raise Unsupported(
            f"the state is compressed with {codec[:40]!r}, and only lz4 is read",
            code="spark.unsupported",
            hint='begin anew with .config("spark.sql.streaming.stateStore.compression.codec", "lz4")',
        )
    stream = _Blocks(changelog, path)
    version = stream.take_utf()
    if version not in (b"v3", b"v4"):
        _malformed(path, "has no lineage")
    return _json(stream.take_utf(), list[Ancestor], path)


class _Blocks:
    """The content of lz4-java's blocks, decompressed one by one as it is asked for."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._ahead = b""

    def take_utf(self) -> bytes:
        """Take a string as Java's writeUTF writes it: at the most 65,535 bytes."""
        return self._take(int.from_bytes(self._take(2)))

    def _take(self, size: int) -> bytes:
        while len(self._ahead) < size:
            self._ahead += self._next_block()
        taken, self._ahead = self._ahead[:size], self._ahead[size:]
        return taken

    def _next_block(self) -> bytes:
        header = self._file.read(_BLOCK.size)
        if len(header) < _BLOCK.size:
            _malformed(self._path, "ends in its header")
        magic, token, stored_bytes, size_bytes, _ = _BLOCK.unpack(header)
        method, most = token & 0xF0, 1 << 10 + (token & 0x0F)
        # An empty block ends the stream; one of lz4 grows by 255 at the most, and none is kept that did not shrink.
        fits = 0 < size_bytes <= most and 0 < stored_bytes <= size_bytes <= 255 * stored_bytes
        if magic != _MAGIC or method not in (_RAW, _LZ4) or not fits:
            _malformed(self._path, "has a broken block")
        data = self._file.read(stored_bytes)
        if len(data) < stored_bytes:
            _malformed(self._path, "ends in its header")
        if method == _LZ4:
            try:
                data = lz4.block.decompress(data, uncompressed_size=size_bytes)
            except lz4.block.LZ4BlockError:
                _malformed(self._path, "has a broken block")
        if len(data) != size_bytes:
            _malformed(self._path, "has a broken block")
        return bytes(data)


# --- state/<op>/<partition>/V_<id>.zip


class SstFile(msgspec.Struct, frozen=True):
    """A file of sorted keys, by its name in the folder ``SSTs``."""

    name: str
    size_bytes: int


class _Sst(msgspec.Struct):
    localFileName: _SstName  # only checked: Spark makes a path of it
    dfsSstFileName: _SstName
    sizeBytes: _Bytes


class _Snapshot(msgspec.Struct):
    sstFiles: list[_Sst]
    logFiles: list[msgspec.Raw] | None = None


def decode_snapshot(file: BinaryIO, path: str) -> list[SstFile]:
    """Check a snapshot's zip, and read which SST files it needs beside itself."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MAX_ZIP_MEMBERS or any("/" in m.filename or ".." in m.filename for m in members):
                _malformed(path, "has members that RocksDB does not make")
            metadata = [member for member in members if member.filename == "metadata"]
            if len(metadata) != 1 or metadata[0].file_size > MAX_LOG_BYTES:
                _malformed(path, "has no metadata")
            if archive.testzip() is not None:
                _malformed(path, "has a damaged member")
            data = archive.read(metadata[0])
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error):
        _malformed(path, "is no whole zip")
    _, text = _split_version(data, path, newest=1)
    snapshot = _json(text.encode(), _Snapshot, path)
    if snapshot.logFiles:
        raise Unsupported(f"{path} needs a write-ahead log, which Spark 4.3 does not keep", code="spark.unsupported")
    return [SstFile(sst.dfsSstFileName, sst.sizeBytes) for sst in snapshot.sstFiles]


# --- all of them


T = TypeVar("T")


def _split_version(data: bytes, path: str, *, newest: int) -> tuple[int, str]:
    if len(data) > MAX_LOG_BYTES:
        _malformed(path, f"is larger than {MAX_LOG_BYTES} bytes")
    try:
        first, _, rest = data.decode().partition("\n")
    except UnicodeDecodeError:
        _malformed(path, "is not UTF-8")
    if first not in {f"v{version}" for version in range(1, newest + 1)}:
        if first[:1] == "v" and first[1:].isdecimal() and len(first) < 10:
            raise Unsupported(f"{path} has version {first}, newer than v{newest}", code="spark.unsupported")
        _malformed(path, "does not begin with its version")
    return int(first[1:]), rest


def _json(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _malformed(path, f"does not decode: {error}")


def _malformed(path: str, problem: str) -> NoReturn:
    raise Corrupt(
        f"Spark's file {path} {problem}",
        code="capture.damaged",
        hint="the working directory is damaged; start from the newest checkpoint",
    )
