"""Checkpoints for any Python program that has source offsets and state by partition. It needs no Spark.

claim ─ recover, every byte verified ─ sweep ─ checkpoint, again and again ─ release

This is the path that a Spark pipeline takes (``recovery.py``, ``checkpointer.py``), with the program in Spark's place.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from . import recovery
from .artifacts import Cut, CutFile, CutOperator, CutPartition, Held
from .checkpointer import Attempt, Checkpointer, CommittingSink, Report, SinkFailed, release
from .errors import Conflict, Corrupt, InvalidInput, SlackwaterError, Unavailable, Unsupported
from .fallback import recover
from .formats.layout import format_name
from .formats.manifest import OFFSETS_FILE, Manifest, SinkOutput, SourcePosition, is_of_program
from .formats.states import Savepoint, State
from .inspect.pipelines import join_url
from .labels import create_label
from .log import Log
from .recovery import Claimed
from .retention import References, delete_retired, sweep
from .settings import Settings
from .store import Store, open_store
from .world import RealWorld, World, this_process

logger = logging.getLogger("slackwater")

# Small partitions share batches, and one that never changes would hold on to an old batch for ever: after so many
# epochs it is stored again, so that a restore reads few of them.
_STORED_AGAIN_AFTER = 64

Offsets = dict[str, dict[str, str]]
PartitionedState = dict[str, dict[int, bytes]]


class _Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint of a program holds; ``versions`` say when a partition was stored, and with which digest."""

    epoch: int = 0
    offsets: Offsets = {}
    state: PartitionedState = {}
    versions: dict[tuple[str, int], tuple[int, str]] = {}
    holdings: dict[str, Held] = {}


def open_pipeline(
    store: str | os.PathLike[str],
    name: str,
    *,
    sinks: Mapping[str, CommittingSink] | None = None,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    fallback: bool = False,
    drop_sink: Collection[str] = (),
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
    settings, world, sinks = settings or Settings(), RealWorld(), dict(sinks or {})
    for sink in sinks:
        format_name(sink)
    url = join_url(os.fspath(store), format_name(name))
    opened = open_store(url, settings, **(storage_options or {}))
    log = Log(opened, world, settings)
    _refuse_foreign(opened, log.read(), name)
    claimed = recovery.claim(opened, log, world, pipeline=name, driver=this_process(), sinks=sinks)
    try:
        return ProgramPipeline(
            opened, log, world, settings, name=name, sinks=sinks, claimed=claimed, fallback=fallback, dropped=drop_sink
        )
    except Exception as error:
        # Not when another has taken over, nor when the store is away.
        if not isinstance(error, Conflict | Unavailable):
            with suppress(SlackwaterError):  # the first error is the one to tell
                release(log, claimed.state.generation, error.settlement if isinstance(error, SinkFailed) else None)
        raise


class ProgramPipeline:
    """A pipeline that this program drives, from one thread at a time. ``with`` it, or call ``close`` at the end.

    ``epoch``, ``offsets`` and ``state`` are those of the newest checkpoint; of a pipeline that is new, 0 and empty.
    """

    def __init__(
        self,
        store: Store,
        log: Log,
        world: World,
        settings: Settings,
        *,
        name: str,
        sinks: dict[str, CommittingSink],
        claimed: Claimed,
        fallback: bool,
        dropped: Collection[str],
    ) -> None:
        self.name, self.url = name, store.url
        self._store, self._log, self._world, self._settings, self._sinks = store, log, world, settings, sinks
        found = recover(
            store,
            log,
            world,
            settings,
            sinks,
            hydrate=lambda manifest: _take(store, manifest, name, settings),
            dropped=dropped,
            fallback=_tell_fallback if fallback else None,
        )
        head, recovered = found if found else (None, _Recovered())
        self.epoch = head.manifest.epoch if head else 0
        self.offsets, self.state, self._versions = recovered.offsets, recovered.state, recovered.versions
        self._references = References(store, settings)
        sweep(store, log, claimed, sinks, self._references)
        self._checkpointer = Checkpointer(
            store=store,
            log=log,
            world=world,
            settings=settings,
            pipeline=name,
            pipeline_hash=None,
            query=None,
            sinks=sinks,
            holdings=recovered.holdings,
            settlement=head.settlement if head else None,
        )
        self._delete_old()
        self._failure: BaseException | None = None
        self._closed = False
        # The id that the next checkpoint will have: sinks stage under it.
        self.attempt = world.checkpoint_id()

    def checkpoint(
        self,
        *,
        offsets: Mapping[str, Mapping[str, str | int]],
        state: Mapping[str, Mapping[int, bytes]],
        staged: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    ) -> Report:
        """Make this the next epoch. When it returns, the epoch is durable, and every sink has committed it.

        ``offsets`` by source, and all of the ``state`` by operator, its partitions numbered 0, 1, 2 …; a partition that
        has not changed is not stored again. ``staged`` are each sink's descriptors of what it has staged under
        ``attempt``. After an error other than :class:`InvalidInput`, open the pipeline again: it says what has counted.
        """
        if self._closed or self._failure is not None:
            raise InvalidInput(
                f"the pipeline {self.name!r} was closed, or has failed before",
                code="pipeline.ended",
                hint="open it again: it goes on from the newest checkpoint that counts",
            )
        positions = {source: _position(source, pairs) for source, pairs in offsets.items()}
        versions, operators = self._plan(state)
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
            report = self._checkpointer.checkpoint(cut, attempt)
            self._references.know(report.checkpoint_id, report.objects)
            self._delete_old()
        except BaseException as error:
            self._failure = error
            raise
        self.epoch, self.offsets, self._versions = report.epoch, named, versions
        self.state = {name: dict(partitions) for name, partitions in state.items()}
        self.attempt = self._world.checkpoint_id()
        return report

    def savepoint(self, label: str) -> Savepoint:
        """Label the newest checkpoint, so that retention keeps it."""
        return create_label(self._log, label, str(self.epoch) if self.epoch else "latest")

    def close(self) -> None:
        """End this run on record. A second call does nothing; one that was fenced leaves all to the other."""
        if self._closed:
            return
        self._closed = True
        if isinstance(self._failure, Conflict | Unavailable):
            return
        self._checkpointer.release(self._failure if isinstance(self._failure, SinkFailed) else None)
        if self._failure is None:
            # What was staged for an epoch that did not come. After a failure only recovery can judge it.
            for sink in self._sinks.values():
                sink.discard([self.attempt])

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

    def _plan(
        self, state: Mapping[str, Mapping[int, bytes]]
    ) -> tuple[dict[tuple[str, int], tuple[int, str]], list[CutOperator]]:
        """Name each partition's file by its digest and the epoch that stores it; an unchanged one keeps its name."""
        versions, operators = {}, []
        for number, (name, content) in enumerate(state.items()):
            folder = f"state/{format_name(name)}"
            partitions = []
            for partition, data in _in_order(name, content):
                version, before = self._versions.get((name, partition), (0, ""))
                same = data is self.state.get(name, {}).get(partition)  # bytes never change
                sha256 = before if same else hashlib.sha256(data).hexdigest()
                large = len(data) >= self._settings.object_min_bytes
                old = self.epoch + 1 - version >= _STORED_AGAIN_AFTER and not large
                if before != sha256 or old:
                    version = self.epoch + 1
                versions[name, partition] = version, sha256
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
        return versions, operators

    def _outputs(self, staged: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, SinkOutput]:
        if unknown := staged.keys() - self._sinks.keys():
            raise InvalidInput(
                f"the pipeline has no sink named {min(unknown)!r}",
                code="sink.unknown",
                hint=f"its sinks are {', '.join(self._sinks) or 'none'}",
            )
        return {
            name: SinkOutput(
                kind=sink.kind,
                address=sink.address,
                can_undo=sink.can_undo,
                descriptors=list(staged.get(name, [])),
            )
            for name, sink in self._sinks.items()
        }

    def _delete_old(self) -> None:
        try:
            gone = delete_retired(self._store, self._log, self._checkpointer.generation, self._references)
            self._checkpointer.note_deleted(gone)
            self._log.trim_if_due()
        except Conflict:
            raise
        except SlackwaterError as error:
            # The checkpoint counts all the same, and the deletes are done again with a later one.
            logger.warning("old checkpoints or records were not deleted yet: %s", error)


def _file(folder: str, version: int, sha256: str) -> str:
    return f"{folder}/{version}_{sha256}"


def _in_order(operator: str, content: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    for partition in range(len(content)):
        data = content.get(partition)
        if not isinstance(data, bytes):
            what = f"{type(data).__name__} there" if partition in content else f"of {len(content)}, and none is there"
            raise InvalidInput(
                f"partition {partition} of {operator!r} must be bytes: {what}",
                code="state.malformed",
                hint="number the partitions 0, 1, 2 …, leave none out, and give the bytes of each",
            )
        yield partition, data


def _position(source: str, pairs: Mapping[str, str | int]) -> SourcePosition:
    format_name(source)
    if not all(isinstance(key, str) and isinstance(value, str | int) for key, value in pairs.items()):
        raise InvalidInput(
            f"the offsets of {source!r} must be text or whole numbers by name",
            code="state.malformed",
            hint="write them like {'orders-0': 120}; they come back as text",
        )
    offsets = {key: str(value) for key, value in pairs.items()}
    verbatim = msgspec.json.encode(offsets, order="sorted").decode()
    return SourcePosition(source_type="program", offsets=offsets, verbatim=verbatim, metadata={})


def _take(store: Store, manifest: Manifest, name: str, settings: Settings) -> _Recovered:
    """Get what a checkpoint holds, every byte verified; batches may bring older files along, which are let go."""
    _check_ours(manifest, name)
    partitions = {(operator, p.partition): p for operator, held in manifest.operators.items() for p in held.partitions}
    wanted = {_file(p.path, p.version, p.unique_id): key for key, p in partitions.items()}
    found: dict[tuple[str, int], bytes] = {}

    def write(path: str, parts: Iterator[bytes]) -> None:
        if path in wanted:
            found[wanted[path]] = b"".join(parts)

    holdings = recovery.restore(store, manifest, settings, write)
    state: PartitionedState = {operator: {} for operator in manifest.operators}
    for (operator, number), partition in partitions.items():
        data = found.get((operator, number))
        if data is None or len(data) != partition.size_bytes:
            raise Corrupt(
                f"checkpoint {manifest.checkpoint_id} was restored, but is not whole: partition {number} of "
                f"{operator!r} is missing",
                code="hydrate.not_whole",
                hint="slackwater verify URL --read-data",
            )
        state[operator][number] = data
    return _Recovered(
        epoch=manifest.epoch,
        offsets={source: dict(position.offsets) for source, position in manifest.source_offsets.items()},
        state=state,
        versions={key: (p.version, p.unique_id) for key, p in partitions.items()},
        holdings={path: held for path, held in holdings.items() if path in wanted},
    )


def _refuse_foreign(store: Store, state: State | None, name: str) -> None:
    """Refuse what is not this program's before the claim, which would fence the driver whose it is."""
    if state is not None and state.head is not None:
        with suppress(Corrupt):  # Recovery says what is wrong with it.
            _check_ours(recovery.load_manifest(store, state.head), name)


def _check_ours(manifest: Manifest, name: str) -> None:
    if not is_of_program(manifest):
        raise Unsupported(
            f"the checkpoints of {manifest.pipeline!r} are not a program's: Spark's, or copied in",
            code="library.foreign",
            hint="start it with sw.writeStream, or choose another name; slackwater show URL says what it holds",
        )
    if manifest.pipeline != name:
        # Sinks remember epochs under the pipeline's name: under another one they would find none of theirs.
        raise InvalidInput(
            f"the folder of {name!r} holds the pipeline {manifest.pipeline!r}",
            code="pipeline.renamed",
            hint=f"rename the folder back, and open it as {manifest.pipeline!r}; another name begins anew",
        )


def _tell_fallback(damage: Corrupt, target: Manifest) -> None:
    logger.warning("the newest checkpoint is damaged (%s): rolling back to epoch %d", damage.message, target.epoch)
