"""What a start does about the newest checkpoint, decided from what was read: no store, no log, no sink."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import Conflict, Corrupt, SlackwaterError
from slackwater.formats.keys import manifest_key
from slackwater.formats.manifest import Manifest, RolledBack, SinkOutput
from slackwater.formats.state import State
from slackwater.protocol import decision
from slackwater.protocol.decision import (
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
from tests.golden.samples import IDS, entry, golden_manifest, state

# Epochs 1 to 3, the head 3; two sinks have output in it, and `alerts` is a function, which keeps no rows.
TOTALS = SinkOutput(kind="delta", address="s3://lake/totals", can_undo=True, descriptors=[{"rows": 3}])
SALES = SinkOutput(kind="files", address="s3://lake/sales", can_undo=True, descriptors=[{"rows": 1}])
ALERTS = SinkOutput(kind="function", address="app.alert", can_undo=False, descriptors=[{"rows": 1}])
OUTPUTS = {"totals": TOTALS, "sales": SALES, "alerts": ALERTS}
DAMAGE = Corrupt("an object is damaged", code="object.damaged", key="checkpoints/x/batches/0.lcb")


def three(*, settled: bool = True, **fields: Any) -> State:
    return state(epoch=3, settled_epoch=3 if settled else 2, live=[entry(1), entry(2), entry(3)], **fields)


def head(*, rollback: RolledBack | None = None, **outputs: SinkOutput) -> Manifest:
    sinks = OUTPUTS | outputs
    if rollback is not None:
        sinks = {name: msgspec.structs.replace(output, descriptors=[]) for name, output in sinks.items()}
    return msgspec.structs.replace(
        golden_manifest(), epoch=3, checkpoint_id=IDS[3], rollback=rollback, sinks=sinks, sink_names=list(sinks)
    )


def back_to(epoch: int, *keep: str) -> RolledBack:
    return RolledBack(to_epoch=epoch, to_id=IDS[epoch], keep=list(keep))


def standing(output: SinkOutput, epoch: int = 3, **fields: Any) -> SinkStanding:
    return msgspec.structs.replace(SinkStanding(kind=output.kind, address=output.address, epoch=epoch), **fields)


def sinks(without: Collection[str] = (), **others: SinkStanding) -> dict[str, SinkStanding]:
    """All sinks of the head where they were, but for some."""
    return {name: standing(output) for name, output in OUTPUTS.items() if name not in without} | others


def refused(found: Found) -> SlackwaterError:
    made = decide(found)
    assert isinstance(made, Refuse), made
    return made.error


# --- the head is sound


def test_a_pipeline_without_a_checkpoint_starts_fresh():
    assert decide(Found(state=state())) == Fresh()
    assert decide(Found(state=state(), sinks=sinks(), may_fall_back=True)) == Fresh()


def test_a_settled_head_is_gone_on_from():
    newest = head()
    assert decide(Found(state=three(), head=newest, sinks=sinks())) == GoOn(newest)


def test_a_head_that_no_record_says_is_settled_is_committed_again():
    newest = head()
    assert decide(Found(state=three(settled=False), head=newest, sinks=sinks())) == CommitAgain(newest)
    # A sink that has it already says so; that the record is missing is reason enough.
    behind = sinks(totals=standing(TOTALS, epoch=2))
    assert decide(Found(state=three(settled=False), head=newest, sinks=behind)) == CommitAgain(newest)


@pytest.mark.parametrize("settled", [False, True])
def test_a_head_that_is_a_rollback_is_undone_to_whether_or_not_all_have_followed(settled):
    newest = head(rollback=back_to(2))
    assert decide(Found(state=three(settled=settled), head=newest, sinks=sinks())) == Undo(newest, settled)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("rollback", [None, back_to(2)])
def test_a_sink_that_is_ahead_of_the_log_is_refused_before_anything_is_driven(settled, rollback):
    found = Found(
        state=three(settled=settled), head=head(rollback=rollback), sinks=sinks(totals=standing(TOTALS, epoch=4))
    )
    error = refused(found)
    assert isinstance(error, Conflict) and error.code == "sink.ahead"
    assert "'totals' has committed epoch 4, but the log ends at epoch 3" in error.message and "backup" in str(
        error.hint
    )
    # One that the head does not name is asked too: it knows this pipeline's uid.
    stray = Found(state=found.state, head=found.head, sinks=sinks(late=standing(SALES, epoch=4)))
    assert "'late'" in refused(stray).message


@pytest.mark.parametrize(
    ("there", "now"),
    [
        (sinks(without=["totals"]), "and is not in the pipeline"),
        (sinks(totals=standing(TOTALS, address="s3://other/totals")), "and is at s3://other/totals (delta) in the"),
        (sinks(totals=standing(TOTALS, kind="files")), "and is at s3://lake/totals (files) in the pipeline"),
    ],
    ids=["gone", "moved", "of another kind"],
)
@pytest.mark.parametrize(
    ("newest", "what"), [(head(), "output to commit"), (head(rollback=back_to(2)), "rows to take back")]
)
def test_open_output_of_a_sink_that_is_not_there_is_refused_until_it_is_dropped(newest, what, there, now):
    error = refused(Found(state=three(settled=False), head=newest, sinks=there))
    assert isinstance(error, Conflict) and error.code == "sink.missing"
    assert f"'totals' has {what} for epoch 3 at s3://lake/totals (delta), {now}" in error.message
    assert "drop_sink=['totals']" in str(error.hint)
    given_up = decide(Found(state=three(settled=False), head=newest, sinks=there, dropped=["totals"]))
    assert given_up == (CommitAgain(newest) if newest.rollback is None else Undo(newest, False))
    # Once it is settled, nobody asks for it any more.
    settled = decide(Found(state=three(), head=newest, sinks=there))
    assert settled == (GoOn(newest) if newest.rollback is None else Undo(newest, True))


def test_every_sink_that_is_not_there_must_be_dropped_by_name():
    found = Found(state=three(settled=False), head=head(), sinks={})
    assert "'alerts'" in refused(found).message
    assert "'sales'" in refused(msgspec.structs.replace(found, dropped=["alerts", "unheard of"])).message
    assert isinstance(decide(msgspec.structs.replace(found, dropped=["alerts", "sales", "totals"])), CommitAgain)


def test_where_a_sink_is_that_has_no_rows_at_stake_says_nothing():
    elsewhere = sinks(alerts=standing(ALERTS, address="app.other"), sales=standing(SALES, address="s3://other"))
    nothing_staged = head(sales=msgspec.structs.replace(SALES, descriptors=[]))
    assert isinstance(decide(Found(state=three(settled=False), head=nothing_staged, sinks=elsewhere)), CommitAgain)
    kept = head(rollback=back_to(2, "sales"))
    assert decide(Found(state=three(settled=False), head=kept, sinks=elsewhere)) == Undo(kept, False)


# --- the head is damaged


def damaged(**fields: Any) -> Found:
    return Found(state=three(), damage=DAMAGE, **fields)


def test_a_program_that_has_the_newest_state_itself_goes_on_without_the_head():
    for fields in ({}, {"may_fall_back": True, "target": entry(2)}, {"refusals": {"totals": "no"}}):
        assert decide(damaged(own_state="a database", **fields)) == GoOnWithoutHead("a database")


def test_where_it_is_allowed_and_no_sink_refuses_it_is_fallen_back():
    assert decide(damaged(may_fall_back=True, target=entry(2))) == FallBack(DAMAGE, entry(2), ())
    kept = decide(damaged(may_fall_back=True, target=entry(1), keep=["sales"]))
    assert kept == FallBack(DAMAGE, entry(1), ["sales"])


def test_without_leave_to_fall_back_it_is_said_what_that_would_lose():
    error = refused(damaged(target=entry(1)))
    assert isinstance(error, Corrupt) and error.code == "head.damaged"
    assert "epoch 3, cannot be restored: an object is damaged; the newest that verifies is epoch 1" in error.message
    assert "epochs 2 to 3 are lost" in error.message
    assert "fallback" in str(error.hint) and "slackwater rollback URL --to 1 --yes" in str(error.hint)
    assert error.details == {"epoch": 3, "key": DAMAGE.details["key"], "lost": [2, 3], "newest_verified": 1}
    assert "; epoch 3 is lost" in refused(damaged(target=entry(2))).message


def test_what_was_undone_before_is_not_lost_now():
    live = [entry(1), entry(2, undone=True), entry(3, undone=True), entry(4, rollback_to=1)]
    found = Found(state=state(epoch=4, settled_epoch=4, live=live), damage=DAMAGE, target=entry(1))
    assert refused(found).details["lost"] == [4]


def test_damage_that_names_no_object_is_that_of_the_manifest():
    bare = Corrupt("it does not decode", code="manifest.invalid")
    assert refused(Found(state=three(), damage=bare)).details["key"] == manifest_key(IDS[3])


@pytest.mark.parametrize("allowed", [False, True])
def test_without_a_sound_checkpoint_all_are_lost(allowed):
    error = refused(damaged(may_fall_back=allowed))
    assert "no older checkpoint can be restored either" in error.message
    assert error.hint == "slackwater verify URL --read-data"
    assert (error.details["lost"], error.details["newest_verified"]) == ([1, 2, 3], None)


def test_a_sink_that_would_refuse_stops_a_fallback_and_the_way_out_keeps_its_rows():
    found = damaged(may_fall_back=True, target=entry(2), refusals={"totals": "somebody else has written"})
    error = refused(found)
    assert error.code == "head.damaged"
    assert "the sink 'totals' would refuse that: somebody else has written" in error.message
    assert "slackwater rollback URL --to 2 --keep totals --yes" in str(error.hint)
    # What a rollback before was told to keep is named with it, or the tool would undo that.
    both = refused(msgspec.structs.replace(found, keep=["sales"]))
    assert "--keep sales --keep totals --yes" in str(both.hint)


# --- whatever was read

names = st.sampled_from([*OUTPUTS, "late"])
standings = st.builds(
    SinkStanding,
    kind=st.sampled_from(["delta", "files", "function"]),
    address=st.sampled_from([*(output.address for output in OUTPUTS.values()), "elsewhere"]),
    epoch=st.integers(0, 5),
)


@st.composite
def everything(draw: st.DrawFn) -> Found:
    """What a start may have read, likely or not."""
    newest = draw(st.integers(0, 4))
    rollback = draw(st.none() | st.integers(1, newest - 1).map(back_to)) if newest > 1 else None
    live = [
        entry(epoch, undone=rollback is not None and rollback.to_epoch < epoch < newest)
        for epoch in range(1, newest + 1)
    ]
    now = state(epoch=newest, settled_epoch=max(0, newest - draw(st.integers(0, 1))), live=live)
    broken = newest > 0 and draw(st.booleans())
    outputs = draw(st.dictionaries(names, st.sampled_from([TOTALS, SALES, ALERTS])))
    manifest = msgspec.structs.replace(head(rollback=rollback), epoch=newest, sinks=outputs, sink_names=list(outputs))
    return Found(
        state=now,
        head=manifest if newest and not broken else None,
        sinks=draw(st.dictionaries(names, standings)),
        dropped=draw(st.lists(names)),
        damage=DAMAGE if broken else None,
        own_state=draw(st.none() | st.just("a database")),
        may_fall_back=draw(st.booleans()),
        target=draw(st.none() | st.sampled_from(live[:-1])) if len(live) > 1 else None,
        keep=draw(st.lists(names)),
        refusals=draw(st.dictionaries(names, st.just("no"))),
    )


@given(everything())
def test_an_outcome_is_of_the_head_or_of_its_damage_and_says_which(found: Found):
    made = decide(found)
    if found.damage is not None:
        assert isinstance(made, GoOnWithoutHead | FallBack | Refuse)
        assert not isinstance(made, FallBack) or made.damage is found.damage
        assert not isinstance(made, GoOnWithoutHead) or made.own_state is found.own_state
    elif found.head is None:
        assert made == Fresh()
    else:
        assert isinstance(made, GoOn | CommitAgain | Undo | Refuse)
        assert isinstance(made, Refuse) or made.head is found.head


@given(everything())
def test_nothing_is_rolled_back_without_damage_and_leave_and_a_target_nor_against_a_sink(found: Found):
    made = decide(found)
    if isinstance(made, FallBack):
        assert found.damage and found.may_fall_back and made.target is found.target and not found.refusals
        assert made.keep == found.keep


@given(everything())
def test_a_settled_head_is_refused_only_for_a_sink_that_is_ahead(found: Found):
    made, now = decide(found), found.state
    if found.head is not None and now.settled_epoch == now.epoch:
        ahead = any(sink.epoch > now.epoch for sink in found.sinks.values())
        assert isinstance(made, Refuse) == ahead


@given(everything())
def test_who_has_every_sink_where_it_was_is_refused_only_for_one_that_is_ahead(found: Found):
    if found.head is not None:
        there = {name: standing(output, epoch=0) for name, output in found.head.sinks.items()}
        assert not isinstance(decide(msgspec.structs.replace(found, sinks=there, dropped=[])), Refuse)
        # And who gives up all that is not there, too.
        dropped = msgspec.structs.replace(found, sinks={}, dropped=list(found.head.sinks))
        assert not isinstance(decide(dropped), Refuse)


@given(everything())
def test_an_open_epoch_is_never_taken_for_a_settled_one(found: Found):
    made, now = decide(found), found.state
    if isinstance(made, GoOn) or (isinstance(made, Undo) and made.settled):
        assert now.settled_epoch == now.epoch
    if isinstance(made, CommitAgain) or (isinstance(made, Undo) and not made.settled):
        assert now.settled_epoch < now.epoch


@given(everything())
def test_every_refusal_is_a_typed_error_with_a_way_out(found: Found):
    made = decide(found)
    if isinstance(made, Refuse):
        kind = Corrupt if made.error.code == "head.damaged" else Conflict
        assert isinstance(made.error, kind) and made.error.hint
        assert made.error.code in ("sink.ahead", "sink.missing", "head.damaged")


@given(everything())
def test_the_same_was_read_the_same_is_done(found: Found):
    def told(made: Outcome) -> Any:
        return (str(made.error), made.error.details) if isinstance(made, Refuse) else made

    assert told(decide(found)) == told(decide(found))


def test_what_decides_knows_neither_store_nor_log_nor_clock():
    tree = ast.parse(Path(decision.__file__).read_text(encoding="utf-8"))
    known = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    known |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert known == {
        "__future__", "collections.abc", "msgspec", "errors", "formats.keys", "formats.manifest", "formats.state",
        "sinks", "state",
    }  # fmt: skip
