"""Versions of reference tables: the driver makes them between epochs, and each checkpoint holds its own.

feed ─ apply, with the feed's position, in one batch ─ a version of hard links ─ micro-batches read it ─ checkpoint
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ..errors import Code, SlackwaterError, Unsupported
from ..formats.manifest import SourcePosition
from ..formats.positions import text_position
from ..keyed.capture import capture_keyed, folder_of, read_snapshot
from ..keyed.restore_check import check_keyed
from ..keyed.state import KeyedState
from ..keyed.vnodes import VNODE_COUNT
from ..protocol.cut import Cut, CutFile
from ..spark.working_directory import WorkingDirectory
from .feeds import Feed
from .table import Table

logger = logging.getLogger("slackwater")

# The sources under which a table's state keeps where its feed stands, and what it is a table of.
_FEED, _SHAPE = "feed", "table"
_POLL_S = 0.01


class Tables:
    """The tables of one run. Versions are made in one thread at a time, and never change.

    Spark computes parts of a micro-batch before it calls ``foreachBatch``: a side of a join that is broadcast. So the
    version that a micro-batch reads is made when Spark has written down its offsets, which comes before all else.
    """

    def __init__(self, tables: Mapping[str, Table], work: WorkingDirectory) -> None:
        self._tables, self._versions, self._offsets = tables, work.folder / "tables", work.checkpoint / "offsets"
        # What is to be given back and to be stopped at the end, once: another run may have it right after that.
        self._taken: list[Table] = []
        self._fed: list[Feed] = []
        self._states: dict[str, KeyedState] = {}
        self._current: dict[str, Path] = {}
        # The versions that each micro-batch reads, until its attempt is settled; and each attempt, in their order.
        self._by_micro_batch: dict[int, dict[str, Path]] = {}
        self._by_attempt: dict[str, dict[str, Path]] = {}
        self._made = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stopping = threading.Lock()
        self._unstopped: Exception | None = None
        self._watcher: threading.Thread | None = None
        self.error: BaseException | None = None
        try:
            for name, table in tables.items():
                table.take()
                self._taken.append(table)
                table.published.open(work.folder / "published" / name)
                self._open(name, table, work.checkpoint / folder_of(name))
        except BaseException:
            self.close()
            raise

    def start(self, is_open: Callable[[], bool]) -> None:
        """Make a version for every micro-batch from now on; while an epoch ``is_open``, it is that epoch's."""
        if self._tables:
            first = max((int(path.name) for path in self._offsets.glob("[0-9]*")), default=-1) + 1
            self._watcher = threading.Thread(
                target=self._watch, args=(first, is_open), name="slackwater-tables", daemon=True
            )
            self._watcher.start()

    def begin(self, attempt: str, micro_batch: int) -> None:
        """Note that an attempt has this micro-batch, and so the version that it reads."""
        if self._tables:
            versions = self._prepare(micro_batch, anew=attempt not in self._by_attempt)
            with self._lock:  # for another thread may be settling an older one
                self._by_attempt.setdefault(attempt, versions)

    def add(self, cut: Cut, attempt: str, held: Collection[str]) -> Cut:
        """Add to a cut the versions that its micro-batches have read."""
        versions = self._by_attempt.get(attempt, {})
        if not versions:
            return cut
        operators, files, positions = [*cut.operators], [*cut.files], dict[str, SourcePosition]()
        for name, version in versions.items():
            operator, beside = capture_keyed(version, name, held)
            operators.append(operator)
            files += [*beside, *_cut_feed(version / _FEED, f"{folder_of(name)}/{_FEED}")]
            positions[name] = self._position(name, version)
        return msgspec.structs.replace(
            cut, operators=operators, files=files, table_offsets=positions, vnode_count=VNODE_COUNT
        )

    def settle(self, attempt: str, micro_batch: int) -> None:
        """Remove what nothing reads any more: of this attempt and before, but for what others share."""
        with self._lock:
            gone: set[Path] = set()
            for older in list(self._by_attempt):
                gone |= set(self._by_attempt.pop(older).values())
                if older == attempt:
                    break
            for number in [number for number in self._by_micro_batch if number <= micro_batch]:
                gone |= set(self._by_micro_batch.pop(number).values())
                for table in self._tables.values():
                    table.published.withdraw(number)
            for versions in (self._current, *self._by_attempt.values(), *self._by_micro_batch.values()):
                gone -= set(versions.values())
        for version in gone:
            shutil.rmtree(version, ignore_errors=True)

    def stop(self) -> None:
        """End the feeds; ``close`` tells of one that fails to. Whoever waits for a version is let go.

        It comes before Spark is told to stop, which waits for its callback, which may wait for a feed.
        """
        self._ended.set()
        with self._stopping:
            while self._fed:
                try:
                    self._fed[-1].stop()
                except Exception as error:
                    self._unstopped = self._unstopped or error
                self._fed.pop()

    def close(self) -> None:
        """End the feeds and let everything go, whichever of them fails to."""
        self.stop()
        with ExitStack() as last:  # what is named first comes last
            while self._taken:
                last.callback(self._taken.pop().give_back)
            for state in self._states.values():
                last.callback(state.close)
            if self._watcher is not None:
                last.callback(self._watcher.join)
        if self._unstopped is not None:
            raise self._unstopped

    def _watch(self, micro_batch: int, is_open: Callable[[], bool]) -> None:
        while not self._ended.wait(_POLL_S):
            while (self._offsets / str(micro_batch)).exists():
                try:
                    self._prepare(micro_batch, anew=not is_open())
                except BaseException as error:
                    if self._ended.is_set():
                        return  # its feed was stopped under it
                    # Tasks that wait for it end here; who waits for the query is told why.
                    self.error = error
                    for table in self._tables.values():
                        table.published.publish(micro_batch, None)
                    return
                micro_batch += 1

    def _prepare(self, micro_batch: int, *, anew: bool) -> dict[str, Path]:
        with self._lock:
            if self.error is not None:
                raise self.error
            if micro_batch not in self._by_micro_batch:
                if self._ended.is_set():
                    raise SlackwaterError("the pipeline is stopping", code=Code.PIPELINE_STOPPING)
                for name in self._tables:
                    if anew or name not in self._current:
                        self._advance(name)
                self._by_micro_batch[micro_batch] = dict(self._current)
                for name, version in self._current.items():
                    self._tables[name].published.publish(micro_batch, version)
            return self._by_micro_batch[micro_batch]

    def _open(self, name: str, table: Table, folder: Path) -> None:
        if folder.exists():
            check_keyed(folder, VNODE_COUNT)
        state = self._states[name] = KeyedState(folder)
        shape = {"key": json.dumps(table.codec.key), "columns": table.types.json()}
        known = state.offsets.get(_SHAPE)
        if known is not None and known != shape:
            raise Unsupported(
                f"the table {name!r} has other columns or another key than in the pipeline's checkpoint",
                code="table.unsupported",
                hint="change it back, or make it under another name: then it is read anew from its feed",
            )
        if known is None:
            state.write([], offsets={_SHAPE: shape})
        self._fed.append(table.feed)
        table.feed.start(folder / _FEED)

    def _advance(self, name: str) -> None:
        table, state = self._tables[name], self._states[name]
        changed = 0
        while (found := table.feed.read(state.offsets.get(_FEED, {}), table.codec.schema)) is not None:
            changes = table.codec.encode_changes(found.batches, found.where)
            # The version is synced, and the rest disposable.
            state.apply(state.prepare(changes, offsets={_FEED: found.position}))
            changed += len(changes)
        if changed or name not in self._current:
            self._made += 1
            version = self._versions / name / str(self._made)
            state.checkpoint(version)
            for path, data in table.feed.files(state.offsets.get(_FEED, {})).items():
                target = version / _FEED / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            self._current[name] = version
            logger.info("table %s: %d changes, %d rows", name, changed, state.key_count)

    def _position(self, name: str, version: Path) -> SourcePosition:
        offsets = read_snapshot(version).state.offsets.get(_FEED, {})
        return text_position(self._tables[name].feed.kind, offsets)


def _cut_feed(folder: Path, path: str) -> list[CutFile]:
    found = sorted(each for each in folder.rglob("*") if each.is_file())
    return [CutFile(f"{path}/{each.relative_to(folder)}", each, each.stat().st_size) for each in found]
