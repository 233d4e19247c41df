"""The guards of the protocol, each switched off by a patch, with the invariants of which one must then break."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slackwater import checkpointer, fallback, forget, recovery, retention, rewind
from slackwater.errors import NotFound, Unavailable
from slackwater.formats import changes, plans, states
from slackwater.formats.states import LiveCheckpoint, State
from slackwater.log import Log
from slackwater.testing.simulation.scheduler import SimStore, SimWorld
from slackwater.testing.simulation.sink import SimSink


def dawdle(client: Any) -> None:
    """Let the others go on for a while, as a process does that waits for a processor."""
    for _ in range(30):
        client._sim.step(client._actor, "dawdles")


def trust_every_record(patch: pytest.MonkeyPatch) -> None:
    """Switch off the reader's own check, which would refuse such a record, too."""
    patch.setattr(states, "find_contradiction", lambda state, number: None)


def fenced_drivers_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(states, "require_current", lambda state, generation: None)


def sinks_commit_twice(patch: pytest.MonkeyPatch) -> None:
    def apply(self: SimSink, descriptors: list[dict[str, Any]], epoch: int) -> None:
        for descriptor in descriptors:
            self.memory.staged.pop(str(descriptor["attempt"]), None)
            self.memory.committed.append((epoch, descriptor["rows"]))
        self.memory.epoch = epoch

    patch.setattr(SimSink, "apply", apply)


def the_head_is_not_driven_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "drive_sinks", lambda document, sinks: None)
    patch.setattr(states, "_settle", lambda state, settled: msgspec.structs.replace(state, settled_epoch=state.epoch))


def the_sweep_takes_what_came_after_the_claim(patch: pytest.MonkeyPatch) -> None:
    real = retention.sweep

    def sweep(store, log, claimed, sinks, references):
        late = recovery.Survey(
            [entry.key for entry in store.list("checkpoints/")], {name: sink.staged() for name, sink in sinks.items()}
        )
        return real(store, log, msgspec.structs.replace(claimed, survey=late), sinks, references)

    patch.setattr(retention, "sweep", sweep)


def labelled_checkpoints_are_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        checkpointer,
        "plan_retire",
        lambda state, *rest: plans.plan_retire(msgspec.structs.replace(state, labels=[]), *rest),
    )
    real = states._retire

    def retire(state: states.State, epochs: list[int]) -> states.State:
        labels = state.labels
        state = real(msgspec.structs.replace(state, labels=[]), epochs)
        return msgspec.structs.replace(state, labels=labels)

    patch.setattr(states, "_retire", retire)
    trust_every_record(patch)


def forgetting_passes_over(patch: pytest.MonkeyPatch, allow: Callable[[State], State]) -> None:
    """Let plans and ``apply`` believe that a state is another one."""
    for name in ("plan_forget", "plan_forget_one"):
        real = getattr(plans, name)
        patch.setattr(forget, name, lambda state, *rest, real=real: real(allow(state), *rest))
    patch.setattr(forget, "_refuse_to_lose", lambda state, entry: None)
    retire = states._retire

    def retire_any(state: State, epochs: list[int]) -> State:
        after = retire(allow(state), epochs)
        live = [entry for entry in after.live if entry.checkpoint_id != STAND_IN]
        return msgspec.structs.replace(after, live=live, labels=state.labels)

    patch.setattr(states, "_retire", retire_any)
    trust_every_record(patch)


STAND_IN = "0" * 36


def a_labelled_checkpoint_can_be_forgotten(patch: pytest.MonkeyPatch) -> None:
    forgetting_passes_over(patch, lambda state: msgspec.structs.replace(state, labels=[]))


def the_head_can_be_forgotten(patch: pytest.MonkeyPatch) -> None:
    def behead(state: State) -> State:
        """Put something after the head, which then is one like any other."""
        later = [
            msgspec.structs.replace(head, checkpoint_id=STAND_IN, epoch=head.epoch + 1) for head in state.live[-1:]
        ]
        return msgspec.structs.replace(state, live=[*state.live, *later])

    forgetting_passes_over(patch, behead)


def forgetting_deletes_before_its_record(patch: pytest.MonkeyPatch) -> None:
    real = forget.forget

    def delete_first(store: SimStore, log: Log, settings: Any, choose: forget.Choose) -> forget.Forgetting:
        state = log.read()
        assert state is not None
        leaving = [verdict.epoch for verdict in choose(state) if not verdict.keep]
        after = states._retire(state, leaving)
        refs = retention.References(store, settings)
        retention.delete_doomed(store, retention.find_doomed(after, refs.of_live(after), refs))
        return real(store, log, settings, choose)

    patch.setattr(forget, "forget", delete_first)


def retention_ignores_what_live_checkpoints_need(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention.References, "of_live", lambda self, state: retention.Needed(set()))


def a_lost_answer_counts_as_success(patch: pytest.MonkeyPatch) -> None:
    real = SimStore.create

    def create(self: SimStore, key: str, data: bytes) -> bool:
        try:
            return real(self, key, data)
        except Unavailable:
            return True

    patch.setattr(SimStore, "create", create)


def an_undo_is_skipped_by_the_next_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpointer, "undo_sink", lambda sink, rolled_back, name, epoch: sink.keep(epoch))


def an_undo_does_not_move_the_epoch(patch: pytest.MonkeyPatch) -> None:
    real = SimSink.undo

    def undo(self: SimSink, to_epoch: int, epoch: int) -> None:
        before = self.memory.epoch
        real(self, to_epoch, epoch)
        self.memory.epoch = min(before, to_epoch)

    patch.setattr(SimSink, "undo", undo)


def a_tool_rolls_back_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """It takes its time, and appends in the name of whoever is the driver by then."""
    claim, append, mine = recovery.claim, Log.append, threading.local()

    def no_claim(store: SimStore, log: Log, world: SimWorld, **fields: Any) -> recovery.Claimed:
        if not fields["driver"].startswith("roller"):
            return claim(store, log, world, **fields)
        mine.world, state = world, log.read()
        assert state is not None
        return recovery.Claimed(state=state, survey=recovery.Survey([], {}))

    def take_time(point: str) -> None:
        if hasattr(mine, "world"):
            dawdle(mine.world)

    def append_for_another(self: Log, decide: Any, *, generation: int | None = None) -> State:
        def renamed(state: State | None) -> Any:
            change = decide(state)
            return msgspec.structs.replace(change, generation=state.generation) if change and state else None

        if not hasattr(mine, "world"):
            return append(self, decide, generation=generation)
        return append(self, renamed)

    patch.setattr(recovery, "claim", no_claim)
    patch.setattr(rewind, "reach", take_time)
    patch.setattr(Log, "append", append_for_another)


def without_guards_of_targets(patch: pytest.MonkeyPatch, find: Callable[[State, int], LiveCheckpoint]) -> None:
    patch.setattr(states, "find_target", find)
    patch.setattr(rewind, "find_target", find)
    trust_every_record(patch)


def a_rollback_may_go_to_an_undone_epoch(patch: pytest.MonkeyPatch) -> None:
    def find(state: State, epoch: int) -> LiveCheckpoint:
        found = state.find(epoch)
        if found is None:
            raise NotFound("gone", code="checkpoint.not_found")
        return found

    without_guards_of_targets(patch, find)


def a_rollback_may_go_to_a_retired_epoch(patch: pytest.MonkeyPatch) -> None:
    real, seen = states.find_target, dict[str, LiveCheckpoint]()

    def find(state: State, epoch: int) -> LiveCheckpoint:
        seen.update({f"{state.uid} {entry.epoch}": entry for entry in state.live})
        return real(state, epoch) if state.find(epoch) else seen[f"{state.uid} {epoch}"]

    without_guards_of_targets(patch, find)
    plan, delete = rewind.plan_rollback, retention.delete_retired

    def plan_early(store: SimStore, *args: Any, **fields: Any) -> rewind.RollbackPlan:
        planned = plan(store, *args, **fields)
        dawdle(store)
        return planned

    def delete_late(store: SimStore, log: Log, *args: Any) -> list[int]:
        if log.state and log.state.retired:
            dawdle(store)
        return delete(store, log, *args)

    patch.setattr(rewind, "plan_rollback", plan_early)
    patch.setattr(retention, "delete_retired", delete_late)


def a_rollback_may_go_to_what_is_not_settled(patch: pytest.MonkeyPatch) -> None:
    real = states._apply_rollback

    def apply_rollback(state: State, change: changes.Rollback, append_id: str) -> State:
        after = real(msgspec.structs.replace(state, settled_epoch=state.epoch), change, append_id)
        return msgspec.structs.replace(after, settled_epoch=state.settled_epoch)

    patch.setattr(states, "_apply_rollback", apply_rollback)
    trust_every_record(patch)
    plan = rewind.plan_rollback
    patch.setattr(
        rewind, "plan_rollback", lambda *args, **keep: msgspec.structs.replace(plan(*args, **keep), done=False)
    )


def the_sweep_keeps_what_was_staged_for_undone_epochs(patch: pytest.MonkeyPatch) -> None:
    real = retention.sweep

    def sweep(store, log, claimed, sinks, references):
        undone, survey = {entry.checkpoint_id for entry in log.state.live if entry.undone}, claimed.survey
        attempts = {name: [a for a in found if a not in undone] for name, found in survey.attempts.items()}
        fewer = recovery.Survey(survey.keys, attempts)
        return real(store, log, msgspec.structs.replace(claimed, survey=fewer), sinks, references)

    patch.setattr(retention, "sweep", sweep)


def undone_checkpoints_lose_their_bytes(patch: pytest.MonkeyPatch) -> None:
    real = retention.References.of_live
    patch.setattr(
        retention.References,
        "of_live",
        lambda self, state: real(self, msgspec.structs.replace(state, live=state.branch)),
    )


def a_checkpoint_that_cannot_be_read_needs_nothing(patch: pytest.MonkeyPatch) -> None:
    real = retention.References.of_live
    patch.setattr(
        retention.References,
        "of_live",
        lambda self, state: msgspec.structs.replace(real(self, state), blind=False),
    )


def a_rollback_does_not_verify(patch: pytest.MonkeyPatch) -> None:
    """Neither that of a tool, nor a fallback."""
    real = rewind.newest_verified
    patch.setattr(rewind, "verify_restorable", lambda store, entry, settings: None)
    patch.setattr(fallback, "newest_verified", lambda *args, **fields: real(*args, **fields | {"try_out": id}))


MUTATIONS = {
    fenced_drivers_go_on: {"one-winner", "staged-kept"},
    sinks_commit_twice: {"exactly-once"},
    the_head_is_not_driven_again: {"exactly-once", "undone"},
    the_sweep_takes_what_came_after_the_claim: {"restorable", "staged-kept"},
    labelled_checkpoints_are_retired: {"label-kept"},
    a_labelled_checkpoint_can_be_forgotten: {"label-kept"},
    the_head_can_be_forgotten: {"head-kept", "staged-kept"},
    forgetting_deletes_before_its_record: {"restorable", "available"},
    retention_ignores_what_live_checkpoints_need: {"restorable"},
    a_lost_answer_counts_as_success: {"label-kept", "one-winner", "exactly-once", "staged-kept", "available"},
    an_undo_is_skipped_by_the_next_start: {"undone", "exactly-once"},
    an_undo_does_not_move_the_epoch: {"undone", "exactly-once", "staged-kept"},
    a_tool_rolls_back_without_a_claim: {"restorable", "available", "one-winner"},
    a_rollback_may_go_to_an_undone_epoch: {"undone", "exactly-once"},
    a_rollback_may_go_to_a_retired_epoch: {"undone", "restorable", "available"},
    a_rollback_may_go_to_what_is_not_settled: {"exactly-once", "at-least-once", "undone"},
    the_sweep_keeps_what_was_staged_for_undone_epochs: {"swept"},
    undone_checkpoints_lose_their_bytes: {"restorable"},
    a_checkpoint_that_cannot_be_read_needs_nothing: {"restorable"},
    a_rollback_does_not_verify: {"verified"},
}
