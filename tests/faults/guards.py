"""The guards of the protocol, each switched off by a patch, with the invariant that must then break.

Where a missing guard would show too rarely, one of ``scenarios.py`` brings about what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from simulation import actors
from simulation.memory import Memory
from simulation.scheduler import SimStore, Simulation
from simulation.sink import SimSink
from simulation.sources import SimAcknowledgements
from slackwater.errors import NotFound, Unavailable
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats import state as states
from slackwater.formats.keys import LATEST, record_key
from slackwater.formats.manifest import Manifest
from slackwater.formats.state import LiveCheckpoint, State
from slackwater.inboxes import group_commit
from slackwater.inboxes import reader as inbox_reader
from slackwater.inboxes.documents import Published
from slackwater.ops import forget, repair, repair_target
from slackwater.ops import rollback as rollback_tool
from slackwater.ops import verify as verification
from slackwater.protocol import artifacts, driver, log, recovery, retention, rollback, verified_reads
from slackwater.protocol import checkpoint as checkpointer
from slackwater.protocol import keep_rules as plans
from slackwater.protocol import sinks as sink_driving
from slackwater.protocol import state as protocol_state
from slackwater.protocol.decision import Found
from slackwater.protocol.driver import Claimed, Driver
from slackwater.protocol.log import Log, Permit
from slackwater.protocol.pipeline import Pipeline
from slackwater.sources.acknowledgement import Acknowledgements
from tests.faults.scenarios import (
    a_claim_is_lost_beside_an_open_head,
    a_deleter_wakes_up_after_a_repair,
    a_program_is_started_on_another_store,
    a_record_is_lost_that_let_messages_go,
    a_rollback_is_lost_after_its_undo,
    actor_of,
    commits_come_after_an_undo,
    forgetters_take_their_time,
    many_reads_are_bad,
    numbers_are_created_again_before_a_get,
    patch_claims,
    rollbacks_and_deletes_come_late,
    rollbacks_go_to_the_head,
    rollers_take_their_time,
    sources_are_acknowledged_up_to_the_newest,
    the_log_is_lost,
)


def trust_every_record(patch: pytest.MonkeyPatch) -> None:
    """Switch off the reader's own check, which would refuse such a record, too."""
    patch.setattr(states, "find_contradiction", lambda state, number: None)


def fenced_drivers_go_on(patch: pytest.MonkeyPatch) -> None:
    for module in (protocol_state, log):
        patch.setattr(module, "require_current", lambda state, generation: None)


def sinks_commit_twice(patch: pytest.MonkeyPatch) -> None:
    def apply(self: SimSink, descriptors: list[dict[str, Any]], epoch: int) -> None:
        for descriptor in descriptors:
            self.memory.staged.pop(str(descriptor["attempt"]), None)
            self.memory.committed.append((epoch, descriptor["rows"]))
        self.memory.epoch = epoch

    patch.setattr(SimSink, "apply", apply)


def the_head_is_not_driven_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "drive_sinks", lambda document, sinks: None)
    patch.setattr(
        protocol_state, "_settle", lambda state, settled: msgspec.structs.replace(state, settled_epoch=state.epoch)
    )


def the_sweep_takes_what_came_after_the_claim(patch: pytest.MonkeyPatch) -> None:
    real = retention.sweep

    def sweep(pipeline, permit, survey, sinks, references):
        keys = [entry.key for entry in pipeline.store.list("checkpoints/")]
        late = retention.Survey(keys, {name: sink.staged() for name, sink in sinks.items()})
        return real(pipeline, permit, late, sinks, references)

    patch.setattr(driver, "sweep", sweep)


def labelled_checkpoints_are_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        checkpointer,
        "plan_retire",
        lambda state, *rest: plans.plan_retire(msgspec.structs.replace(state, labels=[]), *rest),
    )
    real = protocol_state._retire

    def retire(state: states.State, epochs: list[int]) -> states.State:
        labels = state.labels
        state = real(msgspec.structs.replace(state, labels=[]), epochs)
        return msgspec.structs.replace(state, labels=labels)

    patch.setattr(protocol_state, "_retire", retire)
    trust_every_record(patch)


def forgetting_passes_over(patch: pytest.MonkeyPatch, allow: Callable[[State], State]) -> None:
    """Let plans and ``apply`` believe that a state is another one."""
    for name in ("plan_forget", "plan_forget_one"):
        real = getattr(plans, name)
        patch.setattr(forget, name, lambda state, *rest, real=real: real(allow(state), *rest))
    patch.setattr(forget, "_refuse_to_lose", lambda state, entry: None)
    retire = protocol_state._retire

    def retire_any(state: State, epochs: list[int]) -> State:
        after = retire(allow(state), epochs)
        live = [entry for entry in after.live if entry.checkpoint_id != STAND_IN]
        return msgspec.structs.replace(after, live=live, labels=state.labels)

    patch.setattr(protocol_state, "_retire", retire_any)
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
    real = forget.forget_chosen

    def delete_first(pipeline: Pipeline, choose: forget.Choose) -> forget.Forgetting:
        store, state = pipeline.store, pipeline.log.read()
        assert state is not None
        leaving = [verdict.epoch for verdict in choose(state) if not verdict.keep]
        after = protocol_state._retire(state, leaving)
        refs = retention.References(pipeline)
        retention.delete_doomed(store, retention.find_doomed(after, refs.of_live(after), refs))
        return real(pipeline, choose)

    patch.setattr(forget, "forget_chosen", delete_first)


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
    patch.setattr(sink_driving, "undo_sink", lambda sink, rolled_back, name, epoch: sink.keep(epoch))


def an_undo_does_not_move_the_epoch(patch: pytest.MonkeyPatch) -> None:
    undo = SimSink.undo

    def undo_alone(self: SimSink, to_epoch: int, epoch: int) -> None:
        before = self.memory.epoch
        undo(self, to_epoch, epoch)
        self.memory.epoch = min(before, to_epoch)

    patch.setattr(SimSink, "undo", undo_alone)


def a_tool_rolls_back_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """It appends in the name of whoever is the driver by then."""
    claim, append = driver.claim_driver, Log.append

    def no_claim(pipeline: Pipeline, name: str, **fields: Any) -> Driver:
        if not name.startswith("roller") or "sinks" in fields:  # a tool has none
            return claim(pipeline, name, **fields)
        pipeline.log.read()
        permit, survey = Permit(generation=pipeline.state.generation), retention.Survey([], {})
        return Driver(pipeline, Claimed(permit=permit, state=pipeline.state, survey=survey), {})

    def append_for_another(self: Log, decide: Any, *, permit: Permit | None = None) -> State:
        def renamed(state: State | None) -> Any:
            change = decide(state)
            return msgspec.structs.replace(change, generation=state.generation) if change and state else None

        if not actor_of(self).startswith("roller"):
            return append(self, decide, permit=permit)
        return append(self, renamed)

    patch_claims(patch, no_claim)
    patch.setattr(Log, "append", append_for_another)


def without_guards_of_targets(patch: pytest.MonkeyPatch, find: Callable[[State, int], LiveCheckpoint]) -> None:
    patch.setattr(protocol_state, "find_target", find)
    patch.setattr(rollback, "find_target", find)
    patch.setattr(rollback_tool, "find_target", find)
    patch.setattr(actors, "find_target", find)
    trust_every_record(patch)


def a_rollback_may_go_to_an_undone_epoch(patch: pytest.MonkeyPatch) -> None:
    def find(state: State, epoch: int) -> LiveCheckpoint:
        found = state.find(epoch)
        if found is None:
            raise NotFound("gone", code="checkpoint.not_found")
        return found

    without_guards_of_targets(patch, find)


def a_rollback_may_go_to_a_retired_epoch(patch: pytest.MonkeyPatch) -> None:
    real, seen = protocol_state.find_target, dict[str, LiveCheckpoint]()

    def find(state: State, epoch: int) -> LiveCheckpoint:
        seen.update({f"{state.uid} {entry.epoch}": entry for entry in state.live})
        return real(state, epoch) if state.find(epoch) else seen[f"{state.uid} {epoch}"]

    without_guards_of_targets(patch, find)


def a_rollback_may_go_to_what_is_not_settled(patch: pytest.MonkeyPatch) -> None:
    real = protocol_state._apply_rollback

    def apply_rollback(state: State, change: changes.Rollback, append_id: str) -> State:
        after = real(msgspec.structs.replace(state, settled_epoch=state.epoch), change, append_id)
        return msgspec.structs.replace(after, settled_epoch=state.settled_epoch)

    patch.setattr(protocol_state, "_apply_rollback", apply_rollback)
    trust_every_record(patch)


def the_sweep_keeps_what_was_staged_for_undone_epochs(patch: pytest.MonkeyPatch) -> None:
    real = retention.sweep

    def sweep(pipeline, permit, survey, sinks, references):
        undone = {entry.checkpoint_id for entry in pipeline.state.live if entry.undone}
        attempts = {name: [a for a in found if a not in undone] for name, found in survey.attempts.items()}
        return real(pipeline, permit, retention.Survey(survey.keys, attempts), sinks, references)

    patch.setattr(driver, "sweep", sweep)


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
    real = verified_reads.newest_verified
    patch.setattr(actors, "verify_restorable", lambda store, entry, settings: None)
    patch.setattr(recovery, "newest_verified", lambda entries, try_out: real(entries, id))


def a_reader_does_not_list_again(patch: pytest.MonkeyPatch) -> None:
    """Rule 1's second list."""

    def read(self: Log) -> State | None:
        while (number := self._highest_after(self.number)) is not None:
            try:
                data = self._store.get(record_key(number))
            except NotFound:
                continue
            self._newest, self._newest_sha256 = records.decode(data, number=number), records.digest(data)
            break
        return self.state

    patch.setattr(Log, "read", read)


def a_writer_does_not_list_after_its_create(patch: pytest.MonkeyPatch) -> None:
    """Rule 3."""
    real = Log._create

    def create(self: Log, *args: Any) -> bool:
        self._highest_after = lambda number: None  # type: ignore[method-assign]
        try:
            return real(self, *args)
        finally:
            del self._highest_after

    patch.setattr(Log, "_create", create)


def a_trim_takes_the_newest_record(patch: pytest.MonkeyPatch) -> None:
    def trim(self: Log) -> int:
        self._store.delete([entry.key for entry in self._store.list("log/")][-1:])
        return 1

    patch.setattr(Log, "trim", trim)


def repairs_are_planned_otherwise(
    patch: pytest.MonkeyPatch, change: Callable[[repair.PreparedRepair], tuple[repair.RepairPlan, Manifest]]
) -> None:
    real = repair.prepare

    def prepare(*args: Any, **fields: Any) -> repair.PreparedRepair | None:
        prepared = real(*args, **fields)
        if prepared is None:
            return None
        plan, document = change(prepared)
        return msgspec.structs.replace(prepared, plan=plan, document=document)

    patch.setattr(repair, "prepare", prepare)


def a_repair_takes_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    def next_epoch(prepared: repair.PreparedRepair) -> tuple[repair.RepairPlan, Manifest]:
        epoch = prepared.plan.head_epoch + 1
        plan = msgspec.structs.replace(prepared.plan, epoch=epoch)
        return plan, msgspec.structs.replace(prepared.document, epoch=epoch)

    repairs_are_planned_otherwise(patch, next_epoch)


def a_repair_does_not_commit_an_open_target(patch: pytest.MonkeyPatch) -> None:
    def without_output(prepared: repair.PreparedRepair) -> tuple[repair.RepairPlan, Manifest]:
        document = prepared.document
        sinks = {name: msgspec.structs.replace(sink, descriptors=[]) for name, sink in document.sinks.items()}
        return prepared.plan, msgspec.structs.replace(document, sinks=sinks)

    repairs_are_planned_otherwise(patch, without_output)


def a_repair_ignores_a_lost_rollback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        repair, "find_bound", lambda lost, **_: (repair_target.position_of(lost.state, lost.state.live[-1]), "")
    )


def a_repair_needs_the_objects_of_its_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repair, "_copy", lambda store, objects, checkpoint_id, settings: objects)


def an_epoch_counts_before_the_one_before_is_settled(patch: pytest.MonkeyPatch) -> None:
    """A sink that fails is taken for one that has committed."""
    real = sink_driving.drive_sinks

    def drive(document: Any, sinks: Any) -> changes.Settlement:
        try:
            return real(document, sinks)
        except sink_driving.SinkFailed as failed:
            done = dict.fromkeys(failed.settlement.sinks, changes.SinkStatus(status="Committed"))
            return msgspec.structs.replace(failed.settlement, sinks=done)

    patch.setattr(checkpointer, "drive_sinks", drive)


def the_pointer_says_which_is_the_head(patch: pytest.MonkeyPatch) -> None:
    real = recovery._Recovery._read

    def read(self: Any) -> Found:
        pipeline, state = self.pipeline, self.pipeline.state
        try:
            named = pipeline.store.get(LATEST).decode()
        except NotFound:
            named = ""
        epoch = next((entry.epoch for entry in state.live if entry.checkpoint_id == named), state.epoch)
        older = [entry for entry in state.live if entry.epoch <= epoch]
        self.pipeline = SimpleNamespace(store=pipeline.store, state=msgspec.structs.replace(state, live=older))
        try:
            return real(self)
        finally:
            self.pipeline = pipeline

    patch.setattr(recovery._Recovery, "_read", read)


def restored_bytes_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    def read_range(store: SimStore, stored: Any, file: Any) -> Iterator[bytes]:
        return artifacts.get_parts(store, stored.key, file.offset or 0, file.size_bytes)

    patch.setattr(artifacts, "read_range", read_range)


def a_verifier_believes_what_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verification, "_verify_data", lambda *args: [])


def an_empty_log_beside_checkpoints_is_a_fresh_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(driver, "refuse_missing_log", lambda state, keys: None)


def a_sink_follows_any_pipeline_of_its_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimSink, "bind", lambda self, pipeline, sink, uid: setattr(self, "_uid", uid))


def one_bad_read_is_damage(patch: pytest.MonkeyPatch) -> None:
    for module in (recovery, rollback, verified_reads):
        patch.setattr(module, "twice", lambda read: read())


def an_inbox_may_drop_what_the_newest_checkpoint_covers(patch: pytest.MonkeyPatch) -> None:
    def covered(self: Acknowledgements, inbox: str, state: State) -> int | None:
        return self._positions(state.live[-1]).get(inbox) if state.live else None

    patch.setattr(Acknowledgements, "_covered", covered)


def an_inbox_is_told_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """It may drop what will be covered once the checkpoint counts, and has retired the oldest."""
    init, checkpoint = SimAcknowledgements.__init__, checkpointer.Checkpointer.checkpoint
    of: dict[str, SimAcknowledgements] = {}

    def init_and_remember(
        self: SimAcknowledgements, simulation: Simulation, actor: Any, *rest: Any, **fields: Any
    ) -> None:
        init(self, simulation, actor, *rest, **fields)
        of[actor.name] = self

    def tell_first(
        self: checkpointer.Checkpointer, cut: Any, attempt: Any, **fields: Any
    ) -> checkpointer.CheckpointReport:
        state = self._pipeline.state
        if state.live:
            retired = plans.plan_retire(state, self._pipeline.settings.keep_last)
            next_one = msgspec.structs.replace(state.live[-1], checkpoint_id=attempt.checkpoint_id)
            live = [*(entry for entry in state.live if entry.epoch not in retired), next_one]
            acknowledgements = of[actor_of(self._pipeline.log)]
            acknowledgements.know(attempt.checkpoint_id, cut.sources)
            acknowledgements.acknowledge(msgspec.structs.replace(state, live=live))
        return checkpoint(self, cut, attempt, **fields)

    patch.setattr(SimAcknowledgements, "__init__", init_and_remember)
    patch.setattr(checkpointer.Checkpointer, "checkpoint", tell_first)


def a_rollback_may_go_past_what_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollback, "keep_acknowledged", lambda target, later: target.source_offsets)
    patch.setattr(rollback_tool, "keep_acknowledged", lambda target, later: target.source_offsets)


def a_repeated_request_is_taken_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_commit.GroupCommit, "find", lambda self, appends: None)


def a_reader_begins_where_the_inbox_does(patch: pytest.MonkeyPatch) -> None:
    check, chunks = inbox_reader.check_range, inbox_reader.chunks_of

    def check_the_end(folder: Any, published: Published, inbox: str, begin: int, end: int | None = None) -> None:
        check(folder, published, inbox, max(begin, published.dropped), end)

    def skip(rocks: Any, inbox: str, begin: int, end: int) -> Iterator[list[inbox_reader.Message]]:
        begin = max(begin, rocks.description.dropped)
        return chunks(rocks, inbox, begin, end) if begin < end else iter([])

    patch.setattr(inbox_reader, "check_range", check_the_end)
    patch.setattr(inbox_reader, "chunks_of", skip)


def a_table_is_as_new_as_its_capture(patch: pytest.MonkeyPatch) -> None:
    read_feed, cut, feeds = actors.read_feed, Memory.cut, dict[int, Any]()

    def read_and_remember(memory: Memory, actor: Any) -> None:
        feeds[id(memory)] = actor
        read_feed(memory, actor)

    def read_again(self: Memory, *args: Any) -> Any:
        read_feed(self, feeds[id(self)])
        return cut(self, *args)

    patch.setattr(actors, "read_feed", read_and_remember)
    patch.setattr(Memory, "cut", read_again)


Patch = Callable[[pytest.MonkeyPatch], None]


class Guard(NamedTuple):
    """A rule of the protocol by its number, how to switch a guard of it off, the invariants of which one breaks then.

    Two where it depends on the sinks which of them breaks first.
    """

    rule: int
    off: Patch
    breaks: set[str]
    scenario: Patch | None = None


# By the rules of docs/spec/log.md.
MUTATIONS = [
    Guard(1, a_reader_does_not_list_again, {"newest"}, numbers_are_created_again_before_a_get),
    Guard(2, fenced_drivers_go_on, {"one-winner"}),
    Guard(2, a_lost_answer_counts_as_success, {"newest"}),
    Guard(3, a_writer_does_not_list_after_its_create, {"newest"}),
    Guard(4, an_epoch_counts_before_the_one_before_is_settled, {"exactly-once", "at-least-once"}),
    Guard(4, a_table_is_as_new_as_its_capture, {"one-version"}),
    Guard(5, sinks_commit_twice, {"exactly-once"}),
    Guard(5, the_head_is_not_driven_again, {"exactly-once", "at-least-once"}),
    Guard(5, the_sweep_takes_what_came_after_the_claim, {"restorable"}),
    Guard(5, the_sweep_keeps_what_was_staged_for_undone_epochs, {"swept"}),
    Guard(6, the_pointer_says_which_is_the_head, {"available"}),
    Guard(6, an_empty_log_beside_checkpoints_is_a_fresh_start, {"newest"}, the_log_is_lost),
    Guard(6, a_sink_follows_any_pipeline_of_its_name, {"exactly-once"}, a_program_is_started_on_another_store),
    Guard(7, restored_bytes_are_not_verified, {"verified"}),
    Guard(7, a_rollback_does_not_verify, {"verified"}),
    Guard(7, one_bad_read_is_damage, {"head-tried"}, many_reads_are_bad),
    Guard(7, a_verifier_believes_what_is_there, {"reported"}),
    Guard(8, labelled_checkpoints_are_retired, {"label-kept"}),
    Guard(8, a_labelled_checkpoint_can_be_forgotten, {"label-kept"}),
    Guard(8, the_head_can_be_forgotten, {"head-kept"}),
    Guard(8, forgetting_deletes_before_its_record, {"restorable"}, forgetters_take_their_time),
    Guard(8, retention_ignores_what_live_checkpoints_need, {"restorable"}),
    Guard(8, undone_checkpoints_lose_their_bytes, {"restorable"}),
    Guard(8, a_checkpoint_that_cannot_be_read_needs_nothing, {"restorable"}),
    Guard(9, an_inbox_may_drop_what_the_newest_checkpoint_covers, {"needed-kept"}),
    Guard(9, an_inbox_is_told_before_the_record, {"needed-kept"}),
    Guard(
        9,
        a_rollback_may_go_past_what_was_acknowledged,
        {"needed-kept"},
        sources_are_acknowledged_up_to_the_newest,
    ),
    Guard(9, a_repeated_request_is_taken_again, {"acknowledged"}),
    Guard(9, a_reader_begins_where_the_inbox_does, {"acknowledged"}, a_record_is_lost_that_let_messages_go),
    Guard(10, an_undo_is_skipped_by_the_next_start, {"undone"}),
    Guard(10, an_undo_does_not_move_the_epoch, {"undone"}, commits_come_after_an_undo),
    Guard(10, a_rollback_may_go_to_an_undone_epoch, {"undone"}),
    Guard(10, a_rollback_may_go_to_a_retired_epoch, {"undone", "restorable"}, rollbacks_and_deletes_come_late),
    Guard(10, a_rollback_may_go_to_what_is_not_settled, {"exactly-once", "at-least-once"}, rollbacks_go_to_the_head),
    Guard(11, a_tool_rolls_back_without_a_claim, {"restorable"}, rollers_take_their_time),
    Guard(12, a_trim_takes_the_newest_record, {"newest"}),
    Guard(13, a_repair_takes_the_next_epoch, {"exactly-once", "undone"}, a_rollback_is_lost_after_its_undo),
    Guard(
        13,
        a_repair_does_not_commit_an_open_target,
        {"exactly-once", "at-least-once"},
        a_claim_is_lost_beside_an_open_head,
    ),
    Guard(13, a_repair_ignores_a_lost_rollback, {"exactly-once", "at-least-once"}, a_rollback_is_lost_after_its_undo),
    Guard(13, a_repair_needs_the_objects_of_its_target, {"restorable"}, a_deleter_wakes_up_after_a_repair),
]
