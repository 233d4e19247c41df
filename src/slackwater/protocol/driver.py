"""The life of a driver: claim, recover, sweep, checkpoint again and again, release. Nothing else claims or releases.

survey ─ CLAIM ─ recover (``recovery.py``) ─ sweep ─ delete what is old ─ checkpoint (``checkpoint.py``) ─ … ─ RELEASE
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

import msgspec

from ..errors import Code, Conflict, Corrupt, InvalidInput, SlackwaterError, Unavailable
from ..failpoints import reach
from ..formats.change import Release
from ..formats.keys import CHECKPOINTS, LATEST
from ..formats.manifest import Manifest
from ..formats.query import Query
from ..formats.state import State
from .artifacts import Holdings
from .checkpoint import Checkpointer, CheckpointReport
from .cut import Cut
from .latest import refuse_lost_records
from .log import Admit, Permit
from .log_damage import refuse_missing_log
from .pipeline import Pipeline
from .recovery import Agree, Recovered, recover
from .retention import References, Survey, delete_retired, sweep
from .sinks import Attempt, CommittingSink, SinkFailed

logger = logging.getLogger("slackwater")

T = TypeVar("T")


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's claim: its permit, the state right after it, and what was surveyed before it."""

    permit: Permit
    state: State
    survey: Survey


# Makes of a checkpoint, or of none, what the program goes on with; and says what the next checkpoint may refer to.
Hydrate = Callable[[Manifest | None, Claimed], tuple[T, Holdings]]


def open_driver(
    pipeline: Pipeline,
    name: str,
    *,
    hydrate: Hydrate[T],
    sinks: Mapping[str, CommittingSink] | None = None,
    dropped: Collection[str] = (),
    fallback: Agree | None = None,
    without_head: Callable[[Corrupt, Claimed], tuple[T, Holdings] | None] | None = None,
    admit: Admit | None = None,
    query: Query | None = None,
    pipeline_hash: str | None = None,
) -> tuple[Driver, T]:
    """Claim the pipeline, recover its newest checkpoint, and clean up; every older driver is fenced.

    What fails after the claim ends the run on record. ``admit`` refuses, by raising, a state that the claim must not
    follow on. ``fallback`` agrees to roll back from a damaged newest checkpoint; see ``recovery.py`` for the others.
    """
    driver = claim_driver(pipeline, name, sinks=sinks, admit=admit)
    claimed = driver.claimed
    try:
        recovered = recover(
            pipeline,
            driver.permit,
            sinks or {},
            hydrate=lambda manifest: hydrate(manifest, claimed),
            dropped=dropped,
            fallback=fallback,
            without_head=(lambda damage: without_head(damage, claimed)) if without_head is not None else None,
        )
        return driver, driver._begin(recovered, query, pipeline_hash)
    except BaseException as error:
        driver.end(error)
        raise


def make_first(pipeline: Pipeline, name: str, cut: Cut, admit: Admit) -> bool:
    """Make a cut from elsewhere the first checkpoint of a pipeline, which ``admit`` must find to be new; say if it was.

    Its query is not known yet, and it has no sinks: the first start sets both. If ``admit`` accepts a checkpoint that
    is there already, an earlier try has made it: then it is settled, and False is returned.
    """
    driver, _ = open_driver(pipeline, name, hydrate=lambda _manifest, _claimed: (None, {}), admit=admit)
    with driver:
        if driver.state.head is not None:
            return False
        driver.checkpoint(cut, Attempt(checkpoint_id=pipeline.clock.checkpoint_id(), outputs={}))
    return True


def claim_driver(
    pipeline: Pipeline, name: str, *, sinks: Mapping[str, CommittingSink] | None = None, admit: Admit | None = None
) -> Driver:
    """Claim the pipeline and do nothing else yet: for a tool that puts a record of its own there."""
    store, log, sinks = pipeline.store, pipeline.log, sinks or {}
    # List before the claim: then nothing of a newer driver is in the list.
    keys = [entry.key for entry in store.list(CHECKPOINTS)]
    # The state that is known may be old. That is harmless: the claim is appended after the newest record. But an empty
    # log must be seen after the keys were listed: objects come only after a claim.
    state = log.state or log.read()
    refuse_missing_log(state, keys)
    if LATEST in keys:
        refuse_lost_records(store, log)
    uid = state.uid if state else pipeline.clock.random_id()
    _bind(pipeline, sinks, uid)
    survey = Survey(keys, {sink_name: sink.staged() for sink_name, sink in sinks.items()} if state else {})
    reach("claim.before")
    permit = log.claim(uid, name, admit=admit)
    driver = Driver(pipeline, Claimed(permit=permit, state=pipeline.state, survey=survey), sinks)
    try:
        reach("claim.after")
        if driver.state.uid != uid:
            _bind(pipeline, sinks, driver.state.uid)
    except BaseException as error:
        driver.end(error)
        raise
    return driver


def _bind(pipeline: Pipeline, sinks: Mapping[str, CommittingSink], uid: str) -> None:
    for name, sink in sinks.items():
        sink.bind(pipeline.name, name, uid)


def was_fenced(failure: BaseException | None) -> bool:
    """Tell whether a run has ended because another driver has taken over."""
    return isinstance(failure, Conflict) and failure.code == Code.DRIVER_FENCED


def may_release(failure: BaseException | None) -> bool:
    """Tell whether a run that ends so may say that on record.

    One that was fenced has nothing to end. One whose store does not answer would only wait for it once more, and the
    next start says how its last epoch was settled.
    """
    is_away = isinstance(failure, Unavailable) and failure.code in (
        Code.STORE_UNAVAILABLE,
        Code.STORE_DENIED,
        Code.STORE_FULL,
        Code.LOG_BUSY,
    )
    return not was_fenced(failure) and not is_away


class Driver:
    """One run over a pipeline, from its claim to its release. As a context manager it ends with the block."""

    def __init__(self, pipeline: Pipeline, claimed: Claimed, sinks: Mapping[str, CommittingSink]) -> None:
        self.pipeline, self.permit = pipeline, claimed.permit
        self.claimed, self._sinks = claimed, sinks
        self._references = References(pipeline)
        self._checkpointer = Checkpointer(pipeline, self.permit, sinks, holdings={}, settlement=None)
        # The checkpoint that this run goes on from, if its manifest was read; and how many leftovers were swept.
        self.head: Manifest | None = None
        self.swept = 0
        # Why old checkpoints were not deleted yet.
        self.hindrance: SlackwaterError | None = None
        self._ended = False

    @property
    def state(self) -> State:
        """The newest state that this driver knows."""
        return self.pipeline.state

    @property
    def holdings(self) -> Holdings:
        """What the newest checkpoint holds, and the next one may refer to."""
        return self._checkpointer.holdings

    def store_all_again(self) -> None:
        """Let the next checkpoint refer to nothing that older ones have stored."""
        self._checkpointer.holdings = {}

    def checkpoint(
        self,
        cut: Cut,
        attempt: Attempt,
        *,
        captured_ms: int = 0,
        settled: Callable[[CheckpointReport], None] | None = None,
    ) -> CheckpointReport:
        """Make the cut the next epoch, commit the sinks, and delete what is old. When this returns, all that is done.

        ``settled`` is called before the deletes, which nobody has to wait for.
        """
        if self._ended:
            raise InvalidInput("this run has ended on record", code="pipeline.ended", hint="open the pipeline again")
        report = self._checkpointer.checkpoint(cut, attempt, captured_ms=captured_ms)
        self._references.know(report.checkpoint_id, report.objects)
        if settled is not None:
            settled(report)
        self._delete_old()
        return msgspec.structs.replace(report, hindrance=self.hindrance)

    def end(self, failure: BaseException | None = None, unfinished: Iterable[str] = ()) -> Exception | None:
        """End this run on record, if it may; return what hindered that. A second call does nothing.

        A sink that could not commit the newest epoch is named with the reason. ``unfinished`` are attempts that this
        run has staged and no checkpoint took: they are discarded once the record is there, because until then this
        driver may have been fenced, and must touch nothing.
        """
        ended, self._ended = self._ended, True
        if ended or not may_release(failure):
            return None
        settled = failure.settlement if isinstance(failure, SinkFailed) else self._checkpointer.settlement

        def decide(state: State | None) -> Release:
            # An interrupted run may know only how the epoch before was settled. The newer record says that already.
            news = settled if settled and state and settled.epoch == state.epoch else None
            return Release(generation=self.permit.generation, settled=news, deleted=self._checkpointer.deleted)

        try:
            reach("release.before")
            self.pipeline.log.append(decide, permit=self.permit)
            reach("release.after")
            for sink in self._sinks.values():
                sink.discard(unfinished)
        except Exception as error:
            return error
        return None

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hindrance = self.end(error)
        if error is None and hindrance is not None:
            raise hindrance

    def _begin(self, recovered: Recovered[tuple[T, Holdings]], query: Query | None, pipeline_hash: str | None) -> T:
        self.head = recovered.head
        value, holdings = recovered.hydrated
        self._checkpointer = Checkpointer(
            self.pipeline,
            self.permit,
            self._sinks,
            holdings=holdings,
            settlement=recovered.settlement,
            query=query,
            pipeline_hash=pipeline_hash,
        )
        self.swept = sweep(self.pipeline, self.permit, self.claimed.survey, self._sinks, self._references)
        self._delete_old()
        return value

    def _delete_old(self) -> None:
        """Delete what is retired, and old records. What hinders that is remembered and logged.

        Every checkpoint counts all the same. The next one tries again, and so does a start: its first one needs the
        room, if deletes have failed for long.
        """
        try:
            self._checkpointer.note_deleted(delete_retired(self.pipeline, self.permit, self._references))
            self.pipeline.log.trim_if_due()
            self.hindrance = None
        except Conflict:
            raise
        except SlackwaterError as error:
            logger.warning("old checkpoints or records were not deleted yet: %s", error)
            self.hindrance = error
