"""Which checkpoint a repair goes back to, and which sinks have to follow: chosen from what a damaged log leaves."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec

from ..errors import Corrupt, SlackwaterError
from ..formats.keys import record_key
from ..formats.manifest import Manifest, SinkOutput
from ..formats.state import LiveCheckpoint, State
from ..protocol.log_damage import Lost
from ..protocol.pipeline import Pipeline
from ..protocol.rollback import manifests_after, sinks_since
from ..protocol.state import LeftOut
from ..protocol.verified_reads import DAMAGE, load_if_sound, verify_restorable
from ..store import Store
from .rollback import OpenSink


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What to go on from, and what sinks have to undo to: a rollback that they have not followed is done again."""

    entry: LiveCheckpoint
    content: Manifest
    to_epoch: int
    to_id: str
    unsettled: bool
    keep: list[str]
    passed_over: list[LeftOut]
    why: str


def find_bound(lost: Lost, *, can_undo: bool) -> tuple[int, str]:
    """Find the epoch that sinks must be taken back to at least, and say why.

    A damaged record may have been a rollback that sinks have followed already. To undo more than that is harmless,
    because what is undone is read again; to undo less would lose rows. Sinks that cannot undo have not followed any:
    then only a rollback that is known counts, for it is what the user wanted.
    """
    state, head = lost.state, lost.state.live[-1]
    known = {head.checkpoint_id, *(manifest.checkpoint_id for manifest in lost.manifests)}
    oldest = min(position_of(state, entry) for entry in state.branch)
    if can_undo and lost.unreadable:
        return oldest, f"{lost.unreadable[0]} cannot be made out, and may have been a rollback to any epoch"
    if can_undo and any(manifest.parent_id not in known for manifest in lost.manifests):
        return oldest, "a manifest is missing between those that are there: it may have been a rollback to any epoch"
    newest = position_of(state, head)
    rollbacks = [manifest.rollback.to_epoch for manifest in lost.manifests if manifest.rollback]
    if rollbacks and (to := min(rollbacks)) < newest:
        return to, f"a rollback to epoch {to} may have been lost, and sinks may have followed it"
    return newest, "the newest before the damage"


def position_of(state: State, entry: LiveCheckpoint) -> int:
    """Tell the newest epoch whose rows sinks have when they are where ``entry`` wants them."""
    unsettled = entry.epoch > state.settled_epoch
    return entry.rollback_to if unsettled and entry.rollback_to is not None else entry.epoch


def find_undoing(store: Store, lost: Lost) -> dict[str, SinkOutput]:
    """Name the sinks that may have followed a rollback that was lost: all that are known, and can undo."""
    known = [*(load_if_sound(store, entry) for entry in lost.state.live), *lost.manifests]
    outputs = [output for manifest in known if manifest for output in manifest.sinks.items()]
    return {name: output for name, output in outputs if output.can_undo}


def choose_target(pipeline: Pipeline, lost: Lost, *, bound: int, why: str, forced: Collection[str]) -> Target:
    """Choose the newest checkpoint within the bound that can be restored, every byte verified.

    Where there is none left, and the user has told every sink to keep its rows (none is ``forced`` to undo), choose the
    newest beyond it.
    """
    state = lost.state
    within = [entry for entry in reversed(state.branch) if position_of(state, entry) <= bound]
    beyond = [entry for entry in reversed(state.branch) if entry not in within]
    passed_over: list[LeftOut] = []
    for entry in within if forced else within + beyond:
        try:
            content = verify_restorable(pipeline.store, entry, pipeline.settings)
        except DAMAGE as error:
            passed_over.append(LeftOut(epoch=entry.epoch, reason=error.message))
            continue
        unsettled, before = entry.epoch > state.settled_epoch, content.rollback
        again = before if unsettled else None
        return Target(
            entry=entry,
            content=content,
            to_epoch=again.to_epoch if again else entry.epoch,
            to_id=again.to_id if again else entry.checkpoint_id,
            unsettled=again.unsettled if again else unsettled,
            keep=again.keep if again else [],
            passed_over=passed_over,
            why=f"{why}; nothing that old is left, and all sinks keep their rows" if entry in beyond else why,
        )
    found = "; ".join(f"epoch {passed.epoch}: {passed.reason}" for passed in passed_over)
    if not (forced and beyond):
        raise impossible(f"no checkpoint of the record before it can be restored ({found})", lost)
    untried = ", ".join(str(entry.epoch) for entry in reversed(beyond))
    names = " ".join(f"--keep {name}" for name in sorted(forced))
    raise impossible(
        f"sinks must be taken back to epoch {bound} at least ({why}), and nothing that old can be restored ({found}); "
        f"newer ones were not tried: {untried}",
        lost,
        f"{names} goes on from the newest of those that is sound and leaves the sinks' rows as they are: what is read "
        "again comes a second time, and what a lost rollback has taken back does not come again",
    )


def impossible(why: str, lost: Lost, otherwise: str = "") -> Corrupt:
    otherwise = otherwise or "only a new pipeline under another name goes on, and reads its sources anew"
    return Corrupt(
        f"the log record {lost.number} is damaged, and repair cannot go on without it: {why}",
        code="head.none_verifies",
        hint=f"restore {record_key(lost.number)}, or the objects that are missing, from a copy and run this again; "
        f"without one, {otherwise}",
        damaged=lost.numbers,
        before=lost.before.number if lost.before else None,
    )


def outputs_of(store: Store, lost: Lost, content: Manifest) -> dict[str, SinkOutput]:
    """Name every sink that may have rows to be undone, or that lacks the target's output: that one with it."""
    outputs = sinks_since(content, manifests_later(store, lost, content))
    if content.epoch > lost.state.settled_epoch:
        outputs |= content.sinks
    return dict(sorted(outputs.items()))


def manifests_later(store: Store, lost: Lost, content: Manifest) -> list[Manifest | None]:
    """List what may have come after a checkpoint: it was live, or a damaged record may have made it so."""
    unknown: list[Manifest | None] = [None] if lost.unreadable else []
    may_be = sorted(lost.manifests, key=lambda manifest: manifest.epoch)
    return [*manifests_after(store, lost.state, content.epoch), *may_be, *unknown]


def newest_epoch(open_sink: OpenSink, outputs: dict[str, SinkOutput]) -> int:
    """Ask every sink for its epoch. The plan says of one that cannot be asked that it was not looked at."""
    newest = 0
    for name, output in outputs.items():
        with suppress(SlackwaterError):
            sink = open_sink(name, output)
            newest = max(newest, sink.epoch() if sink else 0)
    return newest
