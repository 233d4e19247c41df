"""Rollback as people ask for it: planned with a look at the sinks, and shown; then done on record.

verify the target ─ plan ─ claim ─ roll back (``protocol/rollback.py``) ─ release
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, cast

import msgspec

from ..clock import this_process
from ..errors import Code, Conflict, Corrupt, SlackwaterError
from ..formats.manifest import Manifest, SinkOutput, SourcePosition
from ..formats.state import LiveCheckpoint, State
from ..protocol.driver import claim_driver
from ..protocol.pipeline import Pipeline
from ..protocol.rollback import check_keep, keep_acknowledged, manifests_after, roll_back, sinks_since, targets
from ..protocol.sinks import CommittingSink, Sink
from ..protocol.state import LeftOut, epochs_after, find_target, labels_of
from ..protocol.verified_reads import DAMAGE, load_if_sound, load_manifest, newest_verified, twice, verify_restorable
from ..settings import Settings
from ..sinks.registry import open_sink
from .pipelines import read_pipeline
from .refs import LATEST_REF, NEWEST_VERIFIED, passed_over, resolve

# Opens a sink by its name and what a manifest says of it; None when it cannot be looked at from here.
OpenSink = Callable[[str, SinkOutput], CommittingSink | None]


class SinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the next start will do in one sink."""

    name: str
    kind: str
    address: str
    action: Literal["undo", "keep", "refuse"]
    detail: str


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a source stands now (None if the head cannot be read), and where it will be read from again."""

    name: str
    source_type: str
    now: dict[str, str] | None
    then: dict[str, str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a new checkpoint with an older one's content will do."""

    head_epoch: int
    to_epoch: int
    to_id: str
    to_created_at_ms: int
    epoch: int
    passed_over: list[LeftOut]
    undone_epochs: list[int]
    # Savepoints of these epochs stay, and can be restored, but never again be rolled back to.
    undone_labels: list[str]
    sinks: list[SinkPlan]
    sources: list[SourcePlan]

    @property
    def refused(self) -> list[SinkPlan]:
        return [sink for sink in self.sinks if sink.action == "refuse"]


class RollbackPlan(Plan, frozen=True, kw_only=True):
    """What a rollback will do. With ``done``, the head is the target, or this very rollback, already."""

    running: bool
    done: bool


def rollback(
    url: str | os.PathLike[str],
    to: str | int,
    *,
    keep: Iterable[str] = (),
    sinks: Mapping[str, Sink] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> RollbackPlan:
    """Roll a pipeline back, on record; its next start undoes in the sinks. A driver that runs is fenced.

    ``to`` is a REF, or ``newest-verified``. ``keep`` names sinks whose rows shall stay; ``sinks`` by name are those
    that need options to be opened. Refused, with nothing changed, where a sink says that it would refuse. With ``done``
    in the plan that is returned, nothing was done: a driver that runs goes on. A ``dry_run`` only plans.
    """
    pipeline, keep = read_pipeline(url, settings, storage_options), listed(keep)
    planned = _plan(pipeline, str(to), keep, sinks or {})
    if dry_run or planned.done:
        return planned
    check_refused(planned)
    # Whatever puts state into a pipeline is a driver: a running one is fenced here, and cannot add an epoch.
    with claim_driver(pipeline, this_process("rollback")) as driver:
        roll_back(pipeline, driver.permit, planned.to_epoch, keep=keep)
    return planned


def listed(keep: Iterable[str]) -> list[str]:
    """Take one name for a list of it."""
    return [keep] if isinstance(keep, str) else list(keep)


def check_refused(plan: Plan) -> None:
    """Stop before anything is changed where a sink would refuse."""
    if refused := plan.refused:
        raise Conflict(
            "; ".join(f"the sink {sink.name!r} would refuse: {sink.detail}" for sink in refused),
            code=Code.SINK_UNDO_REFUSED,
            hint=f"keep={[sink.name for sink in refused]} (--keep NAME) leaves their rows as they are",
        )


def _plan(pipeline: Pipeline, to: str, keep: list[str], sinks: Mapping[str, Sink]) -> RollbackPlan:
    target, passed = _find(pipeline, to)
    try:
        if to == NEWEST_VERIFIED:  # every byte of it was read on the way here
            manifest = twice(lambda: load_manifest(pipeline.store, target))
        else:
            manifest = verify_restorable(pipeline.store, target, pipeline.settings)
    except Corrupt:
        # A driver that runs may have retired it meanwhile: that is no damage.
        find_target(cast(State, pipeline.log.read()), target.epoch)
        raise

    def open_one(name: str, output: SinkOutput) -> Sink | None:
        sink = sinks.get(name) or open_sink(output.kind, output.address)
        if sink is not None:
            # Its name is in the manifest; the URL may lead here through a link.
            sink.bind(manifest.pipeline, name, pipeline.state.uid)
        return sink

    return plan_to(pipeline, target, open_one, keep=keep, passed_over=passed)


def _find(pipeline: Pipeline, to: str) -> tuple[LiveCheckpoint, list[LeftOut]]:
    """Find the checkpoint that ``to`` names, a REF or the newest one that verifies; and what that has passed over."""
    state = pipeline.state
    if to == NEWEST_VERIFIED:
        return get_newest_verified(
            state, targets(state), lambda entry: verify_restorable(pipeline.store, entry, pipeline.settings)
        )
    target = resolve(state, to)
    return target, passed_over(state, to, target)


def get_newest_verified(
    state: State,
    entries: Sequence[LiveCheckpoint],
    try_out: Callable[[LiveCheckpoint], object],
    *,
    damage: tuple[type[SlackwaterError], ...] = DAMAGE,
) -> tuple[LiveCheckpoint, list[LeftOut]]:
    """Find the newest that can be restored where there must be one."""
    resolve(state, LATEST_REF)  # refuses a pipeline without a checkpoint
    found, passed = newest_verified(entries, try_out, damage=damage)
    if found is None:
        raise Corrupt(
            f"none of the {len(state.branch)} live checkpoints can be restored",
            code="head.none_verifies",
            hint="slackwater verify URL --read-data names every damaged object; restore those from a copy",
            passed_over=passed,
        )
    return found, passed


def plan_to(
    pipeline: Pipeline,
    target: LiveCheckpoint,
    open_sink: OpenSink,
    *,
    keep: Collection[str] = (),
    passed_over: Sequence[LeftOut] = (),
) -> RollbackPlan:
    """Plan what a rollback does; ``open_sink`` gives what the sinks are asked through.

    ``passed_over`` is what the caller did not take on the way to this target.
    """
    store, state = pipeline.store, pipeline.state
    target, head = find_target(state, target.epoch), state.live[-1]
    manifest, newest = load_manifest(store, target), load_if_sound(store, head)
    later = manifests_after(store, state, manifest.epoch)
    keep_acknowledged(manifest, later)
    outputs = sinks_since(manifest, later)
    check_keep(keep, outputs)
    before, undone = newest.rollback if newest else None, epochs_after(state, target.epoch)
    return RollbackPlan(
        head_epoch=head.epoch,
        to_epoch=target.epoch,
        to_id=target.checkpoint_id,
        to_created_at_ms=target.created_at_ms,
        epoch=state.epoch + 1,
        passed_over=list(passed_over),
        undone_epochs=undone,
        undone_labels=labels_of(state, undone),
        running=state.release_append_id is None,
        done=target is head
        or (before is not None and before.to_epoch == target.epoch and set(keep) == set(before.keep)),
        sinks=[plan_sink(name, output, open_sink, target.epoch, name in keep) for name, output in outputs.items()],
        sources=plan_sources(newest, manifest),
    )


def plan_sink(name: str, output: SinkOutput, open_sink: OpenSink, to_epoch: int, keep: bool) -> SinkPlan:
    action: Literal["undo", "keep", "refuse"] = "undo"
    if keep or not output.can_undo:
        action = "keep"
        why = "as told" if keep else "it cannot undo"
        detail = f"{why}: its rows stay, and those that are read again come a second time"
    else:
        try:
            sink = open_sink(name, output)
            detail = sink.plan_undo(to_epoch) if sink else "was not looked at from here"
        except SlackwaterError as error:
            action = "refuse" if error.code == Code.SINK_UNDO_REFUSED else "undo"
            detail = error.message if action == "refuse" else f"was not looked at: {error.message}"
    return SinkPlan(name=name, kind=output.kind, address=output.address, action=action, detail=detail)


def plan_sources(newest: Manifest | None, target: Manifest) -> list[SourcePlan]:
    """Say where sources, and feeds of tables, stand by the newest manifest, if one can be read, and by the target's."""
    now, then = _all_positions(newest) if newest else {}, _all_positions(target)
    return [
        SourcePlan(
            name=name,
            source_type=position.source_type,
            now=now[name].offsets if name in now else None,
            then=position.offsets,
        )
        for name, position in then.items()
    ]


def _all_positions(manifest: Manifest) -> dict[str, SourcePosition]:
    return manifest.source_offsets | {f"table {name}": found for name, found in manifest.table_offsets.items()}
