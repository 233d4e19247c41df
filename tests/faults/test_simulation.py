"""The real log, checkpointer, recovery, retention under crashes, stalls, lost answers, second drivers, by seed."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from slackwater import checkpointer, recovery, retention
from slackwater.errors import SlackwaterError, Unavailable
from slackwater.formats import plans, records
from slackwater.testing.simulation import SimSink, SimStore, Violation
from tests.faults import protocol

SEEDS = int(os.environ.get("SEEDS", "400"))


def test_no_seed_breaks_an_invariant() -> None:
    for seed in range(SEEDS):
        try:
            protocol.play(seed)
        except (Violation, SlackwaterError) as error:
            pytest.fail(f"seed {seed}: {error}")


def test_one_seed_gives_one_trace() -> None:
    assert protocol.play(7).trace == protocol.play(7).trace
    assert protocol.play(7).trace != protocol.play(8).trace


# Each guard of the protocol, switched off, and the invariant that must then break.
def fenced_drivers_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "require_current", lambda state, generation: None)


def sinks_commit_twice(patch: pytest.MonkeyPatch) -> None:
    def apply(self: SimSink, descriptors: list[dict[str, Any]], epoch: int) -> None:
        for descriptor in descriptors:
            self.memory.staged.pop(str(descriptor["attempt"]), None)
            self.memory.rows += descriptor["rows"]
        self.memory.epoch = epoch

    patch.setattr(SimSink, "apply", apply)


def the_head_is_not_driven_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "commit_sinks", lambda document, sinks: None)
    patch.setattr(records, "_settle", lambda state, settled: msgspec.structs.replace(state, settled_epoch=state.epoch))


def the_sweep_takes_what_came_after_the_claim(patch: pytest.MonkeyPatch) -> None:
    real = retention.sweep

    def sweep(store, state, survey, sinks, references):
        late = recovery.Survey(
            [entry.key for entry in store.list("checkpoints/")], {name: sink.staged() for name, sink in sinks.items()}
        )
        return real(store, state, late, sinks, references)

    patch.setattr(retention, "sweep", sweep)


def labelled_checkpoints_are_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        checkpointer,
        "plan_retire",
        lambda state, keep_last: plans.plan_retire(msgspec.structs.replace(state, labels=[]), keep_last),
    )
    real = records._retire

    def retire(state: records.State, epochs: list[int]) -> records.State:
        labels = state.labels
        state = real(msgspec.structs.replace(state, labels=[]), epochs)
        return msgspec.structs.replace(state, labels=labels)

    patch.setattr(records, "_retire", retire)
    # The reader's own check would refuse such a record, too.
    patch.setattr(records, "_contradiction", lambda state, number: None)


def retention_ignores_what_live_checkpoints_need(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention.References, "of_live", lambda self, state: set())


def a_lost_answer_counts_as_success(patch: pytest.MonkeyPatch) -> None:
    real = SimStore.create

    def create(self: SimStore, key: str, data: bytes) -> bool:
        try:
            return real(self, key, data)
        except Unavailable:
            return True

    patch.setattr(SimStore, "create", create)


MUTATIONS = {
    fenced_drivers_go_on: {"exactly-once", "restorable", "staged-kept", "available"},
    sinks_commit_twice: {"exactly-once"},
    the_head_is_not_driven_again: {"exactly-once"},
    the_sweep_takes_what_came_after_the_claim: {"restorable", "staged-kept", "available"},
    labelled_checkpoints_are_retired: {"label-kept"},
    retention_ignores_what_live_checkpoints_need: {"restorable", "available"},
    a_lost_answer_counts_as_success: {"exactly-once", "restorable", "staged-kept", "available"},
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_without_a_guard_some_seed_breaks_an_invariant(mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(min(SEEDS, 300)):
        try:
            protocol.play(seed)
        except Violation as violation:
            assert str(violation).partition(":")[0] in MUTATIONS[mutation], violation
            return
        except SlackwaterError:
            continue
    pytest.fail("no seed noticed that the guard is off")
