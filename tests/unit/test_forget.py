"""Forgetting: what rules keep, what is freed, and that neither a crash at any write nor a running driver is harmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats.keys import LATEST, manifest_key, record_key
from slackwater.formats.manifest import Manifest
from slackwater.formats.state import Savepoint, State
from slackwater.ops import forget
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label, delete_label
from slackwater.ops.verify import verify
from slackwater.protocol import driver as protocol_driver
from slackwater.protocol import keep_rules as plans
from slackwater.protocol import recovery
from slackwater.protocol.artifacts import Holdings
from slackwater.protocol.keep_rules import KeepRules, plan_forget
from slackwater.protocol.log import Log, Permit
from slackwater.protocol.pipeline import Pipeline, locate
from slackwater.protocol.retention import References, sweep
from slackwater.protocol.rollback import roll_back
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.spark.hydrate import check_structure
from slackwater.spark.working_directory import WorkingDirectory
from slackwater.store import Store, open_store
from tests.golden.samples import APPENDS, entry, state
from tests.pipelines import Driver, FolderSink

SETTINGS = Settings()
HOUR, DAY = 3_600_000, 86_400_000
NOON = 20_000 * DAY + 12 * HOUR


def made(*hours: float, labelled: Sequence[int] = (), undone: Sequence[int] = ()) -> State:
    """A state with epochs 1, 2, … made so many hours before noon."""
    live = [
        entry(1, epoch=epoch, created_at_ms=NOON - round(HOUR * ago), undone=epoch in undone)
        for epoch, ago in enumerate(hours, 1)
    ]
    labels = [Savepoint(label=f"of {e}", epoch=e, created_at_ms=0, append_id=APPENDS[0]) for e in labelled]
    return state(epoch=len(live), settled_epoch=len(live), live=live, labels=labels)


# Epochs 1 to 8; the first is of the day before the second.
SOME = made(40, 30, 3.5, 3.2, 1.9, 1.5, 0.2, 0)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (KeepRules(last=1), [8]),
        (KeepRules(last=3), [6, 7, 8]),
        (KeepRules(last=100), [1, 2, 3, 4, 5, 6, 7, 8]),
        # Noon begins an hour: 8 is alone in it. 7 is of the hour before, 5 and 6 of the one before that.
        (KeepRules(hourly=1), [8]),
        (KeepRules(hourly=3), [6, 7, 8]),
        (KeepRules(hourly=4), [4, 6, 7, 8]),
        # Hours without a checkpoint do not count.
        (KeepRules(hourly=5), [2, 4, 6, 7, 8]),
        (KeepRules(daily=1), [8]),
        (KeepRules(daily=2), [2, 8]),
        (KeepRules(daily=3), [1, 2, 8]),
        (KeepRules(within_ms=1), [8]),
        (KeepRules(within_ms=HOUR * 3 // 2), [6, 7, 8]),
        (KeepRules(last=2, daily=2), [2, 7, 8]),
        (KeepRules(labels=("none is asked for here",)), [8]),
    ],
)
def test_a_checkpoint_stays_if_any_rule_keeps_it(rules, kept):
    assert [verdict.epoch for verdict in plan_forget(SOME, rules) if verdict.keep] == kept


def test_every_checkpoint_has_its_reasons():
    some = made(30, 3, 2, 0, labelled=[2])
    told = {v.epoch: (v.keep, v.reasons) for v in plan_forget(some, KeepRules(last=1, daily=2, within_ms=2 * HOUR))}
    assert told == {
        1: (True, ["daily 2024-10-03"]),
        2: (True, ["savepoint of 2"]),
        3: (True, ["within the time"]),
        4: (True, ["head", "last 1", "daily 2024-10-04", "within the time"]),
    }
    assert [(v.keep, v.reasons) for v in plan_forget(some, KeepRules(last=1))][::2] == [(False, ["no rule"])] * 2


def test_undone_ones_take_no_room_and_are_no_hours_newest():
    some = made(5, 4, 3, 2, 0, undone=[3, 4])
    assert [v.epoch for v in plan_forget(some, KeepRules(last=2)) if v.keep] == [2, 3, 4, 5]
    assert [v.epoch for v in plan_forget(some, KeepRules(hourly=9)) if v.keep] == [1, 2, 5]
    assert [v.epoch for v in plan_forget(some, KeepRules(within_ms=2 * HOUR)) if v.keep] == [4, 5]


def test_a_pipeline_without_checkpoints_has_nothing_to_forget():
    assert plan_forget(state(), KeepRules(last=1, hourly=1, daily=1, within_ms=1)) == []


def test_no_rule_is_refused():
    with pytest.raises(InvalidInput) as caught:
        forget.by_rules(KeepRules())
    assert caught.value.code == "usage.wrong" and "no rule says what to keep" in str(caught.value)


# --- the act


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """Epochs 1 to 6, a minute each; 2 has a label."""
    driver = Driver(tmp_path)
    for epoch in range(1, 7):
        driver.step()
        if epoch == 2:
            create_label(driver.log, "old")
    driver.release()
    return driver.pipeline


def stored_bytes(url: Path) -> int:
    return sum(path.stat().st_size for path in (url / "checkpoints").rglob("*") if path.is_file())


def open_log(url: Path, wrap: Callable[[Store], Any] = lambda store: store) -> tuple[Any, Log]:
    store = wrap(open_store(str(url), SETTINGS))
    return store, Log(store, SystemClock(), msgspec.structs.replace(SETTINGS, total_timeout_s=5.0))


def run(url: Path, choose: forget.Choose, act: Any = forget.forget_chosen, **fields: Any) -> forget.Forgetting:
    store, log = open_log(url, **fields)
    place = Pipeline(name="orders", url=str(url), store=store, log=log, clock=SystemClock(), settings=SETTINGS)
    done: forget.Forgetting = act(place, choose)
    return done


def check_forgotten(url: Path, *live: int) -> None:
    """What is live is sound, and nothing else is left."""
    pipeline = read_pipeline(str(url))
    assert [entry.epoch for entry in pipeline.state.live] == list(live)
    assert pipeline.state.retired == []
    assert verify(pipeline.url, read_data=True).findings == []
    needed = {LATEST} | {manifest_key(entry.checkpoint_id) for entry in pipeline.state.live}
    for live_one in pipeline.state.live:
        needed |= {obj.key for obj in load_manifest(pipeline.store, live_one).objects}
    assert {listed.key for listed in pipeline.store.list("checkpoints/")} == needed


def test_a_plan_changes_nothing_and_says_what_the_act_then_does(url):
    choose = forget.by_rules(KeepRules(last=2))
    before = {path: path.read_bytes() for path in url.rglob("*") if path.is_file()}
    planned = run(url, choose, forget.plan_forgetting)
    assert {path: path.read_bytes() for path in url.rglob("*") if path.is_file()} == before
    size = stored_bytes(url)
    assert run(url, choose) == planned
    assert planned.forgotten_epochs == [1, 3, 4] and planned.deleted_epochs == []
    assert size - stored_bytes(url) == planned.freed_bytes > 0
    check_forgotten(url, 2, 5, 6)
    again = run(url, choose)
    assert (again.forgotten_epochs, again.freed_bytes) == ([], 0)


def test_one_checkpoint_is_forgotten_by_any_name(url):
    state = read_pipeline(str(url)).state
    for ref, epoch in (("3", 3), (state.live[3].checkpoint_id, 4), ("@2026-11-15T10:00:30Z", 1)):
        assert run(url, forget.by_ref(ref)).forgotten_epochs == [epoch]
    check_forgotten(url, 2, 5, 6)


@pytest.mark.parametrize("ref", ["6", "latest", "2", "old"])
def test_the_head_and_a_savepoint_are_refused(url, ref):
    for act in (forget.plan_forgetting, forget.forget_chosen):
        with pytest.raises(Conflict) as caught:
            run(url, forget.by_ref(ref), act)
        assert caught.value.code == "retire.not_allowed"
    check_forgotten(url, 1, 2, 3, 4, 5, 6)


def test_a_label_that_is_to_be_kept_must_be_there(url):
    with pytest.raises(NotFound) as caught:
        run(url, forget.by_rules(KeepRules(labels=("old", "new"))))
    assert caught.value.code == "label.not_found"
    run(url, forget.by_rules(KeepRules(labels=("old",))))
    check_forgotten(url, 2, 6)


def test_more_than_may_wait_leave_in_turns(url, monkeypatch):
    monkeypatch.setattr(plans, "_MAX_WAITING", 1)
    delete_label(open_log(url)[1], "old")
    assert run(url, forget.by_rules(KeepRules(last=1))).forgotten_epochs == [1, 2, 3, 4, 5]
    made = [records.decode(path.read_bytes(), number=int(path.stem)).change for path in sorted(url.glob("log/*"))]
    assert [change.epochs for change in made if isinstance(change, changes.Retire)] == [[1], [2], [3], [4], [5]]
    check_forgotten(url, 6)


# --- crashes


class Died(BaseException):
    """The process is gone."""


class Doomed:
    """A store at whose nth write the process dies, or the answer is lost, as ``how`` says."""

    def __init__(self, store: Store, at: int, how: str) -> None:
        self._store, self._at, self._how = store, at, how
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _write(self, verb: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes != self._at:
            return verb()
        if self._how == "dies before":
            raise Died
        if self._how == "never arrives":
            raise Unavailable("no answer", code="store.unavailable")
        verb()
        if self._how == "dies after":
            raise Died
        raise Unavailable("no answer", code="store.unavailable")

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._write(lambda: self._store.create(key, data)))

    def delete(self, keys: Sequence[str]) -> None:
        self._write(lambda: self._store.delete(keys))


WRITES = 4  # retire, objects, manifests, deleted
HOW = ["dies before", "dies after", "answer lost", "never arrives"]


def test_forgetting_is_so_many_writes(url):
    counting: list[Doomed] = []

    def wrap(store: Store) -> Doomed:
        counting.append(Doomed(store, 0, ""))
        return counting[0]

    run(url, forget.by_rules(KeepRules(last=2)), wrap=wrap)
    assert counting[0].writes == WRITES


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("at", range(1, WRITES + 1))
@pytest.mark.parametrize("name", ["rules", "ref"])
def test_what_was_interrupted_at_any_write_is_run_again(url, name, at, how):
    def choose() -> forget.Choose:
        return forget.by_rules(KeepRules(last=2)) if name == "rules" else forget.by_ref("4")

    size = stored_bytes(url)
    try:
        first = run(url, choose(), wrap=lambda store: Doomed(store, at, how))
        # A lost answer of a record is found out; nothing is told wrong.
        assert "dies" not in how and at in (1, WRITES)
        assert size - stored_bytes(url) == first.freed_bytes
        assert first.forgotten_epochs == ([1, 3, 4] if name == "rules" else [4])
    except (Died, Unavailable):
        pass
    now = read_pipeline(str(url))
    assert verify(now.url, read_data=True).sound, "a live checkpoint was harmed"
    try:
        run(url, choose())
    except NotFound as gone:
        assert name == "ref" and gone.code == "checkpoint.not_found" and at in (1, WRITES)
    check_forgotten(url, *((2, 5, 6) if name == "rules" else (1, 2, 3, 5, 6)))


@pytest.mark.parametrize("at", range(1, WRITES + 1))
@pytest.mark.parametrize("how", HOW[:2])
def test_a_start_goes_on_with_what_was_interrupted(url, tmp_path, at, how):
    with pytest.raises(Died):
        run(url, forget.by_rules(KeepRules(last=2)), wrap=lambda store: Doomed(store, at, how))
    driver = Driver(tmp_path)
    driver.step()
    driver.release()
    never = at == 1 and how == "dies before"
    check_forgotten(url, *((1, 2, 3, 4, 5, 6, 7) if never else (2, 5, 6, 7)))


# --- beside others


def test_a_running_driver_goes_on(tmp_path):
    driver = Driver(tmp_path, keep_last=4)
    for _ in range(6):
        driver.step()
        run(driver.pipeline, forget.by_rules(KeepRules(last=2)))
    assert driver.sinks["totals"].rows() == [f"rows of {n}" for n in range(6)]
    driver.release()
    check_forgotten(driver.pipeline, 5, 6)
    assert Driver(tmp_path).micro_batch == 5


def test_a_driver_that_does_not_know_yet_what_was_forgotten_deletes_and_goes_on(tmp_path, monkeypatch):
    driver = Driver(tmp_path, keep_last=3)
    for _ in range(3):
        driver.step()
    with monkeypatch.context() as asleep:
        asleep.setattr(driver.driver, "_delete_old", lambda: None)
        driver.step()  # retires 1, and sleeps before the deletes
    driver.driver._references._known.clear()
    run(driver.pipeline, forget.by_ref("2"))
    assert [entry.epoch for entry in driver.driver.state.live] == [2, 3, 4], "the driver knows of nothing yet"
    driver.driver._delete_old()
    driver.release()
    check_forgotten(driver.pipeline, 3, 4)


def claim(url: Path) -> protocol_driver.Driver:
    return protocol_driver.claim_driver(locate(str(url), SETTINGS), "test")


def test_what_is_forgotten_during_a_start_does_not_hinder_its_sweep(url):
    stray = url / "checkpoints/0192d3f0-7b7c-7000-8000-0123456789ab/manifest.json"
    stray.parent.mkdir()
    stray.write_bytes(b"of an attempt that crashed")
    started = claim(url)
    run(url, forget.by_ref("1"))
    references = References(started.pipeline)
    assert sweep(started.pipeline, started.permit, started.claimed.survey, {}, references) == 1
    check_forgotten(url, 2, 3, 4, 5, 6)


def test_a_label_that_comes_first_keeps_its_checkpoint(url):
    choose, told = forget.by_rules(KeepRules(last=1)), [False]

    def label_first(state: State) -> list[plans.Verdict]:
        verdicts = choose(state)
        if not told[0]:
            told[0] = True
            create_label(open_log(url)[1], "just now", "4")
        return verdicts

    assert run(url, label_first).forgotten_epochs == [1, 3, 5]
    check_forgotten(url, 2, 4, 6)


def test_a_rollback_whose_target_is_forgotten_says_that_it_is_gone(url):
    tool = claim(url)
    run(url, forget.by_ref("3"))
    with pytest.raises(NotFound) as caught:
        roll_back(tool.pipeline, tool.permit, 3)
    assert caught.value.code == "checkpoint.not_found"


def test_a_fallback_whose_target_is_forgotten_looks_for_another(url, tmp_path):
    started = claim(url)
    (url / manifest_key(started.state.live[-1].checkpoint_id)).unlink()
    asked: list[int] = []

    def agree(damage: SlackwaterError, target: Any) -> None:
        asked.append(target.epoch)
        if len(asked) == 1:
            run(url, forget.by_ref("5"))

    work, store = WorkingDirectory(tmp_path / "generation"), started.pipeline.store

    def hydrate(manifest: Manifest | None) -> Holdings:
        assert manifest is not None
        return work.hydrate(store, manifest, SETTINGS)

    found = recovery.recover(started.pipeline, started.permit, {}, hydrate=hydrate, dropped=["totals"], fallback=agree)
    head = found.head
    assert asked == [5, 4] and head is not None
    assert head.rollback is not None and head.rollback.to_epoch == 4
    assert found.hydrated.keys() == hydrate(head).keys()
    check_structure(work.checkpoint, head)


def test_a_fallback_never_goes_on_in_the_name_of_a_newer_driver(url, monkeypatch):
    started = claim(url)
    (url / manifest_key(started.state.live[-1].checkpoint_id)).unlink()

    def lose_target_and_claim(pipeline: Pipeline, permit: Permit, to_epoch: int, **fields: Any) -> None:
        run(url, forget.by_ref(str(to_epoch)))
        claim(url)
        raise NotFound("gone", code="checkpoint.not_found")

    monkeypatch.setattr(recovery, "roll_back", lose_target_and_claim)
    with pytest.raises(Conflict) as caught:
        recovery.recover(
            started.pipeline, started.permit, {}, hydrate=lambda manifest: 0, fallback=lambda damage, target: None
        )
    assert caught.value.code == "driver.fenced"


def test_a_target_that_is_forgotten_while_a_sink_refuses_it_is_not_named(url, tmp_path):
    started = claim(url)
    (url / manifest_key(started.state.live[-1].checkpoint_id)).unlink()
    asked: list[int] = []

    class Refusing(FolderSink):
        def plan_undo(self, to_epoch: int) -> str:
            asked.append(to_epoch)
            if len(asked) == 1:
                run(url, forget.by_ref(str(to_epoch)))
            raise Conflict("somebody else has written", code="sink.undo_refused")

    with pytest.raises(Corrupt) as caught:
        recovery.recover(
            started.pipeline,
            started.permit,
            {"totals": Refusing(tmp_path / "lake" / "orders" / "totals")},
            hydrate=lambda manifest: 0,
            fallback=lambda damage, target: None,
        )
    assert len(asked) == 2 and asked[0] > asked[1]
    assert caught.value.code == "head.damaged" and caught.value.details["newest_verified"] == asked[1]


def test_a_driver_that_cannot_see_whether_it_was_fenced_does_not_fall_back(url):
    started, newer = claim(url), claim(url)
    (url / record_key(newer.permit.generation)).write_bytes(b"damaged")
    (url / manifest_key(started.state.live[-1].checkpoint_id)).unlink()  # as the newer one may have done
    asked: list[int] = []
    with pytest.raises(Corrupt) as caught:
        recovery.recover(
            started.pipeline,
            started.permit,
            {},
            hydrate=lambda manifest: 0,
            dropped=["totals"],
            fallback=lambda damage, target: asked.append(target.epoch),
        )
    assert caught.value.code == "log.corrupt" and asked == []
