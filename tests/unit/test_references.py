"""How people name checkpoints: every form of a REF, and what may be a label."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Conflict, InvalidInput, NotFound, SlackwaterError, Unavailable
from slackwater.formats.change import NOTHING_PACKED, Change, Checkpoint, Claim, Label, Settlement
from slackwater.formats.state import State
from slackwater.ops.refs import resolve
from slackwater.ops.savepoint import create_label, delete_label
from slackwater.protocol import state as protocol_state
from slackwater.protocol.labels import check_label, find_label
from slackwater.protocol.log import Log
from slackwater.settings import Settings
from slackwater.store import Store, open_store

TEN_OCLOCK_MS = 1_794_736_800_000  # 2026-11-15T10:00:00Z
IDS = [
    "0192d3f0-7b7c-7000-8000-0123456789ab",
    "0192d3f0-7b7d-7000-8000-0123456789ab",
    "0192d3f1-0000-7000-8000-0123456789ab",
    "01921234-0000-7000-8000-0123456789ab",
]


def changes() -> list[Change]:
    """Say how a state with four epochs, a minute apart, comes about; epoch 1 is retired, epoch 3 has two labels."""
    parents = [None, *IDS[:-1]]
    made = [
        Checkpoint(
            generation=1,
            epoch=epoch,
            checkpoint_id=IDS[epoch - 1],
            manifest_sha256="0" * 64,
            manifest_size_bytes=1,
            parent_id=parents[epoch - 1],
            settled=None if epoch == 1 else settled(epoch - 1),
            retire=[1] if epoch == 4 else [],
            deleted=[],
        )
        for epoch in range(1, 5)
    ]
    labels = [Label(label="before-upgrade", epoch=3), Label(label="0192d3f1", epoch=2)]
    return [Claim(uid="0" * 32, driver="test"), *made, *labels]


def settled(epoch: int) -> Settlement:
    return Settlement(
        epoch=epoch, sinks={}, durations_ms={}, requests={}, packed=NOTHING_PACKED, new_bytes=0, full_bytes=0
    )


@pytest.fixture
def state() -> State:
    state: State | None = None
    for number, change in enumerate(changes(), 1):
        at_ms = TEN_OCLOCK_MS + 60_000 * (number - 2) + (250 if number == 5 else 0)
        state = protocol_state.apply(state, change, number=number, append_id=f"{number:032x}", at_ms=at_ms)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("ref", "epoch"),
    [
        ("latest", 4),
        ("2", 2),
        ("0003", 3),
        ("before-upgrade", 3),
        (IDS[1], 2),
        (IDS[1].upper(), 2),
        ("0192d3f0", 2),
        ("0192d3f1-0", 3),
        ("0192d3f1", 2),  # a label hides the beginning of an id
        ("01921234", 4),  # digits that are no epoch may begin an id
        ("@2026-11-15T10:02:00Z", 3),
        ("@2026-11-15T10:02:59.999Z", 3),
        ("@2026-11-15T12:02:00+02:00", 3),
        ("@2026-11-15T10:02:00", 3),
        ("@2026-11-15T10:01:59Z", 2),
        ("@2026-11-15T10:03:00Z", 4),  # of which `list` does not show that it was made 250 ms later
        ("@20261115T100300Z", 4),
        ("@2026-11-15T10:03:00.249Z", 3),
        ("@2026-11-16", 4),
        ("@9999-12-31", 4),
    ],
)
def test_every_form_names_its_checkpoint(state, ref, epoch):
    assert resolve(state, ref).epoch == epoch


@pytest.mark.parametrize(
    ("ref", "kind", "code", "words"),
    [
        ("1", NotFound, "checkpoint.not_found", "epoch 1 is no longer kept"),
        ("01", NotFound, "checkpoint.not_found", "epoch 1 is no longer kept"),  # ids begin so, too
        ("0", InvalidInput, "ref.invalid", "they begin at 1"),
        ("00", InvalidInput, "ref.invalid", "they begin at 1"),
        ("5", NotFound, "checkpoint.not_found", "'5'"),
        ("99999999999999999999", NotFound, "checkpoint.not_found", "99999"),
        ("before", NotFound, "checkpoint.not_found", "'before'"),
        ("LATEST", NotFound, "checkpoint.not_found", "LATEST"),
        ("", NotFound, "checkpoint.not_found", "''"),
        (IDS[0], NotFound, "checkpoint.not_found", IDS[0]),
        ("0192d", InvalidInput, "ref.invalid", IDS[2]),
        ("0192d3", InvalidInput, "ref.invalid", "(epoch 2)"),
        ("019", InvalidInput, "ref.invalid", "too short"),
        ("@2026-11-15T10:00:59Z", NotFound, "checkpoint.not_found", "2026-11-15T10:00:59Z"),
        (
            "@2026-11-15T10:00:59",
            NotFound,
            "checkpoint.not_found",
            "10:00:59 (no zone was given: read as UTC) or before",
        ),
        ("@0001-01-01T00:00+23:59", NotFound, "checkpoint.not_found", "0001"),
        ("@yesterday", InvalidInput, "ref.invalid", "@yesterday"),
        ("@", InvalidInput, "ref.invalid", "'@'"),
    ],
)
def test_what_names_no_single_checkpoint_is_refused_with_a_reason(state, ref, kind, code, words):
    with pytest.raises(SlackwaterError) as caught:
        resolve(state, ref)
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_pipeline_without_checkpoints_has_no_latest():
    fresh = protocol_state.apply(None, changes()[0], number=1, append_id="1" * 32, at_ms=0)
    with pytest.raises(NotFound, match=r"checkpoint\.none"):
        resolve(fresh, "latest")


@pytest.mark.parametrize("label", ["before-upgrade", "v1.2", "a", "x" * 100, "vor dem Umzug", "été", "a1b2c3d", "7a"])
def test_a_word_can_be_a_label(label):
    assert check_label(label) == label


@pytest.mark.parametrize(
    "label",
    [
        "",
        "x" * 101,
        "a\nb",
        "a\x1b[31m",
        "a\u202eb",
        "\udc80",
        "@noon",
        "42",
        "٣",
        "latest",
        "Latest",
        "newest-verified",
        IDS[0],
        IDS[0][:9],
    ],
)
def test_what_could_be_taken_for_something_else_cannot_be_a_label(label):
    with pytest.raises(InvalidInput, match=r"name\.invalid.*cannot be a label"):
        check_label(label)


class LosingStore:
    """A real store whose next create lands, but whose answer is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lose_next = False

    def create(self, key: str, data: bytes) -> bool:
        created = self._store.create(key, data)
        if self.lose_next:
            self.lose_next = False
            raise Unavailable("the answer is lost", code="test.lost")
        return created

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def store() -> LosingStore:
    store = LosingStore(open_store("memory:"))
    log = open_log(store)
    for change in changes():
        append(log, change)
    return store


def append(log: Log, change: Change) -> None:
    log.append(lambda _state: change)


def open_log(store: LosingStore) -> Log:
    return Log(store, SystemClock(), Settings())


def test_a_label_names_the_newest_checkpoint_of_the_state_that_it_is_appended_to(store):
    stale = open_log(store)
    stale.read()
    newer = Checkpoint(
        generation=1,
        epoch=5,
        checkpoint_id="01923000-0000-7000-8000-0123456789ab",
        manifest_sha256="0" * 64,
        manifest_size_bytes=1,
        parent_id=IDS[3],
        settled=settled(4),
        retire=[4],
        deleted=[],
    )
    append(open_log(store), newer)
    assert create_label(stale, "now", "latest").epoch == 5


def test_a_label_whose_answer_was_lost_is_made_once(store):
    store.lose_next = True
    assert create_label(open_log(store), "now", "2").epoch == 2
    state = open_log(store).read()
    assert state is not None
    assert [savepoint.label for savepoint in state.labels] == ["before-upgrade", "0192d3f1", "now"]


def test_a_label_is_not_moved(store):
    with pytest.raises(Conflict, match=r"label\.taken"):
        create_label(open_log(store), "before-upgrade", "2")


def test_a_label_on_an_empty_log_is_refused():
    with pytest.raises(NotFound, match=r"pipeline\.not_found"):
        create_label(open_log(LosingStore(open_store("memory:"))), "now")


def test_a_deletion_whose_answer_was_lost_is_a_success(store):
    store.lose_next = True
    assert delete_label(open_log(store), "before-upgrade").epoch == 3
    state = open_log(store).read()
    assert state is not None and find_label(state, "before-upgrade") is None


def test_deleting_what_is_not_there_is_refused(store):
    with pytest.raises(NotFound, match=r"label\.not_found"):
        delete_label(open_log(store), "never")


def test_a_label_that_somebody_made_anew_is_not_deleted_by_a_retry(store):
    log = open_log(store)
    log.read()

    class Meddling(LosingStore):
        def create(self, key: str, data: bytes) -> bool:
            created = self._store.create(key, data)
            if self.lose_next:
                self.lose_next = False
                create_label(open_log(store), "before-upgrade", "4")
                raise Unavailable("the answer is lost", code="test.lost")
            return created

    meddling = Meddling(store)
    meddling.lose_next = True
    assert delete_label(open_log(meddling), "before-upgrade").epoch == 3
    state = log.read()
    assert state is not None
    kept = find_label(state, "before-upgrade")
    assert kept is not None and kept.epoch == 4
