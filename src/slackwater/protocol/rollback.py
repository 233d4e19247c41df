"""Rollback: a new checkpoint with an older one's content. History is never rewritten; sinks follow at the next start.

verify the target ─ plan ─ (claim) ─ manifest ─ APPEND ─ ``_latest``
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, cast

import msgspec

from ..clock import Clock
from ..errors import Conflict, Corrupt, InvalidInput, SlackwaterError
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Rollback
from ..formats.keys import LATEST, manifest_key
from ..formats.manifest import Manifest, RolledBack, SinkOutput, SourcePosition
from ..formats.positions import acknowledged_of, note_acknowledged, positions_of
from ..formats.state import LiveCheckpoint, State
from ..ops.refs import LATEST_REF, resolve
from ..store import Store
from .log import Log
from .recovery import DAMAGE, load_if_sound, load_manifest, newest_verified, twice
from .sinks import CommittingSink
from .state import LeftOut, epochs_after, find_target, labels_of

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


def targets(state: State) -> list[LiveCheckpoint]:
    """Name the checkpoints that a rollback may go to, and those that were undone.

    What a repair went back to may still be open: then only the repair itself, the head, can settle it.
    """
    settled = state.settled_epoch
    return [entry for entry in state.live if entry.undone or entry.epoch <= settled or entry is state.head]


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


def plan_rollback(
    store: Store,
    state: State,
    to_epoch: int,
    open_sink: OpenSink,
    *,
    keep: Collection[str] = (),
    passed_over: Sequence[LeftOut] = (),
) -> RollbackPlan:
    """Plan what a rollback does; ``open_sink`` gives what the sinks are asked through.

    ``passed_over`` is what the caller did not take on the way to this target.
    """
    target, head = find_target(state, to_epoch), cast(LiveCheckpoint, state.head)
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


def roll_back(store: Store, log: Log, clock: Clock, to_epoch: int, *, keep: Collection[str] = ()) -> State:
    """Make the content of an older checkpoint the head. The caller has claimed, and has verified the target."""
    state = cast(State, log.state)
    generation, head = state.generation, cast(LiveCheckpoint, state.head)
    # What is missing here may have been retired by a newer driver, of which this one does not know yet.
    with log.unless_fenced(generation):
        target = find_target(state, to_epoch)
        try:
            content = twice(lambda: load_manifest(store, target))
        except Corrupt:
            # Somebody may have forgotten it meanwhile: that is no damage.
            find_target(cast(State, log.read()), to_epoch)
            raise
    later = manifests_after(store, state, content.epoch)
    positions, outputs = keep_acknowledged(content, later), sinks_since(content, later)
    check_keep(keep, outputs)
    document = msgspec.structs.replace(
        content,
        checkpoint_id=clock.checkpoint_id(),
        epoch=state.epoch + 1,
        parent_id=head.checkpoint_id,
        created_at_ms=clock.now_ms(),
        sink_names=list(outputs),
        sinks=outputs,
        source_offsets=positions,
        rollback=RolledBack(to_epoch=target.epoch, to_id=target.checkpoint_id, keep=sorted(keep)),
    )
    data = manifests.encode(document)
    store.put(manifest_key(document.checkpoint_id), data)
    reach("rollback.manifest.after")
    state = log.append(
        lambda state: Rollback(
            generation=generation,
            epoch=document.epoch,
            checkpoint_id=document.checkpoint_id,
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            manifest_size_bytes=len(data),
            parent_id=document.parent_id,
            to_epoch=target.epoch,
        ),
        generation=generation,
    )
    reach("rollback.append.after")
    store.put(LATEST, document.checkpoint_id.encode())
    return state


def manifests_after(store: Store, state: State, epoch: int) -> list[Manifest | None]:
    """Load the manifests of live checkpoints after an epoch, in their order; None is one that cannot be read."""
    return [load_if_sound(store, entry) for entry in state.live if entry.epoch > epoch]


def sinks_since(target: Manifest, later: Sequence[Manifest | None]) -> dict[str, SinkOutput]:
    """Name every sink that may have rows of the epochs to be undone, as far as their manifests can be read."""
    outputs = dict(target.sinks)
    for manifest in later:
        outputs |= manifest.sinks if manifest else {}
    return {name: msgspec.structs.replace(output, descriptors=[]) for name, output in sorted(outputs.items())}


def keep_acknowledged(target: Manifest, later: Sequence[Manifest | None]) -> dict[str, SourcePosition]:
    """Note in a target's positions what inboxes may have dropped since; refuse to go back to before that.

    Rule 9: nobody sends those messages again. Every checkpoint takes over what its parent says, and every rollback what
    all before it say, so the newest knows all; where that one cannot be read, it may have let go of anything.
    """
    acknowledged = acknowledged_of(target.source_offsets)
    for manifest in later:
        for inbox, position in acknowledged_of(manifest.source_offsets if manifest else {}).items():
            acknowledged[inbox] = max(position, acknowledged.get(inbox, 0))
    unknown = bool(later) and later[-1] is None
    for inbox, position in positions_of(target.source_offsets).items():
        if inbox in acknowledged and (unknown or position < acknowledged[inbox]):
            dropped = "more than can be read any more" if unknown else f"all up to {acknowledged[inbox]}"
            raise Conflict(
                f"epoch {target.epoch} stands at message {position} of the inbox {inbox}, and the pipeline has let it "
                f"drop {dropped}: it acknowledges up to its newest checkpoint",
                code="rollback.acknowledged",
                hint="restore what is damaged from a copy; the option acknowledge (oldest) lets an inbox keep what "
                "checkpoints from then on need",
            )
    return note_acknowledged(target.source_offsets, acknowledged)


def check_keep(keep: Collection[str], outputs: Mapping[str, SinkOutput]) -> None:
    if unknown := set(keep) - outputs.keys():
        raise InvalidInput(
            f"the pipeline has no sink named {min(unknown)!r}",
            code="sink.unknown",
            hint=f"its sinks are {', '.join(outputs) or 'none'}",
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
            action = "refuse" if error.code == "sink.undo_refused" else "undo"
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
