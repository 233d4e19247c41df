"""Backward: the steps of a start, from the newest record to a running state. The caller has claimed.

read the head ─ DECIDE ─ drive the sinks: commit again, or undo ─ hydrate, every byte verified
                  └ the head is damaged: find an older one that is sound ─ ask the sinks ─ roll back ─ begin again

``checkpoint.py`` is this page mirrored; what is decided, and when, is in ``decision.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Generic, TypeVar, cast

import msgspec

from ..errors import Code, Conflict, Corrupt, NotFound
from ..formats.change import Settlement
from ..formats.manifest import Manifest
from ..formats.state import LiveCheckpoint
from .decision import (
    CommitAgain,
    FallBack,
    Found,
    Fresh,
    GoOn,
    GoOnWithoutHead,
    Outcome,
    Refuse,
    SinkStanding,
    Undo,
    decide,
)
from .log import Permit
from .pipeline import Pipeline
from .rollback import roll_back, targets
from .sinks import CommittingSink, drive_sinks, settle_without_sinks
from .state import require_current
from .verified_reads import load_if_sound, load_manifest, newest_verified, twice

logger = logging.getLogger("slackwater")

T = TypeVar("T")
# Hears of the damage and the target before a rollback, and refuses by raising.
Agree = Callable[[Corrupt, Manifest], None]


def tell_fallback(damage: Corrupt, target: Manifest) -> None:
    """Agree to any rollback, and log it."""
    logger.warning("the newest checkpoint is damaged (%s): rolling back to epoch %d", damage.message, target.epoch)


class Recovered(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The checkpoint to go on from, which all sinks now have; how it was settled if that is news; what was hydrated."""

    head: Manifest | None
    settlement: Settlement | None
    hydrated: T


def recover(
    pipeline: Pipeline,
    permit: Permit,
    sinks: Mapping[str, CommittingSink],
    *,
    hydrate: Callable[[Manifest | None], T],
    dropped: Collection[str] = (),
    fallback: Agree | None = None,
    without_head: Callable[[Corrupt], T | None] | None = None,
) -> Recovered[T]:
    """Drive the newest checkpoint into the sinks, and hydrate it.

    ``hydrate`` gets its manifest, or None when there is no checkpoint yet. One that is damaged whenever it is read is
    an error; with ``fallback``, the newest older one that is sound is rolled back to, unless a sink refuses.
    ``without_head`` takes the place of ``hydrate`` for a program that has the newest state itself, and no sinks, when
    the newest checkpoint is damaged; None says that the program does not have it.
    """
    return _Recovery(
        pipeline=pipeline,
        permit=permit,
        sinks=sinks,
        hydrate=hydrate,
        dropped=dropped,
        fallback=fallback,
        without_head=without_head,
    ).run()


class _Recovery(msgspec.Struct, Generic[T], kw_only=True):
    """One start's way back, step by step."""

    pipeline: Pipeline
    permit: Permit
    sinks: Mapping[str, CommittingSink]
    hydrate: Callable[[Manifest | None], T]
    dropped: Collection[str]
    fallback: Agree | None
    without_head: Callable[[Corrupt], T | None] | None
    # What a fallback has hydrated to see whether it can be: a rollback has its target's content, so it serves it.
    tried: list[T] = []
    # The older checkpoint that a fallback has found.
    target: LiveCheckpoint | None = None

    def run(self) -> Recovered[T]:
        """Recover; a head that is damaged whenever it is read is fallen back from, or an error."""
        try:
            return twice(self._go_on)
        except Corrupt as damage:
            # Of a damaged log nobody can tell whether a newer driver has retired the head.
            if damage.code == Code.LOG_CORRUPT or self.pipeline.state.head is None:
                raise
            while True:
                try:
                    outcome = self._consider(damage)
                    if not isinstance(outcome, FallBack):
                        return self._follow(outcome)
                    self._roll_back(outcome)
                    break
                except (Corrupt, NotFound):
                    if not self._is_target_gone():
                        raise
            return twice(self._go_on)

    def _go_on(self) -> Recovered[T]:
        # What is missing may have been retired by a newer driver, of which this one does not know yet.
        with self.pipeline.log.unless_fenced(self.permit):
            return self._follow(decide(self._read()))

    def _read(self) -> Found:
        state = self.pipeline.state
        if state.head is None:
            return Found(state=state)
        head = load_manifest(self.pipeline.store, state.head)
        standings = {
            name: SinkStanding(kind=sink.kind, address=sink.address, epoch=sink.epoch())
            for name, sink in self.sinks.items()
        }
        return Found(state=state, head=head, sinks=standings, dropped=self.dropped)

    def _follow(self, outcome: Outcome) -> Recovered[T]:
        match outcome:
            case Fresh():
                return Recovered(head=None, settlement=None, hydrated=self.hydrate(None))
            case GoOn(head):
                return self._drive(head, settled=True)
            case CommitAgain(head):
                return self._drive(head, settled=False)
            case Undo(head, settled):
                return self._drive(head, settled=settled)
            case GoOnWithoutHead(own_state):
                state = self.pipeline.state
                settlement = settle_without_sinks(state.epoch) if state.settled_epoch < state.epoch else None
                return Recovered(head=None, settlement=settlement, hydrated=cast(T, own_state))
            case Refuse(error):
                raise error
            case FallBack():
                raise AssertionError("only damage leads to a fallback")

    def _drive(self, head: Manifest, *, settled: bool) -> Recovered[T]:
        """Bring the head into every sink: its rows, or the undo of a rollback; and hydrate it."""
        settlement = drive_sinks(head, self.sinks)
        hydrated = self.tried[-1] if self.tried else self.hydrate(head)
        return Recovered(head=head, settlement=None if settled else settlement, hydrated=hydrated)

    # --- the head is damaged

    def _consider(self, damage: Corrupt) -> Outcome:
        """Read what is needed to decide about a damaged head, and decide."""
        pipeline, state = self.pipeline, self.pipeline.state
        if self.without_head is not None and (own_state := self.without_head(damage)) is not None:
            return decide(Found(state=state, damage=damage, own_state=own_state))
        head = state.live[-1]
        target, _ = newest_verified([entry for entry in targets(state) if entry is not head], self._try_out)
        self.target = target
        with pipeline.log.unless_fenced(self.permit):
            found = Found(state=state, damage=damage, may_fall_back=self.fallback is not None, target=target)
            if target is not None and found.may_fall_back:
                keep = self._kept(head)
                refusals = self._refusals(target.epoch, keep)
                found = msgspec.structs.replace(found, keep=keep, refusals=refusals)
            outcome = decide(found)
            # Inside, because damage that a newer driver has caused is a fence.
            if isinstance(outcome, Refuse):
                raise outcome.error from damage
        return outcome

    def _roll_back(self, outcome: FallBack) -> None:
        pipeline, target = self.pipeline, outcome.target
        with pipeline.log.unless_fenced(self.permit):
            assert self.fallback is not None
            self.fallback(outcome.damage, twice(partial(load_manifest, pipeline.store, target)))
        roll_back(pipeline, self.permit, target.epoch, keep=outcome.keep)

    def _is_target_gone(self) -> bool:
        """Tell whether somebody has forgotten the target meanwhile: then another must be found."""
        self.pipeline.log.read()
        require_current(self.pipeline.state, self.permit.generation)
        return self.target is not None and self.pipeline.state.find(self.target.epoch) is None

    def _try_out(self, entry: LiveCheckpoint) -> None:
        # Bytes that verify may still not be whole to Spark.
        self.tried.append(twice(lambda: self.hydrate(load_manifest(self.pipeline.store, entry))))

    def _kept(self, head: LiveCheckpoint) -> list[str]:
        """Name the sinks whose rows stay: the user has said so when the head was rolled back to."""
        manifest = load_if_sound(self.pipeline.store, head)
        return list(manifest.rollback.keep) if manifest and manifest.rollback else []

    def _refusals(self, to_epoch: int, keep: Collection[str]) -> dict[str, str]:
        """Ask every sink that would undo; return why some refuse."""
        refused: dict[str, str] = {}
        for name, sink in self.sinks.items():
            if sink.can_undo and name not in keep:
                try:
                    sink.plan_undo(to_epoch)
                except Conflict as error:
                    if error.code != Code.SINK_UNDO_REFUSED:
                        raise
                    refused[name] = error.message
        return refused
