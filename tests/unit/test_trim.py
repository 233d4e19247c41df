"""Trimming: old records go, and neither a writer nor a reader that slept takes what is left for the state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Conflict, Unavailable
from slackwater.failpoints import VARIABLE
from slackwater.formats.change import Claim, Label
from slackwater.formats.keys import manifest_key, record_key
from slackwater.ops import verify as verification
from slackwater.ops.forget import by_rules, forget_chosen
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify_checkpoints
from slackwater.protocol.checkpoint import CheckpointReport
from slackwater.protocol.cut import Cut
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.keep_rules import KeepRules
from slackwater.protocol.log import KEPT_RECORDS, Log, list_records
from slackwater.protocol.pipeline import Pipeline
from slackwater.protocol.sinks import Attempt
from slackwater.settings import Settings
from slackwater.store import Store, open_store
from tests.golden.samples import UID
from tests.pipelines import Driver, make_pipeline
from tests.unit.test_log import checkpoint

CLAIM = Claim(uid=UID, driver="host:1")


class Hooked:
    """A real store with something to happen right before the next get, or the next delete."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: dict[str, Callable[[], object]] = {}

    def get(self, key: str, **window: int) -> bytes:
        self.before.pop("get", lambda: None)()
        return self._store.get(key, **window)

    def delete(self, keys: Sequence[str]) -> None:
        self.before.pop("delete", lambda: None)()
        self._store.delete(keys)

    def __getattr__(self, verb: str):
        return getattr(self._store, verb)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path) -> Hooked:
    return Hooked(open_store("memory:" if request.param == "memory" else str(tmp_path / "root")))


def open_log(store, kept_records: int = 3) -> Log:
    return Log(store, SystemClock(), Settings(total_timeout_s=5), kept_records=kept_records)


def claims(log: Log, count: int) -> Log:
    for _ in range(count):
        log.append(lambda state: CLAIM)
    return log


def numbers(store) -> list[int]:
    return list_records(store)


def test_all_but_the_newest_thousand_go_and_the_state_stays():
    store = open_store("memory:")
    log = claims(Log(store, SystemClock(), Settings()), KEPT_RECORDS + 3)
    assert log.trim() == 3
    assert KEPT_RECORDS == 1000
    assert numbers(store) == list(range(4, KEPT_RECORDS + 4))
    assert Log(store, SystemClock(), Settings()).read() == log.state
    assert claims(log, 1).number == KEPT_RECORDS + 4


@pytest.mark.parametrize("count", [0, 1, 3])
def test_where_no_more_than_those_are_there_nothing_is_deleted(store, count):
    log = claims(open_log(store), count)
    assert log.trim() == 0
    assert store.requests.deletes == 0 and len(numbers(store)) == count


def test_strays_are_neither_counted_nor_deleted(store):
    log = claims(open_log(store), 5)
    strays = ["log/2.json", "log/99999999999999999999.json.bak", "log/README"]
    for key in strays:
        store.put(key, b"not a record")
    assert log.trim() == 2
    assert numbers(store) == [3, 4, 5]
    assert [entry.key for entry in store.list("log/") if entry.key in strays] == strays


def test_a_record_that_was_lost_among_the_newest_takes_nobodys_place(store):
    """By count, not by number: what is left is never less."""
    log = claims(open_log(store), 6)
    store.delete([record_key(5)])
    log.trim()
    assert numbers(store) == [3, 4, 6]


def test_a_trimmer_that_slept_after_its_listing_takes_only_what_was_old_then(store):
    slow, other = claims(open_log(store), 5), open_log(store)

    def meanwhile() -> None:
        claims(other, 4)
        other.trim()
        assert numbers(store) == [7, 8, 9]

    store.before["delete"] = meanwhile
    assert slow.trim() == 2
    assert numbers(store) == [7, 8, 9]


def test_trimming_is_rare(store):
    log = claims(open_log(store, kept_records=8), 1)
    before = store.requests.snapshot()
    assert log.trim_if_due() == 0
    assert store.requests.snapshot() == before, "it was not due, and asked the store all the same"
    claims(log, 19)
    assert log.trim_if_due() == 12
    before = store.requests.snapshot()
    assert log.trim_if_due() == 0 and store.requests.snapshot() == before
    claims(log, 2)
    assert log.trim_if_due() == 2
    assert numbers(store) == list(range(15, 23))


def test_a_start_lists_no_more_than_it_must_to_see_that_no_trim_is_due(store):
    """Programs that open, checkpoint once and end would else list a thousand names each time, for nothing."""
    claims(open_log(store, kept_records=8), 9).trim()
    started = claims(open_log(store, kept_records=8), 1)
    before = store.requests.snapshot()
    assert started.trim_if_due() == 0 and store.requests.snapshot() == before


def test_a_log_that_grew_over_many_short_lives_is_trimmed(store):
    for _ in range(12):
        claims(open_log(store, kept_records=8), 1).trim_if_due()
    assert len(numbers(store)) in (8, 9)


# --- those that slept


def test_a_driver_whose_number_was_trimmed_away_is_fenced_and_what_it_left_decides_nothing(store):
    old, new = claims(open_log(store), 1), open_log(store)
    claims(new, 5).trim()
    assert numbers(store) == [4, 5, 6]
    with pytest.raises(Conflict) as caught:
        checkpoint(old, 1, 1)
    assert caught.value.code == "driver.fenced"
    assert numbers(store) == [2, 4, 5, 6], "it created the number that was free"
    state = open_log(store).read()
    assert state == new.state and state is not None and state.epoch == 0
    assert new.trim() == 1
    assert numbers(store) == [4, 5, 6]


def test_a_label_of_a_writer_that_slept_counts_once(store):
    driver, tool = claims(open_log(store), 1), open_log(store)
    checkpoint(driver, 1, 1)
    tool.read()
    claims(open_log(store), 6).trim()
    state = tool.append(lambda state: Label(label="kept", epoch=1))
    assert [savepoint.label for savepoint in state.labels] == ["kept"]
    assert open_log(store).read() == state
    assert numbers(store)[-1] == tool.number == 9


def test_a_reader_whose_record_was_trimmed_and_made_again_reads_the_newest(store):
    stale, writer, reader = claims(open_log(store), 1), open_log(store), open_log(store)
    claims(writer, 1)

    def meanwhile() -> None:
        claims(writer, 5).trim()
        assert 2 not in numbers(store)
        with pytest.raises(Conflict):
            checkpoint(stale, 1, 1)
        assert 2 in numbers(store)

    store.before["get"] = meanwhile
    assert reader.read() == writer.state
    assert reader.number == 7


def test_a_reader_whose_record_was_trimmed_reads_the_newest(store):
    writer, reader = claims(open_log(store), 1), open_log(store)
    store.before["get"] = lambda: [claims(writer, 5), writer.trim()]
    assert reader.read() == writer.state
    assert reader.number == 6


# --- who trims


def test_forgetting_trims(tmp_path):
    driver = Driver(tmp_path)
    driver.step()
    pipeline = read_pipeline(driver.pipeline)
    pipeline.log.kept_records = 2
    claims(pipeline.log, 5)
    forget_chosen(pipeline, by_rules(KeepRules(last=1)))
    assert len(numbers(driver.store)) == 2


class NoDeletes(Hooked):
    def delete(self, keys: Sequence[str]) -> None:
        raise Unavailable("deletes are denied", code="store.denied")


def driver_with(store: Store, kept_records: int) -> Callable[[], CheckpointReport]:
    """Claim, and return what makes one checkpoint of nothing after the other."""
    log, clock = open_log(store, kept_records), SystemClock()
    place = Pipeline(name="orders", url=store.url, store=store, log=log, clock=clock, settings=Settings(keep_last=100))
    driver = claim_driver(place, "test")

    def checkpoint() -> CheckpointReport:
        cut = Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[], files=[])
        return driver.checkpoint(cut, Attempt(checkpoint_id=clock.checkpoint_id(), outputs={}))

    return checkpoint


def test_a_driver_trims_after_its_checkpoint(store):
    step = driver_with(store, kept_records=3)
    assert {step().hindrance for _ in range(9)} == {None}
    assert numbers(store) == [8, 9, 10]


def test_a_driver_goes_on_when_old_records_cannot_be_deleted(store, caplog):
    step = driver_with(cast(Store, NoDeletes(store)), kept_records=8)
    spent, hindrances = [], []
    for _ in range(11):
        before = store.requests.snapshot()
        hindrances.append(step().hindrance)
        spent.append(store.requests.snapshot() - before)
    assert [error and error.code for error in hindrances[-4:]] == [None, "store.denied", None, "store.denied"]
    assert "old checkpoints or records were not deleted yet" in caplog.text
    assert numbers(store) == list(range(1, 13))
    assert spent[-2] == spent[1], "it is tried again only when it is due again"


def test_a_driver_that_learns_here_that_it_is_fenced_stops(tmp_path, monkeypatch):
    driver = Driver(tmp_path, keep_last=1)
    with monkeypatch.context() as asleep:
        asleep.setattr(driver.driver, "_delete_old", lambda: None)
        driver.step()
        driver.step()
    head = driver.driver.state.head
    assert head is not None and driver.driver.state.retired
    # A newer driver has taken over, and the head's manifest is not there: that one may have retired it.
    claims(open_log(driver.store), 1)
    driver.store.delete([manifest_key(head.checkpoint_id)])
    driver.driver._references._known.clear()
    with pytest.raises(Conflict) as caught:
        driver.driver._delete_old()
    assert caught.value.code == "driver.fenced"


DIE = """
from tests.unit.test_trim import claims, open_log, open_store
import sys
log = claims(open_log(open_store(sys.argv[1])), 7)
log.trim()
"""


def test_a_trimmer_that_dies_leaves_a_log_that_goes_on(tmp_path):
    environment = {**os.environ, VARIABLE: "trim.after=kill"}
    command = [sys.executable, "-c", DIE, str(tmp_path / "root")]
    root = Path(__file__).parents[2]
    died = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    store = open_store(str(tmp_path / "root"))
    assert numbers(store) == [5, 6, 7]
    log = claims(open_log(store), 1)
    assert (log.trim(), numbers(store)) == (1, [6, 7, 8])


# --- who reads old records


@pytest.fixture
def trimmed(tmp_path):
    """A pipeline with records 1 to 9, of which the newest 4 are kept, and a stray that a writer that slept left."""
    url = make_pipeline(tmp_path, epochs=7)
    pipeline = read_pipeline(str(url))
    pipeline.log.kept_records = 4
    lost = pipeline.store.get(record_key(4))
    pipeline.log.trim()
    pipeline.store.put(record_key(3), lost)
    assert numbers(pipeline.store) == [3, 6, 7, 8, 9]
    return pipeline


def findings(pipeline):
    return verify_checkpoints(pipeline, pipeline.state.live, read_data=True).findings


def found(pipeline) -> list[tuple[str, str]]:
    return [(f.code, f.key) for f in findings(pipeline)]


def test_what_was_trimmed_is_no_finding_nor_what_lies_below_it(trimmed):
    assert found(trimmed) == []


@pytest.mark.parametrize("number", [6, 7])
def test_a_gap_among_the_newest_records_is_a_finding(trimmed, number):
    trimmed.store.delete([record_key(number)])
    assert found(trimmed) == [("log.inconsistent", record_key(number + 1))]
    assert findings(trimmed)[0].message == f"records {number} to {number} are not there"


def test_damage_to_one_of_the_newest_records_is_a_finding(trimmed):
    trimmed.store.put(record_key(6), b"garbage")
    assert found(trimmed) == [("log.corrupt", record_key(6))]


def test_what_a_running_driver_trims_while_the_log_is_verified_is_no_finding(trimmed):
    log = open_log(trimmed.store, kept_records=4)
    store: Any = Hooked(trimmed.store)
    assert [f.code for f in verification._verify_history(store, Settings(), 4)] == []
    store.before["get"] = lambda: [claims(log, 2), log.trim()]
    assert [f.code for f in verification._verify_history(store, Settings(concurrency=1), 4)] == []
    assert numbers(store) == [8, 9, 10, 11]
