"""Capture: Spark's working directory → a cut, its structure checked.

Called once ``commits/N`` is there. The state that micro-batch N left has version N + 1. Its files never change, but
Spark's maintenance may delete them when a newer snapshot has taken their place. Nothing is derived from listing state
folders: the commit log names the ids, a changelog its ancestors, a snapshot its SST files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import Corrupt, Unavailable, Unsupported
from ..formats.manifest import SourcePosition
from ..protocol.cut import Cut, CutFile, CutOperator, CutPartition
from . import checkpoint_files as files
from .checkpoint_files import Ancestor, OffsetLogEntry, OperatorMetadata
from .session import REQUIRED

_LOOKS = 3
_MAX_DEPTH = 32
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_PARTITIONS = "spark.sql.shuffle.partitions"
_WANTED = "begin anew with " + "".join(f'.config("{key}", "{value}")' for key, value in REQUIRED.items())


def capture(directory: Path, micro_batch: int, source_types: Sequence[str] = ()) -> Cut:
    """Find every file that Spark needs to go on after ``micro_batch``, which it has committed."""
    for _ in range(_LOOKS - 1):
        # What is missing may just have been replaced by a newer snapshot, so it is looked for again.
        with suppress(Corrupt):
            return _look(directory, micro_batch, source_types)
    return _look(directory, micro_batch, source_types)


def _look(directory: Path, micro_batch: int, source_types: Sequence[str]) -> Cut:
    try:
        return _Look(directory, micro_batch).cut(source_types)
    except FileNotFoundError as error:
        path = os.path.relpath(error.filename, directory)
        raise Corrupt(
            f"the working directory lacks {path}, which Spark needs to go on after micro-batch {micro_batch}",
            code="capture.damaged",
            hint="start from the newest checkpoint",
            path=path,
        ) from None
    except OSError as error:
        raise Unavailable(
            f"the working directory cannot be read: {error.strerror}",
            code="folder.unavailable",
            hint=f"see that this user can read all of {directory}",
        ) from error


class _Look:
    """One look at a directory that Spark may be working in."""

    def __init__(self, directory: Path, micro_batch: int) -> None:
        self._root = str(directory)
        self._micro_batch = micro_batch

    def cut(self, source_types: Sequence[str]) -> Cut:
        number = self._micro_batch
        # Spark reads the micro-batch before, too, when it starts: both must decode, and so must the query's id.
        offset_logs = [f"offsets/{n}" for n in (number - 1, number) if n >= 0]
        commit_log = f"commits/{number}"
        offsets = [files.decode_offsets(self._read(path), path) for path in offset_logs][-1]
        commit = files.decode_commit(self._read(commit_log), commit_log)
        files.decode_query_id(self._read("metadata"), "metadata")
        self._check_offsets_follow()
        sources = dict(_position(i, offsets, source_types) for i in range(len(offsets.sources)))
        operators, described = self._operators(commit.state_unique_ids, offsets)
        watermark_ms = commit.next_watermark_ms if commit.next_watermark_ms >= 0 else offsets.watermark_ms
        return Cut(
            micro_batch=number,
            watermark_ms=max(0, watermark_ms),
            sources=sources,
            operators=operators,
            files=[
                self._file(path)
                for path in ("metadata", *offset_logs, commit_log, *described, *self._source_logs(sources))
            ],
        )

    def _check_offsets_follow(self) -> None:
        """See that the offset log has no hole after this micro-batch: Spark would not start on one."""
        numbers = sorted(int(name) for name in self._names("offsets") if name.isdecimal())
        later = [number for number in numbers if number > self._micro_batch]
        for expected, found in zip(count(self._micro_batch + 1), later, strict=False):
            if expected != found:
                raise Corrupt(f"offsets/{found} is there, but not offsets/{expected}", code="capture.damaged")

    # --- operators

    def _operators(
        self, ids: dict[int, list[list[str]]] | None, offsets: OffsetLogEntry
    ) -> tuple[list[CutOperator], list[str]]:
        """Resolve the state of every operator, and name the files that describe it."""
        numbers = {int(name) for name in self._names("state", missing_is_empty=True) if name.isdecimal()}
        if numbers and ids is None:
            raise Unsupported(
                "Spark keeps this state under names that it writes again, so no checkpoint of it can be trusted",
                code="spark.unsupported",
                hint=_WANTED,
            )
        ids = ids or {}
        if missing := numbers - ids.keys():
            raise Corrupt(f"commits/{self._micro_batch} has no ids for state/{min(missing)}", code="capture.damaged")
        if missing := ids.keys() - numbers:
            raise Corrupt(f"there is no folder state/{min(missing)}", code="capture.damaged")
        operators: list[CutOperator] = []
        described: list[str] = []
        for number, partitions in sorted(ids.items()):
            names, operator = self._operator_metadata(number)
            self._check_partitions(operator, partitions, offsets)
            described += names
            for index, store in enumerate(operator.stores):
                default = store.name == "default"
                below = "" if default else f"/{store.name}"
                folders = [f"state/{number}/{partition}{below}" for partition in range(len(partitions))]
                described += self._walk(f"{folders[0]}/_metadata")
                operators.append(
                    CutOperator(
                        name=f"{number}-{operator.name}" + ("" if default else f"-{store.name}"),
                        operator_id=number,
                        operator_name=operator.name,
                        store=store.name,
                        partitions=[
                            self._partition(p, folder, partitions[p][index], offsets.conf.get(_CODEC, "lz4"))
                            for p, folder in enumerate(folders)
                        ],
                    )
                )
        return operators, described

    def _operator_metadata(self, number: int) -> tuple[list[str], OperatorMetadata]:
        """Name the files that describe an operator, up to this micro-batch, and read the newest."""
        folder = f"state/{number}"
        batches = sorted(int(n) for n in self._names(f"{folder}/_metadata/v2", missing_is_empty=True) if n.isdecimal())
        current = [f"{folder}/_metadata/v2/{batch}" for batch in batches if batch <= self._micro_batch]
        path = current[-1] if current else f"{folder}/_metadata/metadata"
        operator = files.decode_operator(self._read(path), path)
        if operator.operator_id != number:
            raise Corrupt(f"{path} describes operator {operator.operator_id}", code="capture.damaged")
        first = [f"{folder}/_metadata/metadata"] if self._size(f"{folder}/_metadata/metadata") is not None else []
        schemas = [
            path
            for path in self._walk(f"{folder}/_stateSchema")
            # Their names begin with the micro-batch that wrote them.
            if int((re.match(r"\d{1,18}", path.rpartition("/")[2]) or ["0"])[0]) <= self._micro_batch
        ]
        return [*first, *current, *schemas], operator

    def _check_partitions(self, operator: OperatorMetadata, ids: list[list[str]], offsets: OffsetLogEntry) -> None:
        """See that every partition has an id for each store.

        An operator without keys (a global aggregation, a limit) has one partition, whatever its metadata says.
        """
        where = f"operator {operator.operator_id} ({operator.name})"
        wanted = offsets.conf.get(_PARTITIONS, "")
        if any(str(store.partitions) != wanted for store in operator.stores):
            raise Corrupt(f"{where} has not the {wanted} partitions that the offset log says", code="capture.damaged")
        single = len(ids) == 1 and self._size(f"state/{operator.operator_id}/1") is None
        if not single and str(len(ids)) != wanted:
            raise Corrupt(f"{where} has ids for {len(ids)} partitions of {wanted}", code="capture.damaged")
        if any(len(stores) != len(operator.stores) for stores in ids):
            raise Corrupt(f"{where} has a partition without an id for each store", code="capture.damaged")

    # --- state

    def _partition(self, partition: int, folder: str, unique_id: str, codec: str) -> CutPartition:
        version = self._micro_batch + 1
        newest = Ancestor(version, unique_id)
        snapshot = self._snapshot(folder, newest)
        deltas: list[CutFile] = []
        if snapshot is None:
            chain = [*self._lineage(folder, newest, codec), newest]
            for ancestor in reversed(chain):
                if ancestor is not newest and (snapshot := self._snapshot(folder, ancestor)) is not None:
                    break
                deltas.insert(0, self._file(_name(folder, ancestor, "changelog")))
            if snapshot is None and chain[0].version != 1:
                raise Corrupt(
                    f"{folder} has neither the state of version {chain[0].version} nor what it was built on",
                    code="capture.damaged",
                )
        return CutPartition(
            partition=partition,
            path=folder,
            version=version,
            unique_id=unique_id,
            snapshot=snapshot or [],
            deltas=deltas,
        )

    def _lineage(self, folder: str, newest: Ancestor, codec: str) -> list[Ancestor]:
        path = _name(folder, newest, "changelog")
        with open(f"{self._root}/{path}", "rb") as changelog:
            lineage = files.decode_lineage(changelog, codec, path)
        versions = [ancestor.version for ancestor in lineage]
        if versions != list(range(newest.version - len(versions), newest.version)):
            raise Corrupt(f"{path} skips a version that it is built on", code="capture.damaged")
        return lineage

    def _snapshot(self, folder: str, ancestor: Ancestor) -> list[CutFile] | None:
        """List a snapshot's files, its zip first; None when this version has none."""
        path = _name(folder, ancestor, "zip")
        try:
            status = os.stat(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        found = [CutFile(path, Path(self._root, path), status.st_size)]
        for name, size in _sst_files(self._root, path, status.st_size, status.st_mtime_ns):
            sst = f"{folder}/SSTs/{name}"
            actual = self._size(sst)
            if actual is None:
                raise Corrupt(f"{path} needs {sst}, which is missing", code="capture.damaged")
            if actual != size:
                raise Corrupt(f"{sst} has {actual} bytes, not the {size} that {path} says", code="capture.damaged")
            found.append(CutFile(sst, Path(self._root, sst), size))
        return found

    # --- sources

    def _source_logs(self, sources: dict[str, SourcePosition]) -> list[str]:
        """Name the files of the sources, each log cut where its offset stands."""
        paths = self._walk("sources")
        for name, position in sources.items():
            log = position.offsets.get("logOffset", "")
            if len(position.offsets) == 1 and re.fullmatch(r"-?\d{1,18}", log):
                paths = _cut_log(f"sources/{name}/", paths, int(log))
        return paths

    # --- files

    def _file(self, path: str) -> CutFile:
        source = Path(self._root, path)
        return CutFile(path, source, os.stat(source).st_size)

    def _size(self, path: str) -> int | None:
        try:
            return os.stat(f"{self._root}/{path}").st_size
        except FileNotFoundError:
            return None

    def _read(self, path: str) -> bytes:
        with open(f"{self._root}/{path}", "rb") as file:
            return file.read(files.MAX_LOG_BYTES + 1)

    def _names(self, folder: str, *, missing_is_empty: bool = False) -> list[str]:
        """List a folder, without what is hidden: Hadoop's checksums and files that are not finished."""
        try:
            return [name for name in os.listdir(f"{self._root}/{folder}") if not name.startswith(".")]
        except FileNotFoundError:
            if missing_is_empty:
                return []
            raise

    def _walk(self, folder: str, depth: int = 0) -> list[str]:
        """Name all files below a folder that may be missing, sorted."""
        found: list[str] = []
        for name in sorted(self._names(folder, missing_is_empty=True)):
            path = f"{folder}/{name}"
            if os.path.isdir(f"{self._root}/{path}") and depth < _MAX_DEPTH:
                found += self._walk(path, depth + 1)
            else:
                found.append(path)
        return found


def _name(folder: str, ancestor: Ancestor, suffix: str) -> str:
    return f"{folder}/{ancestor.version}_{ancestor.unique_id}.{suffix}"


@lru_cache(maxsize=10_000)
def _sst_files(root: str, path: str, size_bytes: int, mtime_ns: int) -> tuple[tuple[str, int], ...]:
    """Read a zip once, however many micro-batches are built on it."""
    with open(f"{root}/{path}", "rb") as file:
        return tuple((sst.name, sst.size_bytes) for sst in files.decode_snapshot(file, path))


def _cut_log(folder: str, paths: list[str], end: int) -> list[str]:
    """Keep what a source had logged up to ``end``: its newest compaction, and every entry after it.

    With later entries the source would take all that they name for one micro-batch.
    """
    entries: dict[int, str] = {}
    compactions: dict[int, str] = {}
    other = []
    for path in paths:
        inside = path.startswith(folder)
        if inside and (match := re.fullmatch(r"(\d{1,18})(\.compact)?", path.removeprefix(folder))):
            (compactions if match[2] else entries)[int(match[1])] = path
        else:
            other.append(path)
    start = max((number for number in compactions if number <= end), default=-1)
    kept = [entries[number] for number in sorted(entries) if start < number <= end]
    if len(kept) != end - start:
        raise Corrupt(f"{folder} lacks an entry of the source's log up to {end}", code="capture.damaged")
    return sorted([*other, *kept, *filter(None, [compactions.get(start)])])


def _position(index: int, offsets: OffsetLogEntry, source_types: Sequence[str]) -> tuple[str, SourcePosition]:
    name, verbatim = offsets.sources[index]
    source_type = source_types[index] if index < len(source_types) else "unknown"
    pairs = {} if verbatim is None else parse_offset(verbatim)
    position = SourcePosition(source_type=source_type, offsets=pairs, verbatim=verbatim or "", metadata={})
    return name or str(index), position


def parse_offset(verbatim: str) -> dict[str, str]:
    """Parse a source's offset into plain pairs; a source that does not write JSON has one.

    >>> parse_offset('{"clicks":{"0":5,"1":7}}'), parse_offset("5")
    ({'clicks-0': '5', 'clicks-1': '7'}, {'offset': '5'})
    """
    try:
        value = json.loads(verbatim, parse_int=str, parse_float=str, parse_constant=str)
        return dict(_flatten((), value)) if isinstance(value, dict) else {"offset": verbatim}
    except (ValueError, RecursionError):
        return {"offset": verbatim}


def _flatten(keys: tuple[str, ...], value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten((*keys, key), inner)
    else:
        yield "-".join(keys), value if isinstance(value, str) else json.dumps(value)
