"""``apply`` under any sequence of changes: the invariants of the state hold after each."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slackwater.errors import SlackwaterError
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats.change import (
    NOTHING_PACKED,
    Checkpoint,
    Claim,
    Deleted,
    Label,
    Release,
    Retire,
    Rollback,
    Settlement,
    SinkStatus,
    Unlabel,
)
from slackwater.formats.state import State
from slackwater.protocol import state as protocol_state
from slackwater.protocol.keep_rules import KeepRules, plan_forget, plan_retire

EPOCHS = st.integers(0, 12)
LABELS = st.sampled_from("abc")
# Mostly right, so that histories grow long enough for what needs several steps.
RIGHT = st.sampled_from([True, True, True, False])
STATUSES = st.lists(
    st.sampled_from([*["Committed"] * 5, "Dropped", "Pending", "Failed"]),
    max_size=2,
)
CODES = {
    "driver.fenced",
    "checkpoint.out_of_order",
    "checkpoint.unsettled",
    "rollback.impossible",
    "retire.not_allowed",
    "label.taken",
    "label.not_found",
    "checkpoint.not_found",
    "pipeline.not_found",
}


def checkpoint_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


class Log(RuleBasedStateMachine):
    """Writers of every kind, right and wrong; a model of what must be true is kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.number = 0
        self.retired: set[int] = set()
        self.undone: set[int] = set()
        # The epochs whose rows each epoch's state stands for, and those that a sink has which does as it is told.
        self.content: dict[int, list[int]] = {0: []}
        self.sink: list[int] = []

    def attempt(self, change: changes.Change, at_ms: int) -> bool:
        before = self.state
        frozen = msgspec.json.encode(before)
        try:
            after = protocol_state.apply(
                before, change, number=self.number + 1, append_id=f"{self.number + 1:032x}", at_ms=at_ms
            )
        except SlackwaterError as error:
            assert error.code in CODES
            assert msgspec.json.encode(self.state) == frozen
            return False
        if before is not None:
            self.drive_sink(before, after)
            self.check_step(before, after)
            self.follow(change, before)
        self.number += 1
        self.state = after
        record = records.Record(
            version=1,
            number=self.number,
            append_id=f"{self.number:032x}",
            previous_sha256=None,
            change=change,
            state=after,
        )
        assert records.decode(records.encode(record), number=self.number).state == after
        return True

    def check_step(self, before: State, after: State) -> None:
        assert after.uid == before.uid
        assert after.at_ms >= before.at_ms
        assert after.generation >= before.generation
        assert after.epoch in (before.epoch, before.epoch + 1)
        assert after.settled_epoch >= before.settled_epoch
        if after.epoch > before.epoch:
            rolled_back = after.live[-1].rollback_to is not None
            assert rolled_back or after.settled_epoch == before.epoch, "an epoch counted before the one in front"
            assert after.live[-1].parent_id == (before.head.checkpoint_id if before.head else None)
        gone = {e.epoch for e in before.live} - {e.epoch for e in after.live}
        assert not gone & {s.epoch for s in before.labels}, "a labelled epoch was retired"
        assert gone <= {e.epoch for e in after.retired}, "an epoch vanished without a trace"
        self.retired |= gone
        assert {e.epoch for e in before.live if e.undone} - gone <= {e.epoch for e in after.live if e.undone}

    def drive_sink(self, before: State, after: State) -> None:
        """Commit or undo in the sink what the record says is settled: only the newest epoch can be."""
        if after.settled_epoch > before.settled_epoch:
            assert after.settled_epoch == before.epoch and before.head is not None
            target = before.head.rollback_to
            if target is None:
                self.sink = [*self.sink, before.epoch]
            else:
                self.sink = [epoch for epoch in self.sink if epoch <= target]
            assert self.sink == self.content[before.epoch], "a sink does not have the rows that the state stands for"

    def follow(self, change: changes.Change, before: State) -> None:
        if isinstance(change, Checkpoint):
            self.content[change.epoch] = [*self.content[before.epoch], change.epoch]
        elif isinstance(change, Rollback):
            self.content[change.epoch] = self.content[change.to_epoch]
            self.undone |= {e.epoch for e in before.live if e.epoch > change.to_epoch}

    @rule(at_ms=st.integers(0, 10**6), uid=st.sampled_from(["a" * 32, "b" * 32]))
    def claim(self, at_ms: int, uid: str) -> None:
        assert self.attempt(Claim(uid=uid, driver="d"), at_ms)

    @precondition(lambda self: self.state is not None)
    @rule(data=st.data(), at_ms=st.integers(0, 10**6), statuses=STATUSES)
    def checkpoint(self, data: st.DataObject, at_ms: int, statuses: list[str]) -> None:
        state = self.state
        assert state is not None
        right = data.draw(RIGHT)
        change = Checkpoint(
            generation=state.generation if right else data.draw(st.integers(0, self.number + 1)),
            epoch=state.epoch + 1 if right else data.draw(EPOCHS),
            checkpoint_id=checkpoint_id(self.number),
            manifest_sha256="0" * 64,
            manifest_size_bytes=1,
            parent_id=state.head.checkpoint_id if state.head else None,
            settled=self.settlement(state.epoch if right else data.draw(EPOCHS), statuses) if state.epoch else None,
            retire=plan_retire(state, data.draw(st.integers(1, 4)))
            if right
            else data.draw(st.lists(EPOCHS, max_size=3)),
            deleted=data.draw(st.lists(EPOCHS, max_size=3)),
        )
        done = self.attempt(change, at_ms)
        committed = set(statuses) <= {"Committed", "Dropped"}
        if right and (committed or state.settled_epoch == state.epoch):
            assert done, "a checkpoint that fits was refused"

    @precondition(lambda self: self.state is not None and self.state.epoch > 0)
    @rule(data=st.data(), at_ms=st.integers(0, 10**6))
    def rollback(self, data: st.DataObject, at_ms: int) -> None:
        state = self.state
        assert state is not None and state.head is not None
        right = data.draw(RIGHT)
        to_epoch = data.draw(st.sampled_from([e.epoch for e in state.live]) if right else EPOCHS)
        change = Rollback(
            generation=state.generation if right else data.draw(st.integers(0, self.number + 1)),
            epoch=state.epoch + 1 if right else data.draw(EPOCHS),
            checkpoint_id=checkpoint_id(self.number),
            manifest_sha256="0" * 64,
            manifest_size_bytes=1,
            parent_id=state.head.checkpoint_id,
            to_epoch=to_epoch,
        )
        done = self.attempt(change, at_ms)
        assert not done or to_epoch not in self.undone, "went back to an undone epoch"
        if right and to_epoch not in self.undone and to_epoch < state.epoch:
            assert done, "a rollback that fits was refused"

    @precondition(lambda self: self.state is not None)
    @rule(statuses=STATUSES, epoch=EPOCHS, deleted=st.lists(EPOCHS, max_size=3), own=st.booleans())
    def release(self, statuses: list[str], epoch: int, deleted: list[int], own: bool) -> None:
        assert self.state is not None
        generation = self.state.generation + (0 if own else 1)
        done = self.attempt(
            Release(generation=generation, settled=self.settlement(epoch, statuses), deleted=deleted), 0
        )
        assert not done or own

    @rule(epochs=st.lists(EPOCHS, max_size=3))
    def retire(self, epochs: list[int]) -> None:
        state = self.state
        fits = state is not None and set(epochs) <= {e.epoch for e in state.live[:-1]} - {s.epoch for s in state.labels}
        assert self.attempt(Retire(epochs=epochs), 0) == fits or not epochs

    @precondition(lambda self: self.state is not None and len(self.state.live) > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        assert self.state is not None
        count = st.none() | st.integers(1, 4)
        rules = KeepRules(last=data.draw(count), hourly=data.draw(count), daily=data.draw(count))
        leaving = [verdict.epoch for verdict in plan_forget(self.state, rules) if not verdict.keep]
        assert self.attempt(Retire(epochs=leaving), 0), "a plan was refused"

    @rule(epochs=st.lists(EPOCHS, max_size=3))
    def deleted(self, epochs: list[int]) -> None:
        before = self.state
        if self.attempt(Deleted(epochs=epochs), 0):
            assert self.state is not None and before is not None and self.state.live == before.live

    @rule(label=LABELS, epoch=EPOCHS)
    def label(self, label: str, epoch: int) -> None:
        known = self.state is not None and self.state.find(epoch) is not None
        assert not self.attempt(Label(label=label, epoch=epoch), 0) or known

    @rule(label=LABELS)
    def unlabel(self, label: str) -> None:
        self.attempt(Unlabel(label=label), 0)

    def settlement(self, epoch: int, statuses: list[str]) -> Settlement:
        sinks = {str(n): SinkStatus(status=status) for n, status in enumerate(statuses)}  # type: ignore[arg-type]
        return Settlement(
            epoch=epoch, sinks=sinks, durations_ms={}, requests={}, packed=NOTHING_PACKED, new_bytes=0, full_bytes=0
        )

    @invariant()
    def the_state_is_sound(self) -> None:
        state = self.state
        if state is None:
            return
        epochs = [e.epoch for e in state.live]
        assert epochs == sorted(set(epochs)), "epochs do not strictly increase"
        assert not set(epochs) & self.retired, "a retired epoch came back"
        assert state.epoch == (epochs[-1] if epochs else 0), "the head was retired"
        assert state.settled_epoch <= state.epoch
        assert {e.epoch for e in state.live if e.undone} == self.undone & set(epochs), "undone, or not"
        assert not state.head or state.branch[-1] is state.head, "the head was undone"
        assert all(e.epoch <= state.settled_epoch for e in state.branch[:-1]), "an open epoch under the head"
        assert {s.epoch for s in state.labels} <= set(epochs), "a labelled epoch is not live"
        assert len({s.label for s in state.labels}) == len(state.labels)
        times = [e.created_at_ms for e in state.live]
        assert times == sorted(times) and (not times or times[-1] <= state.at_ms)


TestLog = Log.TestCase
TestLog.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
