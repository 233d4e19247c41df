"""What each fault of a store ends in, through the real log, checkpointer and recovery: error or success, never half."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.errors import Corrupt, NotFound, SlackwaterError, Unavailable
from slackwater.formats.keys import LATEST
from slackwater.formats.manifest import references
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol.verified_reads import load_manifest
from slackwater.store import open_store
from slackwater.testing.faulty_store import FATES, KINDS, Befell, Fate, Fault, Faults, FaultyStore, Kind, Verb
from tests.pipelines import Driver, make_pipeline

EPOCHS = 3
RECORD, MANIFEST, DATA = "log/*", "*/manifest.json", "checkpoints/*/[bd]*"


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """Power does not fail here, and hundreds of runs need not wait for a disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def opened(*rules: Fault, seed: int = 0) -> tuple[FaultyStore, Faults]:
    faults = Faults(*rules, seed=seed)
    return FaultyStore(open_store("memory:"), faults), faults


def go_on(root: Path) -> None:
    """Start, drive on to the last epoch, end."""
    driver = Driver(root, keep_last=2)
    while driver.micro_batch < EPOCHS - 1:
        driver.step(500)
    driver.release()


def see_all_is_right(root: Path) -> None:
    """Every row was committed once, and whatever the log counts can be restored."""
    assert Driver.sink_at(root).rows() == [f"rows of {n}" for n in range(EPOCHS)]
    pipeline = read_pipeline(str(root / "store" / "orders"))
    verified = verify(pipeline.url, read_data=True)
    assert [finding for finding in verified.findings if finding.severity == "error"] == []
    assert pipeline.state.settled_epoch == pipeline.state.epoch == EPOCHS


def meet(root: Path, *rules: Fault, seed: int = 0) -> tuple[str | None, Faults]:
    """Meet faults on the way; return how that ended. Without them, the next start must put everything right."""
    slept: list[float] = []
    faults, code = Faults(*rules, seed=seed, sleep=slept.append), None
    with faults.everywhere():
        try:
            go_on(root)
        except SlackwaterError as error:
            code = error.code
    faults.land()
    go_on(root)
    see_all_is_right(root)
    assert slept == [befell and 1.0 for befell in faults.befell if befell.kind == "slow"]
    return code, faults


AT_THE_APPEND = {"fail-before": None, "fail-after": None, "slow": None, "503": None, "429": None}
AT_A_PUT = dict.fromkeys(("fail-before", "fail-after", "503", "429"), "store.unavailable") | {"slow": None}
REFUSED = {"full-disk": "store.full", "denied": "store.denied"}


@pytest.mark.parametrize(("kind", "code"), (AT_THE_APPEND | REFUSED).items())
@pytest.mark.parametrize("nth", [1, 2, EPOCHS + 1])
def test_an_append_is_tried_again_unless_the_store_refuses_it(tmp_path, kind, code, nth):
    ended, faults = meet(tmp_path, Fault(kind, verb="create", key=RECORD, nth=nth))
    assert (ended, len(faults.befell)) == (code, 1)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("nth", [1, 2, EPOCHS + 1])
def test_an_append_whose_answer_is_lost_counts_once(tmp_path, fate, nth):
    ended, faults = meet(tmp_path, Fault("lost-answer", verb="create", key=RECORD, nth=nth, fate=fate))
    assert (ended, len(faults.befell)) == (None, 1)


@pytest.mark.parametrize(("kind", "code"), (AT_A_PUT | REFUSED | {"lost-answer": "store.unavailable"}).items())
@pytest.mark.parametrize("key", [MANIFEST, DATA])
def test_a_put_that_fails_ends_the_driver_and_the_next_one_goes_on(tmp_path, kind, code, key):
    ended, faults = meet(tmp_path, Fault(kind, verb="put", key=key, nth=2))
    assert (ended, len(faults.befell)) == (code, 1)


@pytest.mark.parametrize("kind", ["fail-before", "503", "429", "slow", "denied"])
def test_a_listing_or_a_delete_that_fails_leaves_nothing_undone(tmp_path, kind):
    code = {"slow": None, "denied": "store.denied"}.get(kind, "store.unavailable")
    # A driver goes on when it cannot delete.
    verbs: list[tuple[Verb, str | None]] = [("list", code), ("delete", None)]
    for verb, expected in verbs:
        ended, faults = meet(tmp_path / verb, Fault(kind, verb=verb))
        assert (ended, len(faults.befell)) == (expected, 1)
        pipeline = read_pipeline(str(tmp_path / verb / "store" / "orders"))
        assert pipeline.state.retired == []
        left = {listed.key.split("/")[1] for listed in pipeline.store.list("checkpoints/")} - {"_latest"}
        manifests = [load_manifest(pipeline.store, entry) for entry in pipeline.state.live]
        needed = {key for manifest in manifests for key in references(manifest)}
        assert left == {key.split("/")[1] for key in needed} | set(pipeline.state.checkpoint_ids)


@pytest.mark.parametrize("kind", ["truncated", "bit-flipped", "missing"])
@pytest.mark.parametrize(("key", "code"), [(RECORD, None), (MANIFEST, "head.damaged"), (DATA, "head.damaged")])
def test_what_is_read_wrong_is_never_taken_for_right(tmp_path, kind, key, code):
    make_pipeline(tmp_path, EPOCHS - 1, state_bytes=500)
    ended, faults = meet(tmp_path, *(Fault(kind, verb="get", key=key, times=None),))
    assert faults.befell
    assert ended == code or (key == RECORD and ended in ("log.corrupt", "log.busy", "object.damaged"))


def test_a_head_that_is_not_found_is_not_passed_over(tmp_path):
    make_pipeline(tmp_path, EPOCHS - 1)
    with Faults(Fault("missing", key=MANIFEST, times=None)).everywhere(), pytest.raises(Corrupt) as raised:
        Driver(tmp_path)
    assert raised.value.code == "head.damaged"


def test_a_log_that_is_not_found_beside_checkpoints_is_no_fresh_start(tmp_path):
    make_pipeline(tmp_path, EPOCHS - 1)
    with Faults(Fault("missing", key=RECORD, times=None)).everywhere(), pytest.raises(Corrupt) as raised:
        Driver(tmp_path)
    assert raised.value.code == "log.missing"


def test_a_verifier_takes_a_new_checkpoint_for_no_lost_record(tmp_path):
    driver = Driver(tmp_path)
    driver.step()
    faults = Faults(Fault("slow", verb="get", key=LATEST), sleep=lambda seconds: driver.step())
    with faults.everywhere():
        verified = verify(driver.pipeline)
    assert driver.micro_batch == 1, "the driver goes on right before the pointer is read"
    assert verified.findings == []


def writes(root: Path) -> Iterator[tuple[Verb, int]]:
    """Count the calls of each verb that writes, in a run in which nothing fails."""
    for verb in ("put", "create", "delete"):
        counted = Faults(Fault("slow", verb=verb, times=None), sleep=lambda seconds: None)
        with counted.everywhere():
            go_on(root / verb)
        for n in range(1, len(counted.befell) + 1):
            yield verb, n


KINDS_OF_WRITES: list[tuple[Kind, Fate | None]] = [
    ("fail-before", None),
    ("fail-after", None),
    *(("lost-answer", fate) for fate in FATES),
]


@pytest.mark.parametrize(("kind", "fate"), KINDS_OF_WRITES)
def test_every_write_may_fail_before_or_after_or_lose_its_answer(tmp_path, kind, fate):
    for number, (verb, nth) in enumerate(writes(tmp_path / "count")):
        _, faults = meet(tmp_path / str(number), Fault(kind, verb=verb, nth=nth, fate=fate))
        assert len(faults.befell) == 1
    assert number > 3 * EPOCHS


def test_faults_by_chance_are_the_same_for_the_same_seed(tmp_path):
    rules = [Fault(kind, times=None, probability=0.01) for kind in KINDS]

    def befell(name: str, seed: int) -> list[tuple[str, str]]:
        _, faults = meet(tmp_path / name, *rules, seed=seed)
        return [(fault.kind, fault.verb) for fault in faults.befell]

    runs = [befell(f"first-{seed}", seed) for seed in range(12)]
    assert runs == [befell(f"second-{seed}", seed) for seed in range(12)]
    assert len({str(run) for run in runs}) > 3


# --- the wrapper alone


def test_faults_befall_the_calls_that_they_name():
    store, faults = opened(Fault("fail-before", verb="put", key="a/*", nth=2, times=2))
    store.put("a/1", b"")
    store.put("b/1", b"")
    for key in ("a/2", "a/3"):
        with pytest.raises(Unavailable):
            store.put(key, b"")
    store.put("a/4", b"")
    assert [entry.key for entry in store.list("a")] == ["a/1", "a/4"]
    assert faults.befell == [Befell("fail-before", "put", "a/2"), Befell("fail-before", "put", "a/3")]


@pytest.mark.parametrize(("kind", "there"), [("fail-before", False), ("fail-after", True)])
def test_a_request_fails_before_or_after_it_was_done(kind, there):
    store, _ = opened(Fault(kind, verb="create"))
    with pytest.raises(Unavailable):
        store.create("a", b"")
    assert store.create("a", b"") is not there


def test_a_write_whose_answer_is_lost_has_landed_or_lands_later_or_never():
    seen = {}
    for fate in FATES:
        store, faults = opened(Fault("lost-answer", verb="create", fate=fate))
        with pytest.raises(Unavailable) as raised:
            store.create("a", b"")
        assert raised.value.code == "store.unavailable"
        at_once = bool(store._backend._backend.list("", None))  # type: ignore[attr-defined]
        faults.land()
        seen[fate] = (at_once, bool(store.list("")))
    assert seen == {"landed": (True, True), "later": (False, True), "never": (False, False)}


def test_what_lands_later_does_so_by_itself():
    store, _ = opened(Fault("lost-answer", verb="put", fate="later"))
    with pytest.raises(Unavailable):
        store.put("a", b"late")
    listings = [bool(store.list("")) for _ in range(11)]
    assert listings[-1] and listings == sorted(listings)


@pytest.mark.parametrize("kind", ["503", "429"])
def test_a_status_is_told(kind):
    store, _ = opened(Fault(kind, verb="get"))
    with pytest.raises(Unavailable) as raised:
        store.get("a")
    assert raised.value.details["status"] == int(kind)


def test_a_read_that_ends_early_is_an_error_and_a_flipped_bit_is_one_bit():
    store, _ = opened(Fault("truncated", key="cut"), Fault("bit-flipped", key="flipped"))
    for key in ("cut", "flipped"):
        store.put(key, bytes(100))
    with pytest.raises(Corrupt) as raised:
        store.get("cut")
    assert raised.value.code == "object.damaged" and "ends after" in str(raised.value)
    assert sum(byte.bit_count() for byte in store.get("flipped")) == 1
    assert store.get("cut") == store.get("flipped") == bytes(100)


def test_a_missing_object_is_neither_read_nor_listed():
    store, _ = opened(Fault("missing", key="a/1", times=None))
    for key in ("a/1", "a/2"):
        store.put(key, b"")
    assert [entry.key for entry in store.list("a")] == ["a/2"]
    with pytest.raises(NotFound):
        store.get("a/1")


def test_each_rule_counts_whatever_another_does():
    store, faults = opened(Fault("503", verb="put", nth=1), Fault("429", verb="put", nth=2))
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.put("a", b"")
    store.put("a", b"")
    assert [fault.kind for fault in faults.befell] == ["503", "429"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"kind": "bad luck"}, "no kind 'bad luck': it is one of fail-before, fail-after, "),
        ({"kind": "truncated", "verb": "put"}, "truncated cannot befall a put, but only a get"),
        ({"kind": "full-disk", "verb": "get"}, "only a put or create or move"),
        ({"kind": "slow", "verb": "head"}, "no verb 'head': it is one of None, get, put, "),
        ({"kind": "lost-answer", "fate": "maybe"}, "no fate 'maybe': it is one of None, landed, later, never"),
        ({"kind": "slow", "nth": 0}, "nth is 0"),
        ({"kind": "slow", "times": 0}, "times is 0"),
        ({"kind": "slow", "probability": 1.5}, "from 0 to 1, not 1.5"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_what_can(fields, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        Fault(**fields)


def test_stores_opened_after_the_block_are_sound():
    with Faults(Fault("denied", times=None)).everywhere():
        inside = open_store("memory:")
    open_store("memory:").put("a", b"")
    with pytest.raises(Unavailable):
        inside.put("a", b"")
