"""Log records and ``apply``: what fits a state, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from slackwater.formats import record as records
from slackwater.formats.change import Change, Claim, Deleted, Label, Release, Retire, SinkStatus, Unlabel
from slackwater.formats.state import MAX_LABELS, MAX_LIVE, RetiredCheckpoint, Savepoint, State
from slackwater.protocol import state as states
from slackwater.protocol.state import apply
from tests.golden.samples import (
    APPENDS,
    FIRST,
    IDS,
    UID,
    checkpoint,
    entry,
    golden_records,
    rollback,
    seal,
    settlement,
    state,
)

CLAIM = Claim(uid=UID, driver="host:1")
PENDING = SinkStatus(status="Pending")
FAILED = SinkStatus(status="Failed", reason="no")
COMMITTED = SinkStatus(status="Committed")
DROPPED = SinkStatus(status="Dropped", reason="the user gave its output up")
# Epoch 2 is the head, settled; epoch 1 has a label.
TWO = state(
    epoch=2,
    settled_epoch=2,
    at_ms=2000,
    live=[entry(1), entry(2)],
    labels=[Savepoint(label="kept", epoch=1, created_at_ms=1500, append_id=APPENDS[6])],
)


# Epoch 3, which no sink has settled, was undone by epoch 4, a rollback to 2.
ROLLED_BACK = golden_records()["rollback"].state


def step(
    before: State | None, change: Change, *, number: int = 5, append_id: str = APPENDS[7], at_ms: int = 9000
) -> State:
    return apply(before, change, number=number, append_id=append_id, at_ms=at_ms)


def refusal(before: State | None, change: Change) -> SlackwaterError:
    with pytest.raises(SlackwaterError) as caught:
        step(before, change)
    return caught.value


def test_the_first_claim_makes_the_pipeline():
    assert apply(None, CLAIM, number=1, append_id=APPENDS[0], at_ms=500) == FIRST


def test_a_later_claim_keeps_the_uid_and_all_else_and_is_the_new_generation():
    released = msgspec.structs.replace(TWO, release_append_id=APPENDS[3])
    after = step(released, Claim(uid="0" * 32, driver="other"), number=9)
    assert after == msgspec.structs.replace(
        TWO, generation=9, claim_append_id=APPENDS[7], release_append_id=None, at_ms=9000
    )


def test_a_checkpoint_becomes_the_head_and_settles_the_one_before():
    after = step(state(epoch=1, live=[entry(1)]), checkpoint(2), append_id=APPENDS[2], at_ms=2000)
    assert after == state(epoch=2, settled_epoch=1, at_ms=2000, live=[entry(1), entry(2)])
    assert after.head == entry(2)


def test_a_checkpoint_retires_and_forgets_in_the_same_record():
    gone = RetiredCheckpoint(epoch=1, checkpoint_id=IDS[1], manifest_sha256=f"{1:064x}")
    before = msgspec.structs.replace(TWO, labels=[])
    after = step(before, checkpoint(3, settled=None, retire=[1]))
    assert [e.epoch for e in after.live] == [2, 3] and after.retired == [gone]
    assert step(after, Release(generation=1, settled=settlement(3), deleted=[1, 99])).retired == []


@pytest.mark.parametrize(
    ("change", "kind", "code", "words"),
    [
        (checkpoint(3, generation=2), Conflict, "driver.fenced", ""),
        (checkpoint(3, generation=0), Conflict, "driver.fenced", ""),
        (Release(generation=4, settled=None, deleted=[]), Conflict, "driver.fenced", ""),
        (checkpoint(2, settled=None), Conflict, "checkpoint.out_of_order", "does not follow"),
        (checkpoint(3, epoch=4, settled=None), Conflict, "checkpoint.out_of_order", "does not follow"),
        (checkpoint(3, parent_id=None), Conflict, "checkpoint.out_of_order", "does not follow"),
        (checkpoint(3, parent_id=IDS[1]), Conflict, "checkpoint.out_of_order", "does not follow"),
        (checkpoint(3, settled=settlement(1)), Conflict, "checkpoint.out_of_order", "is not the newest"),
        (
            Release(generation=1, settled=settlement(3), deleted=[]),
            Conflict,
            "checkpoint.out_of_order",
            "is not the newest",
        ),
        (checkpoint(3, retire=[3]), Conflict, "retire.not_allowed", ""),
        (checkpoint(3, retire=[1]), Conflict, "retire.not_allowed", ""),
        (checkpoint(3, retire=[2, 7]), Conflict, "retire.not_allowed", ""),
        (Retire(epochs=[1]), Conflict, "retire.not_allowed", ""),
        (Retire(epochs=[2]), Conflict, "retire.not_allowed", ""),
        (Retire(epochs=[7]), Conflict, "retire.not_allowed", ""),
        (Label(label="kept", epoch=2), Conflict, "label.taken", ""),
        (Label(label="new", epoch=3), NotFound, "checkpoint.not_found", ""),
        (Unlabel(label="new"), NotFound, "label.not_found", ""),
        (rollback(3, 1, generation=2), Conflict, "driver.fenced", ""),
        (rollback(3, 1, epoch=4), Conflict, "checkpoint.out_of_order", "does not follow"),
        (rollback(3, 1, epoch=2), Conflict, "checkpoint.out_of_order", "does not follow"),
        (rollback(3, 1, parent_id=IDS[1]), Conflict, "checkpoint.out_of_order", "does not follow"),
        (rollback(3, 7), NotFound, "checkpoint.not_found", ""),
        (rollback(3, 3), NotFound, "checkpoint.not_found", ""),
        (rollback(3, 0), NotFound, "checkpoint.not_found", ""),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change, kind, code, words):
    error = refusal(TWO, change)
    assert (type(error), error.code) == (kind, code) and words in str(error)


@pytest.mark.parametrize(
    "change",
    [
        checkpoint(1),
        rollback(1, 0),
        Label(label="a", epoch=1),
        Unlabel(label="a"),
        Retire(epochs=[]),
        Deleted(epochs=[1]),
        Release(generation=1, settled=None, deleted=[]),
    ],
)
def test_only_a_claim_fits_an_empty_log(change):
    assert refusal(None, change).code == "pipeline.not_found"


@pytest.mark.parametrize("statuses", [{"a": PENDING}, {"a": FAILED}, {"a": COMMITTED, "b": FAILED}])
def test_C10_an_epoch_that_some_sink_has_not_committed_blocks_the_next(statuses):
    before = state(epoch=1, live=[entry(1)])
    assert refusal(before, checkpoint(2, settled=settlement(1, **statuses))).code == "checkpoint.unsettled"
    assert refusal(before, checkpoint(2, settled=None)).code == "checkpoint.unsettled"
    assert step(before, checkpoint(2, settled=settlement(1, a=COMMITTED, b=COMMITTED))).settled_epoch == 1


def test_a_release_records_a_failure_and_leaves_the_epoch_unsettled():
    before = state(epoch=1, live=[entry(1)])
    after = step(before, Release(generation=1, settled=settlement(1, a=FAILED), deleted=[]))
    assert (after.settled_epoch, after.release_append_id) == (0, APPENDS[7])
    assert step(before, Release(generation=1, settled=settlement(1), deleted=[])).settled_epoch == 1


def test_C10_what_the_user_gave_up_for_a_sink_settles_the_epoch():
    before = state(epoch=1, live=[entry(1)])
    assert step(before, checkpoint(2, settled=settlement(1, a=COMMITTED, b=DROPPED))).settled_epoch == 1
    assert refusal(before, checkpoint(2, settled=settlement(1, a=FAILED, b=DROPPED))).code == "checkpoint.unsettled"


def test_a_rollback_becomes_the_head_and_undoes_all_after_its_target():
    before = state(epoch=3, settled_epoch=2, at_ms=3000, live=[entry(1), entry(2), entry(3)])
    after = step(before, rollback(4, 2), append_id=APPENDS[5], at_ms=4000)
    assert after == ROLLED_BACK
    assert [e.epoch for e in after.branch] == [1, 2, 4]
    assert after.head == entry(4, append_id=APPENDS[5], rollback_to=2) and after.has(APPENDS[5])


def test_a_rollback_needs_nothing_settled_but_its_target_and_a_checkpoint_after_it_needs_the_rollback_settled():
    sixth = "0192d3f0-7b7c-7000-8000-000000000006"
    further = step(ROLLED_BACK, rollback(4, 1, epoch=5, checkpoint_id=sixth, parent_id=IDS[4]))
    assert further.settled_epoch == 2 and [e.epoch for e in further.branch] == [1, 5]
    after = checkpoint(1, epoch=6, parent_id=sixth)
    assert refusal(further, after).code == "checkpoint.unsettled"
    settled = settlement(5, a=COMMITTED)
    assert step(further, msgspec.structs.replace(after, settled=settled)).settled_epoch == 5
    assert step(further, Release(generation=1, settled=settled, deleted=[])).settled_epoch == 5


def test_an_undone_epoch_is_never_a_target_again_and_stays_undone():
    settled = msgspec.structs.replace(ROLLED_BACK, settled_epoch=4)
    error = refusal(settled, rollback(4, 3, epoch=5, parent_id=IDS[4]))
    assert (type(error), error.code) == (Conflict, "rollback.impossible") and "--at 3" in str(error.hint)
    assert "was undone" in error.message
    later = step(settled, checkpoint(4, epoch=5, parent_id=IDS[4], settled=None))
    assert [e.epoch for e in later.live if e.undone] == [3]
    labelled = step(settled, Label(label="what was", epoch=3))
    assert labelled.labels[0].epoch == 3


def test_a_target_that_not_every_sink_has_is_refused():
    # A rollback commits nothing: what the sinks lack of its target they would lack for ever.
    unsettled = state(epoch=2, settled_epoch=1, live=[entry(1), entry(2)])
    assert refusal(unsettled, rollback(3, 2)).code == "checkpoint.unsettled"
    assert refusal(ROLLED_BACK, rollback(4, 4, epoch=5, parent_id=IDS[4])).code == "checkpoint.unsettled"
    assert step(msgspec.structs.replace(unsettled, settled_epoch=2), rollback(3, 2)).epoch == 3


def test_a_full_state_takes_a_checkpoint_that_retires_and_a_rollback_that_does_not(monkeypatch):
    monkeypatch.setattr(states, "MAX_LIVE", 3)
    monkeypatch.setattr(states, "ROOM_FOR_ROLLBACKS", 1)
    assert refusal(TWO, checkpoint(3)).code == "checkpoint.too_many"
    retiring = msgspec.structs.replace(checkpoint(3), retire=[2])
    assert [entry.epoch for entry in step(TWO, retiring).live] == [1, 3]
    assert [entry.epoch for entry in step(TWO, rollback(3, 1)).live] == [1, 2, 3]


def test_the_bounds_of_a_state_are_kept(monkeypatch):
    monkeypatch.setattr(states, "MAX_LIVE", 2)
    monkeypatch.setattr(states, "MAX_LABELS", 1)
    assert refusal(TWO, checkpoint(3)).code == "checkpoint.too_many"
    assert refusal(TWO, rollback(3, 1)).code == "checkpoint.too_many"
    error = refusal(TWO, Label(label="second", epoch=2))
    assert error.code == "log.state_too_large" and "savepoints at the most" in error.message


def test_A9_epochs_order_checkpoints_whatever_the_clock_and_the_ids_say():
    older = checkpoint(1, checkpoint_id="ffffffff-ffff-7fff-bfff-ffffffffffff")
    newer = checkpoint(2, checkpoint_id="00000000-0000-7000-8000-000000000000", parent_id=older.checkpoint_id)
    after = step(step(FIRST, older, at_ms=10**12), newer, at_ms=5)
    assert after.head and after.head.checkpoint_id == newer.checkpoint_id


def test_anyone_retires_and_says_what_is_deleted_and_no_driver_is_fenced():
    golden = golden_records()["retire"]
    retired = step(ROLLED_BACK, Retire(epochs=[3, 1]), at_ms=0)
    assert retired == golden.state and retired.generation == ROLLED_BACK.generation
    assert [e.epoch for e in step(retired, Deleted(epochs=[1, 2, 99])).retired] == [3]
    assert step(retired, Deleted(epochs=[2, 4])).live == retired.live


def test_times_never_go_back():
    after = step(step(FIRST, checkpoint(1), at_ms=8000), checkpoint(2), at_ms=10)
    assert [e.created_at_ms for e in after.live] == [8000, 8000] and after.at_ms == 8000
    assert step(after, Label(label="x", epoch=1), at_ms=0).labels[0].created_at_ms == 8000
    assert step(after, CLAIM, at_ms=0).at_ms == 8000


def test_a_state_has_the_append_that_made_claim_release_checkpoint_or_label():
    assert all(TWO.has(append_id) for append_id in (APPENDS[0], APPENDS[1], APPENDS[2], APPENDS[6]))
    assert not TWO.has(APPENDS[5])
    assert step(TWO, Release(generation=1, settled=None, deleted=[])).has(APPENDS[7])


def test_apply_changes_nothing_in_the_state_that_it_is_given():
    before = msgspec.json.encode(TWO)
    step(TWO, checkpoint(3, settled=None))
    step(TWO, rollback(3, 1))
    step(TWO, Label(label="x", epoch=2))
    step(TWO, Unlabel(label="kept"))
    step(msgspec.structs.replace(TWO, labels=[]), Retire(epochs=[1]))
    assert msgspec.json.encode(TWO) == before


@pytest.mark.parametrize("field", State.__struct_fields__)
def test_A5_every_field_of_a_state_is_required(field):
    body = msgspec.to_builtins(golden_records()["claim"])
    del body["state"][field]
    with pytest.raises(Corrupt) as caught:
        records.decode(seal(msgspec.json.encode(body)), number=1)
    assert caught.value.code == "log.corrupt"


def test_A6_the_version_is_looked_at_before_the_rest():
    with pytest.raises(Unsupported) as caught:
        records.decode(seal(b'{"version":2,"number":"one"}'), number=1)
    assert caught.value.code == "format.unknown_version" and "has version" in str(caught.value)


def test_A14_the_bytes_of_a_record_are_canonical():
    data = records.encode(golden_records()["label"])
    text = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert data == text.encode()


def test_a_record_too_large_is_refused_before_it_is_decoded(monkeypatch):
    data = records.encode(golden_records()["claim"])
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", len(data) - 1)
    with pytest.raises(Corrupt, match="larger"):
        records.decode(data, number=1)


@pytest.mark.parametrize(
    "change",
    [
        Claim(uid=UID, driver="d" * 201),
        Claim(uid="upper CASE", driver="d"),
        Label(label="", epoch=1),
        Release(generation=1, settled=settlement(1, a=SinkStatus(status="Failed", reason="r" * 501)), deleted=[]),
        Release(generation=1, settled=None, deleted=[-1]),
    ],
)
def test_what_could_not_be_read_again_is_never_written(change):
    record = msgspec.structs.replace(golden_records()["claim"], change=change)
    with pytest.raises(InvalidInput) as caught:
        records.encode(record)
    assert caught.value.code == "checkpoint.unwritable" and "could not be read again" in str(caught.value)


def test_a_state_as_large_as_it_may_be_fits_a_record():
    live = [entry(1, epoch=n + 2**52, rollback_to=2**52) for n in range(MAX_LIVE)]
    labels = [Savepoint(label="ü" * 200, epoch=2**52, created_at_ms=2**52, append_id=APPENDS[0])] * MAX_LABELS
    retired = [RetiredCheckpoint(epoch=2**52, checkpoint_id=IDS[0], manifest_sha256="0" * 64)] * 1_000
    record = msgspec.structs.replace(golden_records()["claim"], state=state(live=live, labels=labels, retired=retired))
    assert len(records.encode(record)) <= records.MAX_RECORD_BYTES


THREE = [entry(1), entry(2), entry(3)]
WRONG: dict[str, dict[str, Any]] = {
    "out of order": {"live": [entry(1), entry(3), entry(2)]},
    "twice": {"live": [*THREE, entry(3)]},
    "newest epoch not live": {"live": THREE[:2]},
    "an id for two epochs": {"live": [entry(1), entry(2), entry(3, checkpoint_id=IDS[2])]},
    "live and retired": {"retired": [RetiredCheckpoint(epoch=3, checkpoint_id=IDS[4], manifest_sha256=f"{3:064x}")]},
    "label": {"labels": [Savepoint(label="lost", epoch=77, created_at_ms=0, append_id=APPENDS[6])]},
    "settled": {"settled_epoch": 4},
    "generation": {"generation": 6},
    "checkpoint after an open one": {"settled_epoch": 1},
    "checkpoint after an open rollback": {
        "live": [entry(1), entry(2, undone=True), entry(3, rollback_to=1), entry(4)],
        "epoch": 4,
    },
    "rollback to itself": {"live": [entry(1), entry(2), entry(3, rollback_to=3)], "settled_epoch": 3},
    "rollback to before the first": {"live": [entry(1, undone=True), entry(2, undone=True), entry(3, rollback_to=0)]},
    "rollback to an open one": {"live": [*THREE[:2], entry(3, rollback_to=2)], "settled_epoch": 1},
    "rollback that undoes nothing": {"live": [entry(1), entry(2), entry(3, rollback_to=1)]},
    "rollback whose undone came back": {
        "live": [entry(1), entry(2), entry(3, rollback_to=1, undone=True), entry(4, rollback_to=2)],
        "epoch": 4,
    },
    "head undone": {"live": [entry(1), entry(2), entry(3, undone=True)]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_state_that_no_changes_could_have_made_is_refused_though_its_digest_is_right(wrong):
    good = msgspec.structs.replace(golden_records()["rollback"], state=state(epoch=3, settled_epoch=2, live=THREE))
    records.decode(records.encode(good), number=5)
    record = msgspec.structs.replace(good, state=msgspec.structs.replace(good.state, **WRONG[wrong]))
    with pytest.raises(Corrupt) as caught:
        records.decode(seal(msgspec.json.encode(record, order="sorted")), number=5)
    assert caught.value.code == "log.corrupt"
    assert "contradicts itself" in str(caught.value)
