"""The log over real stores: one winner for each number, whatever is lost on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, Unavailable, Unsupported
from slackwater.formats import record as records
from slackwater.formats.change import Checkpoint, Claim, Label, Unlabel
from slackwater.formats.keys import record_key
from slackwater.formats.state import State
from slackwater.protocol.keep_rules import plan_retire
from slackwater.protocol.log import Log, Permit
from slackwater.settings import Settings
from slackwater.store import Store, open_store
from tests.golden.samples import IDS, UID, rollback, seal, settlement

SETTINGS = Settings(total_timeout_s=5)
CLAIM = Claim(uid=UID, driver="host:1")


class Faulty:
    """A real store whose next creates lose their answer: ``before`` they are done, or ``after``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lose: list[str] = []
        self.before_create: Callable[[], None] = lambda: None
        self.before_get: Callable[[], None] = lambda: None

    def get(self, key: str, **window) -> bytes:
        self.before_get()
        return self._store.get(key, **window)

    def create(self, key: str, data: bytes) -> bool:
        self.before_create()
        fault = self.lose.pop(0) if self.lose else "none"
        if fault == "before":
            raise Unavailable("no answer in time", code="store.unavailable")
        created = self._store.create(key, data)
        if fault == "after":
            raise Unavailable("no answer in time", code="store.unavailable")
        return created

    def __getattr__(self, verb: str):
        return getattr(self._store, verb)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path) -> Faulty:
    return Faulty(open_store("memory:" if request.param == "memory" else str(tmp_path / "root")))


def open_log(store, settings: Settings = SETTINGS) -> Log:
    return Log(store, SystemClock(), settings)


def numbers(store) -> list[str]:
    return [listed.key for listed in store.list("log/")]


def checkpoint(log: Log, generation: int, epoch: int, keep_last: int = 10) -> State:
    def decide(state: State | None) -> Checkpoint:
        assert state is not None
        return Checkpoint(
            generation=generation,
            epoch=epoch,
            checkpoint_id=IDS[epoch],
            manifest_sha256=f"{epoch:064x}",
            manifest_size_bytes=1,
            parent_id=IDS[epoch - 1] if epoch > 1 else None,
            settled=settlement(epoch - 1) if epoch > 1 else None,
            retire=plan_retire(state, keep_last),
            deleted=[],
        )

    return log.append(decide, permit=Permit(generation))


def test_an_empty_log_reads_as_nothing(store):
    log = open_log(store)
    assert (log.read(), log.number) == (None, 0)


def test_what_was_appended_is_what_another_reader_reads(store):
    log = open_log(store)
    log.append(lambda state: CLAIM)
    state = checkpoint(log, 1, 1)
    other = open_log(store)
    assert other.read() == state == log.state
    assert (other.number, numbers(store)) == (2, [record_key(1), record_key(2)])


def test_every_record_carries_the_digest_of_the_one_before(store):
    log = open_log(store)
    for _ in range(3):
        log.append(lambda state: CLAIM)
    first, second, third = (store.get(record_key(n)) for n in (1, 2, 3))
    assert records.decode(first, number=1).previous_sha256 is None
    assert records.decode(second, number=2).previous_sha256 == records.digest(first)
    assert records.decode(third, number=3).previous_sha256 == records.digest(second)


def test_B5_a_record_is_never_overwritten_and_a_taken_number_is_decided_anew(store):
    old, new = open_log(store), open_log(store)
    old.append(lambda state: CLAIM)
    new.append(lambda state: CLAIM)
    first = store.get(record_key(2))
    assert old.number == 1
    seen: list[int] = []

    def decide(state: State | None) -> Claim:
        seen.append(state.generation if state else 0)
        return CLAIM

    assert old.append(decide).generation == 3
    assert seen == [1, 2]
    assert store.get(record_key(2)) == first


def test_B16_a_stale_driver_is_fenced_and_leaves_nothing(store):
    old, new = open_log(store), open_log(store)
    old.append(lambda state: CLAIM)
    checkpoint(old, 1, 1)
    new.append(lambda state: CLAIM)
    before = numbers(store)
    with pytest.raises(Conflict) as caught:
        checkpoint(old, 1, 2)
    assert caught.value.code == "driver.fenced"
    assert numbers(store) == before


def test_a_driver_is_fenced_even_if_its_change_has_counted(store):
    old, new = open_log(store), open_log(store)
    old.append(lambda state: CLAIM)
    new.read()
    store.lose = ["after"]
    real, calls = store.create, []

    def create_then_claim(key: str, data: bytes) -> bool:
        calls.append(key)
        try:
            return real(key, data)
        finally:
            if len(calls) == 1:
                new.append(lambda state: CLAIM)

    store.create = create_then_claim
    with pytest.raises(Conflict) as caught:
        checkpoint(old, 1, 1)
    assert caught.value.code == "driver.fenced"
    state = open_log(store).read()
    assert state is not None and (state.epoch, state.generation) == (1, 3)


def test_a_reader_takes_what_came_between_its_list_and_its_get(store):
    writer, reader = open_log(store), open_log(store)
    writer.append(lambda state: CLAIM)

    def claim_again() -> None:
        store.before_get = lambda: None
        writer.append(lambda state: CLAIM)

    store.before_get = claim_again
    assert reader.read() == writer.state
    assert reader.number == 2


def test_a_driver_that_slept_while_its_number_was_trimmed_away_learns_that_it_is_fenced(store):
    old, new = open_log(store), open_log(store)
    old.append(lambda state: CLAIM)
    for _ in range(2):
        new.append(lambda state: CLAIM)
    store.delete([record_key(2)])
    with pytest.raises(Conflict) as caught:
        checkpoint(old, 1, 1)
    assert caught.value.code == "driver.fenced"
    assert open_log(store).read() == new.state


@pytest.mark.parametrize("lost", [["after"], ["before"], ["before", "after"], ["after", "before"], ["before"] * 3])
def test_F3_an_append_whose_answer_is_lost_counts_exactly_once(store, lost):
    log = open_log(store)
    log.append(lambda state: CLAIM)
    store.lose = list(lost)
    state = checkpoint(log, 1, 1)
    assert [entry.epoch for entry in state.live] == [1]
    assert numbers(store) == [record_key(1), record_key(2)]
    assert open_log(store).read() == state


def test_a_store_that_stays_away_is_an_error_after_the_deadline(store):
    log = open_log(store, Settings(total_timeout_s=0.2))
    store.lose = ["before"] * 1000
    with pytest.raises(Unavailable) as caught:
        log.append(lambda state: CLAIM)
    assert caught.value.code == "store.unavailable"
    assert numbers(store) == []


def test_retirement_is_computed_anew_when_a_label_came_in_between(store):
    log, other = open_log(store), open_log(store)
    log.append(lambda state: CLAIM)
    checkpoint(log, 1, 1)

    def label_epoch_1() -> None:
        store.before_create = lambda: None
        other.append(lambda state: Label(label="kept", epoch=1))

    store.before_create = label_epoch_1
    state = checkpoint(log, 1, 2, keep_last=1)
    assert [entry.epoch for entry in state.live] == [1, 2]
    assert [savepoint.epoch for savepoint in state.labels] == [1]


def roll_back(log: Log, generation: int, epoch: int, to_epoch: int) -> State:
    change = rollback(epoch, to_epoch, generation=generation)
    return log.append(lambda state: change, permit=Permit(generation))


def test_a_rollback_without_a_claim_of_its_own_is_fenced_by_the_next_claim(store):
    driver, tool = open_log(store), open_log(store)
    driver.append(lambda state: CLAIM)
    checkpoint(driver, 1, 1)
    checkpoint(driver, 1, 2)
    tool.read()
    driver.append(lambda state: CLAIM)
    with pytest.raises(Conflict) as caught:
        roll_back(tool, 1, 3, 1)
    assert caught.value.code == "driver.fenced"


def test_a_driver_that_was_rolled_back_under_its_feet_adds_nothing(store):
    driver, tool = open_log(store), open_log(store)
    driver.append(lambda state: CLAIM)
    checkpoint(driver, 1, 1)
    checkpoint(driver, 1, 2)
    generation = tool.append(lambda state: CLAIM).generation
    rolled_back = roll_back(tool, generation, 3, 1)
    with pytest.raises(Conflict) as caught:
        checkpoint(driver, 1, 3)
    assert caught.value.code == "driver.fenced"
    assert open_log(store).read() == rolled_back


@pytest.mark.parametrize("lost", [["after"], ["before"], ["before", "after"]])
def test_a_rollback_whose_answer_is_lost_counts_exactly_once(store, lost):
    log = open_log(store)
    log.append(lambda state: CLAIM)
    checkpoint(log, 1, 1)
    checkpoint(log, 1, 2)
    store.lose = list(lost)
    state = roll_back(log, 1, 3, 1)
    assert [(entry.epoch, entry.undone) for entry in state.live] == [(1, False), (2, True), (3, False)]
    assert open_log(store).read() == state and len(numbers(store)) == 4


def test_a_change_that_fits_only_the_newest_state_is_not_refused_by_an_old_one(store):
    log, other = open_log(store), open_log(store)
    log.append(lambda state: CLAIM)
    checkpoint(log, 1, 1)
    other.read()
    log.append(lambda state: Label(label="x", epoch=1))
    assert other.append(lambda state: Unlabel(label="x")).labels == []
    with pytest.raises(NotFound) as caught:
        other.append(lambda state: Unlabel(label="x"))
    assert caught.value.code == "label.not_found"


def test_a_decision_that_there_is_nothing_to_do_writes_nothing(store):
    log = open_log(store)
    claimed = log.append(lambda state: CLAIM)
    assert log.append(lambda state: None) == claimed
    assert numbers(store) == [record_key(1)]


@pytest.mark.parametrize("writers", [8])
def test_writers_at_once_all_count_and_none_is_lost(store, writers):
    log = open_log(store)
    log.append(lambda state: CLAIM)
    checkpoint(log, 1, 1)
    patient = Settings(total_timeout_s=60)

    def write(n: int) -> None:
        open_log(store, patient).append(lambda state: Label(label=f"l{n}", epoch=1))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = log.read()
    assert state is not None
    assert sorted(savepoint.label for savepoint in state.labels) == [f"l{n}" for n in range(writers)]
    assert log.number == 2 + writers == len(numbers(store))


def test_a_damaged_newest_record_ends_it_with_a_typed_error_and_no_older_one_is_taken(store):
    log = open_log(store)
    for _ in range(2):
        log.append(lambda state: CLAIM)
    data = bytearray(store.get(record_key(2)))
    data[len(data) // 2] ^= 1
    store.put(record_key(2), bytes(data))
    for attempt in (lambda: open_log(store).read(), lambda: open_log(store).append(lambda state: CLAIM)):
        with pytest.raises(Corrupt) as caught:
            attempt()
        assert caught.value.code == "log.corrupt"
    assert numbers(store) == [record_key(1), record_key(2)]


@pytest.mark.parametrize(("data", "code"), [(b"garbage", "log.corrupt"), (b"", "log.corrupt")])
def test_a_writer_that_meets_a_damaged_record_says_so_at_once(store, data, code):
    log = open_log(store)
    log.append(lambda state: CLAIM)
    store.put(record_key(2), data)
    started = time.monotonic()
    with pytest.raises(Corrupt) as caught:
        log.append(lambda state: CLAIM)
    assert caught.value.code == code
    assert time.monotonic() - started < SETTINGS.total_timeout_s / 2


def test_A6_a_record_of_a_newer_release_is_not_written_over(store):
    open_log(store).append(lambda state: CLAIM)
    store.put(record_key(2), seal(b'{"version":99}'))
    with pytest.raises(Unsupported) as caught:
        open_log(store).append(lambda state: CLAIM)
    assert caught.value.code == "format.unknown_version" and "has version" in str(caught.value)
    assert numbers(store) == [record_key(1), record_key(2)]


def test_an_oversized_object_in_the_place_of_a_record_is_refused_unread(store):
    store.put(record_key(1), b" " * (records.MAX_RECORD_BYTES + 1))
    with pytest.raises(Corrupt) as caught:
        open_log(store).read()
    assert caught.value.code == "log.corrupt" and caught.value.details["damaged"] == [1]


def test_stray_files_in_the_folder_decide_nothing(store):
    log = open_log(store)
    state = log.append(lambda state: CLAIM)
    for key in ("log/README", "log/2.json", "log/00000000000000000009.json.bak", "log/z/00000000000000000009.json"):
        store.put(key, b"not a record")
    assert open_log(store).read() == state
    assert log.append(lambda state: CLAIM).generation == 2


def test_F1_a_hint_decides_nothing(store):
    open_log(store).append(lambda state: CLAIM)
    for pointer in (b"", b"\xff\xfe", b"no such checkpoint\n"):
        store.put("checkpoints/_latest", pointer)
        assert open_log(store).read() is not None


def test_a_state_that_outgrew_a_record_is_refused_before_it_is_written(store, monkeypatch):
    log = open_log(store)
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 300)
    with pytest.raises(InvalidInput) as caught:
        log.append(lambda state: CLAIM)
    assert caught.value.code == "log.state_too_large"
    assert numbers(store) == []


def test_what_is_missing_because_a_newer_driver_took_over_is_a_conflict(store):
    old, new = open_log(store), open_log(store)
    old.append(lambda state: CLAIM)
    with pytest.raises(NotFound), old.unless_fenced(Permit(1)):
        raise NotFound("gone", code="store.not_found")
    new.append(lambda state: CLAIM)
    with pytest.raises(Conflict) as caught, old.unless_fenced(Permit(1)):
        raise NotFound("gone", code="store.not_found")
    assert caught.value.code == "driver.fenced"


def refuse_history(state: State | None) -> None:
    if state is not None and state.head is not None:
        raise Conflict(f"epoch {state.epoch} is there", code="test.not_new")


def test_a_claim_gives_a_permit_for_its_own_generation_and_fences_the_one_before(store):
    log = open_log(store)
    first = log.claim(UID, "host:1")
    second = open_log(store).claim("0" * 32, "host:2")
    assert (first, second) == (Permit(1), Permit(2))
    state = log.read()
    assert state is not None and (state.generation, state.uid) == (2, UID)
    with pytest.raises(Conflict) as caught:
        log.append(lambda state: None, permit=first)
    assert caught.value.code == "driver.fenced"


def test_a_claim_that_is_not_admitted_writes_nothing(store):
    log = open_log(store)
    checkpoint(log, log.claim(UID, "host:1", admit=refuse_history).generation, 1)
    before = numbers(store)
    for other in (open_log(store), log):
        with pytest.raises(Conflict, match="epoch 1 is there"):
            other.claim(UID, "host:2", admit=refuse_history)
    assert numbers(store) == before


def test_a_claim_that_another_was_faster_than_is_admitted_anew(store):
    running, tool = open_log(store), open_log(store)
    generation = running.claim(UID, "host:1").generation
    tool.read()
    seen: list[int] = []

    def admit(state: State | None) -> None:
        seen.append(state.epoch if state else -1)
        refuse_history(state)

    def checkpoint_first() -> None:
        store.before_create = lambda: None
        checkpoint(running, generation, 1)

    store.before_create = checkpoint_first
    with pytest.raises(Conflict, match="epoch 1 is there"):
        tool.claim(UID, "tool", admit=admit)
    assert seen[0] == 0 and set(seen[1:]) == {1}
    assert [entry.epoch for entry in checkpoint(running, generation, 2).live] == [1, 2], "nobody has fenced it"


def test_a_refusal_by_what_a_writer_knew_before_is_asked_anew(store):
    log, other = open_log(store), open_log(store)
    log.claim(UID, "host:1")
    told: list[int] = []

    def admit(state: State | None) -> None:
        told.append(state.generation if state else 0)
        if told[-1] == 1:
            raise Conflict("not while this one runs", code="test.running")

    other.claim(UID, "host:2")
    assert log.claim(UID, "host:3", admit=admit) == Permit(3)
    assert told == [1, 2]


@pytest.mark.parametrize("lost", [["after"], ["before"], ["before", "after"], ["after", "before"]])
def test_a_claim_whose_answer_is_lost_counts_once(store, lost):
    store.lose = list(lost)
    log = open_log(store)
    assert log.claim(UID, "host:1", admit=refuse_history) == Permit(1)
    assert numbers(store) == [record_key(1)]
