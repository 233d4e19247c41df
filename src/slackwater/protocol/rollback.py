"""Rollback: a new checkpoint with an older one's content. History is never rewritten; sinks follow at the next start.

(claim) ─ manifest ─ APPEND ─ ``_latest``

What a rollback will do is planned, and shown, by ``ops/rollback.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec

from ..errors import Conflict, Corrupt, InvalidInput
from ..failpoints import reach
from ..formats import manifest as manifests
from ..formats.change import Rollback
from ..formats.keys import LATEST, manifest_key
from ..formats.manifest import Manifest, RolledBack, SinkOutput, SourcePosition
from ..formats.positions import acknowledged_of, note_acknowledged, positions_of
from ..formats.state import LiveCheckpoint, State
from ..store import Store
from .log import Permit
from .pipeline import Pipeline
from .state import find_target
from .verified_reads import load_if_sound, load_manifest, twice


def targets(state: State) -> list[LiveCheckpoint]:
    """List the checkpoints that a rollback may go to, and undone ones, so that a search can say why it skips them.

    The target of a repair may still be open in a sink. Only the repair itself, the head, can settle it.
    """
    settled = state.settled_epoch
    return [entry for entry in state.live if entry.undone or entry.epoch <= settled or entry is state.head]


def roll_back(pipeline: Pipeline, permit: Permit, to_epoch: int, *, keep: Collection[str] = ()) -> None:
    """Make the content of an older checkpoint the head. The caller has claimed, and has verified the target."""
    store, log, state = pipeline.store, pipeline.log, pipeline.state
    # What is missing here may have been retired by a newer driver, of which this one does not know yet.
    with log.unless_fenced(permit):
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
        checkpoint_id=pipeline.clock.checkpoint_id(),
        epoch=state.epoch + 1,
        parent_id=state.live[-1].checkpoint_id,
        created_at_ms=pipeline.clock.now_ms(),
        sink_names=list(outputs),
        sinks=outputs,
        source_offsets=positions,
        rollback=RolledBack(to_epoch=target.epoch, to_id=target.checkpoint_id, keep=sorted(keep)),
    )
    data = manifests.encode(document)
    store.put(manifest_key(document.checkpoint_id), data)
    reach("rollback.manifest.after")
    change = Rollback(**manifests.vouch(document, data), generation=permit.generation, to_epoch=target.epoch)
    log.append(lambda _state: change, permit=permit)
    reach("rollback.append.after")
    store.put(LATEST, document.checkpoint_id.encode())


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
                code="rollback.impossible",
                hint="restore what is damaged from a copy; the option acknowledge (oldest) lets an inbox keep what "
                "checkpoints from then on need",
            )
    return note_acknowledged(target.source_offsets, acknowledged)


def check_keep(keep: Collection[str], outputs: Mapping[str, SinkOutput]) -> None:
    if unknown := set(keep) - outputs.keys():
        raise InvalidInput(
            f"the pipeline has no sink named {min(unknown)!r}",
            code="sink.invalid",
            hint=f"its sinks are {', '.join(outputs) or 'none'}",
        )
