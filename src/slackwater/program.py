"""Without Spark: checkpoints for any Python program that has source offsets and state by partition.

claim ─ recover, every byte verified ─ sweep ─ checkpoint, again and again ─ release

This is the path that a Spark pipeline takes (``protocol/driver.py``), with the program in Spark's place.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, cast

import msgspec

from .clock import this_process
from .errors import Corrupt, InvalidInput, SlackwaterError
from .formats.keys import format_name
from .formats.manifest import OFFSETS_FILE, Manifest, SinkOutput, SourcePosition
from .formats.positions import text_position
from .formats.state import Savepoint
from .protocol.address import as_text, join_url, refuse_pipeline
from .protocol.artifacts import Holdings, get_artifacts
from .protocol.checkpoint import CheckpointReport
from .protocol.cut import Cut, CutFile, CutOperator, CutPartition
from .protocol.driver import Driver, open_driver, was_fenced
from .protocol.kinds import PROGRAM, check_kind, refuse_foreign, refuse_renamed
from .protocol.labels import label_checkpoint
from .protocol.pipeline import Pipeline, locate
from .protocol.recovery import tell_fallback
from .protocol.sinks import Attempt, CommittingSink, describe_output
from .settings import Settings
from .store import Store

# Small partitions share batches, and one that never changes would hold on to an old batch for ever: after so many
# epochs it is stored again, so that a restore reads few of them.
_STORED_AGAIN_AFTER = 64

Offsets = dict[str, dict[str, str]]
PartitionedState = dict[str, dict[int, bytes]]


class _Kept(msgspec.Struct, frozen=True):
    """The newest bytes of a partition, the epoch that stored them, and their digest."""

    version: int = 0
    sha256: str = ""
    data: bytes | None = None


# By operator and partition. It is never handed out: what a program has in its hands, it may change.
_KeptState = dict[tuple[str, int], _Kept]


class _Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint of a program holds."""

    offsets: Offsets = {}
    kept: _KeptState = {}
    operators: list[str] = []


def open_pipeline(
    store: str | os.PathLike[str],
    name: str,
    *,
    sinks: Mapping[str, CommittingSink] | None = None,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    fallback: bool = False,
    drop_sink: str | Collection[str] = (),
) -> ProgramPipeline:
    """Open the pipeline ``{store}/{name}`` for this program: claim it, and recover its newest checkpoint.

    Whoever had it open before is fenced: its next checkpoint is a :class:`Conflict`. A damaged newest checkpoint is
    :class:`Corrupt`; with ``fallback``, the newest one that is sound is rolled back to. ``drop_sink`` names sinks that
    are gone, and whose open output is given up.

    >>> import tempfile
    >>> store = tempfile.mkdtemp()
    >>> with open_pipeline(store, "orders") as pipeline:
    ...     pipeline.epoch, pipeline.offsets, pipeline.state
    ...     pipeline.checkpoint(offsets={"orders": {"row": 7}}, state={"counts": {0: b"a", 1: b"b"}}).epoch
    (0, {}, {})
    1
    >>> with open_pipeline(store, "orders") as pipeline:
    ...     pipeline.epoch, pipeline.offsets, pipeline.state
    (1, {'orders': {'row': '7'}}, {'counts': {0: b'a', 1: b'b'}})
    """
    sinks = dict(sinks or {})
    dropped = [drop_sink] if isinstance(drop_sink, str) else list(drop_sink)
    for given in (name, *sinks, *dropped):
        format_name(given)
    path = as_text(store)
    pipeline = locate(join_url(path, format_name(name)), settings, storage_options)
    refuse_foreign(pipeline, "program")
    if pipeline.log.state is None:
        refuse_pipeline(path, pipeline.settings, storage_options)
    driver, recovered = open_driver(
        pipeline,
        this_process(PROGRAM),
        hydrate=lambda manifest, _claimed: _take(pipeline, manifest),
        sinks=sinks,
        dropped=dropped,
        fallback=tell_fallback if fallback else None,
    )
    return ProgramPipeline(driver, recovered, sinks)


class ProgramPipeline:
    """A pipeline that this program drives, from one thread at a time. ``with`` it, or call ``close`` at the end.

    ``epoch``, ``offsets`` and ``state`` are those of the newest checkpoint; of a pipeline that is new, 0 and empty.
    """

    def __init__(self, driver: Driver, recovered: _Recovered, sinks: dict[str, CommittingSink]) -> None:
        pipeline = driver.pipeline
        self.name, self.url = pipeline.name, pipeline.store.url
        self._driver, self._sinks = driver, sinks
        self._clock, self._settings = pipeline.clock, pipeline.settings
        self.epoch = driver.head.epoch if driver.head else 0
        self._kept = recovered.kept
        self.offsets, self.state = recovered.offsets, _copy(recovered.operators, recovered.kept)
        self._failure: BaseException | None = None
        self._closed = False
        self._lock = threading.Lock()
        # The id that the next checkpoint will have: sinks stage under it.
        self.attempt = self._clock.checkpoint_id()

    def checkpoint(
        self,
        *,
        offsets: Mapping[str, Mapping[str, str | int]],
        state: Mapping[str, Mapping[int, bytes]],
        staged: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    ) -> CheckpointReport:
        """Make this the next epoch. When it returns, the epoch is durable, and every sink has committed it.

        ``offsets`` by source, and all of the ``state`` by operator, its partitions numbered 0, 1, 2 …; a partition that
        has not changed is not stored again. ``staged`` are each sink's descriptors of what it has staged under
        ``attempt``. What cannot be so is :class:`InvalidInput`, and nothing is written. An error while it writes ends
        the pipeline, and the next call is ``pipeline.ended``: open it again, and it says what has counted.
        """
        with self._alone():
            self._refuse_ended()
            positions = {source: _position(source, pairs) for source, pairs in _pairs("offsets", offsets)}
            kept, operators = self._plan(state)
            attempt = Attempt(checkpoint_id=self.attempt, outputs=self._outputs(staged or {}))
            named = {source: position.offsets for source, position in positions.items()}
            document = msgspec.json.encode(named, order="sorted")
            cut = Cut(
                micro_batch=self.epoch + 1,
                watermark_ms=0,
                sources=positions,
                operators=operators,
                files=[CutFile(OFFSETS_FILE, document, len(document))],
            )
            try:
                report = self._driver.checkpoint(cut, attempt)
            except BaseException as error:
                self._failure = error
                raise
            self._kept = kept
            self.epoch, self.offsets, self.state = report.epoch, named, _copy([made.name for made in operators], kept)
            self.attempt = self._clock.checkpoint_id()
            return report

    def savepoint(self, label: str) -> Savepoint:
        """Label the newest checkpoint, so that retention keeps it."""
        with self._alone():
            self._refuse_ended()
            return label_checkpoint(self._driver.pipeline.log, label)

    def close(self) -> None:
        """End this run on record. A second call does nothing; one that was fenced leaves all to the other."""
        with self._alone():
            if self._closed:
                return
            self._closed = True
            # What was staged for an epoch that did not come. After a failure only recovery can judge it.
            unfinished = [self.attempt] if self._failure is None else []
            hindrance = self._driver.end(self._failure, unfinished)
            # Whoever was fenced has nothing to end: what was checkpointed counts.
            if hindrance is not None and not was_fenced(hindrance):
                raise hindrance

    def __enter__(self) -> ProgramPipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(SlackwaterError):  # the first error is the one to tell
            self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread: both would store under the same names, and damage what counts."""
        if not self._lock.acquire(blocking=False):
            raise InvalidInput(
                f"another thread is at work on the pipeline {self.name!r}",
                code="pipeline.busy",
                hint="call it from one thread at a time; that one goes on, and this call has changed nothing",
            )
        try:
            yield
        finally:
            self._lock.release()

    def _refuse_ended(self) -> None:
        if self._closed or self._failure is not None:
            raise InvalidInput(
                f"the pipeline {self.name!r} was closed, or has failed before",
                code="pipeline.ended",
                hint="open it again: it goes on from the newest checkpoint that counts",
            )

    def _plan(self, state: Mapping[str, Mapping[int, bytes]]) -> tuple[_KeptState, list[CutOperator]]:
        """Name each partition's file by its digest and the epoch that stores it; an unchanged one keeps its name."""
        kept, operators = _KeptState(), []
        for number, (name, content) in enumerate(_pairs("state", state)):
            folder = f"state/{format_name(name)}"
            partitions = []
            for partition, data in _in_order(name, content):
                before = self._kept.get((name, partition), _Kept())
                # Bytes never change: the same ones need not be digested again.
                sha256 = before.sha256 if data is before.data else hashlib.sha256(data).hexdigest()
                version = before.version
                large = len(data) >= self._settings.object_min_bytes
                old = self.epoch + 1 - version >= _STORED_AGAIN_AFTER and not large
                if before.sha256 != sha256 or old:
                    version = self.epoch + 1
                kept[name, partition] = _Kept(version, sha256, data)
                path = f"{folder}/{partition}"
                file = CutFile(_file(path, version, sha256), data, len(data))
                partitions.append(
                    CutPartition(
                        partition=partition, path=path, version=version, unique_id=sha256, snapshot=[file], deltas=[]
                    )
                )
            operators.append(
                CutOperator(name=name, operator_id=number, operator_name=name, store="bytes", partitions=partitions)
            )
        return kept, operators

    def _outputs(self, staged: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, SinkOutput]:
        if not isinstance(staged, Mapping) or not all(isinstance(given, list | tuple) for given in staged.values()):
            raise _malformed("what is staged must be lists by sink", "write it as {'totals': [descriptor]}")
        if unknown := staged.keys() - self._sinks.keys():
            raise InvalidInput(
                f"the pipeline has no sink named {min(unknown)!r}",
                code="sink.invalid",
                hint=f"its sinks are {', '.join(self._sinks) or 'none'}",
            )
        return {name: describe_output(sink, list(staged.get(name, []))) for name, sink in self._sinks.items()}


def _file(folder: str, version: int, sha256: str) -> str:
    return f"{folder}/{version}_{sha256}"


def _copy(operators: Sequence[str], kept: _KeptState) -> PartitionedState:
    """Make of what is kept a state for the program, which may change it."""
    state: PartitionedState = {operator: {} for operator in operators}
    for (operator, partition), held in kept.items():
        state[operator][partition] = cast(bytes, held.data)
    return state


def _malformed(what: str, hint: str) -> InvalidInput:
    return InvalidInput(what, code="state.invalid", hint=hint)


def _pairs(what: str, given: Any) -> list[tuple[str, Mapping[Any, Any]]]:
    """Take what must be mappings inside a mapping."""
    if not isinstance(given, Mapping) or not all(isinstance(inner, Mapping) for inner in given.values()):
        raise _malformed(f"the {what} must be given by name", f"write {what} as {_LIKE[what]}")
    return list(given.items())


_LIKE = {"offsets": "{'orders': {'orders-0': 120}}", "state": "{'counts': {0: b'…', 1: b'…'}}"}


def _in_order(operator: str, content: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    for partition in range(len(content)):
        data = content.get(partition)
        if not isinstance(data, bytes):
            what = f"{type(data).__name__} there" if partition in content else f"of {len(content)}, and none is there"
            raise _malformed(
                f"partition {partition} of {operator!r} must be bytes: {what}",
                "number the partitions 0, 1, 2 …, leave none out, and give the bytes of each",
            )
        yield partition, data


def _position(source: str, pairs: Mapping[str, str | int]) -> SourcePosition:
    format_name(source)
    try:
        if not all(isinstance(key, str) and type(value) in (str, int) for key, value in pairs.items()):
            raise TypeError
        # Neither is every number short enough to be written down, nor every text Unicode.
        return text_position("program", {key: str(value) for key, value in pairs.items()})
    except (TypeError, ValueError):
        raise _malformed(
            f"the offsets of {source!r} must be text or whole numbers by name",
            "write them like {'orders-0': 120}; they come back as text",
        ) from None


def _take(pipeline: Pipeline, manifest: Manifest | None) -> tuple[_Recovered, Holdings]:
    if manifest is None:
        return _Recovered(), {}
    refuse_renamed(manifest, pipeline.name)
    return read_checkpoint(pipeline.store, manifest, pipeline.settings)


def read_checkpoint(store: Store, manifest: Manifest, settings: Settings) -> tuple[_Recovered, Holdings]:
    """Get what a checkpoint holds, every byte verified; batches may bring older files along, which are let go."""
    check_kind(manifest, "program")
    partitions = {(operator, p.partition): p for operator, held in manifest.operators.items() for p in held.partitions}
    wanted = {_file(p.path, p.version, p.unique_id): key for key, p in partitions.items()}
    found: dict[tuple[str, int], bytes] = {}

    def write(path: str, parts: Iterator[bytes]) -> None:
        if path in wanted:
            found[wanted[path]] = b"".join(parts)

    holdings = get_artifacts(store, manifest, settings, write)
    kept = _KeptState()
    for (operator, number), partition in partitions.items():
        data = found.get((operator, number))
        if data is None or len(data) != partition.size_bytes:
            raise Corrupt(
                f"checkpoint {manifest.checkpoint_id} was restored, but is not whole: partition {number} of "
                f"{operator!r} is missing",
                code="restore.damaged",
                hint="slackwater verify URL --read-data",
            )
        kept[operator, number] = _Kept(partition.version, partition.unique_id, data)
    recovered = _Recovered(
        offsets={source: dict(position.offsets) for source, position in manifest.source_offsets.items()},
        kept=kept,
        operators=list(manifest.operators),
    )
    return recovered, {path: held for path, held in holdings.items() if path in wanted}
