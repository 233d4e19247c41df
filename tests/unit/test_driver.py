"""The life of a driver: what it binds, remembers, spends, and tells at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from slackwater.errors import Conflict, Corrupt, SlackwaterError, Unavailable
from slackwater.formats.change import Checkpoint
from slackwater.formats.keys import manifest_key
from slackwater.formats.manifest import Manifest
from slackwater.protocol.artifacts import Holdings
from slackwater.protocol.cut import Cut
from slackwater.protocol.driver import Claimed, Driver, claim_driver, make_first, open_driver
from slackwater.protocol.log import Permit
from slackwater.protocol.pipeline import Pipeline, locate
from slackwater.protocol.sinks import Attempt
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.testing.faulty_store import Fault, Faults
from tests import pipelines
from tests.golden.samples import HASH, golden_manifest
from tests.pipelines import FolderSink
from tests.unit.test_first_checkpoint import before_the_record

NOTHING = Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[], files=[])


@pytest.fixture
def place(tmp_path: Path) -> Pipeline:
    return locate(str(tmp_path / "store" / "orders"))


def hydrate_nothing(manifest: Manifest | None, claimed: Claimed) -> tuple[None, Holdings]:
    return None, {}


def step(driver: Driver, **fields: Any) -> None:
    driver.checkpoint(NOTHING, Attempt(checkpoint_id=driver.pipeline.clock.checkpoint_id(), outputs={}), **fields)


def test_of_two_first_drivers_at_once_both_bind_their_sinks_to_the_uid_that_counts(
    tmp_path: Path, place: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink remembers epochs under the uid: under another one it would find none of them."""
    sinks = [FolderSink(tmp_path / name) for name in ("first", "second")]
    other = locate(place.url)
    with monkeypatch.context() as patch:
        before_the_record(patch, lambda: claim_driver(other, "first", sinks={"totals": sinks[0]}))
        driver = claim_driver(place, "second", sinks={"totals": sinks[1]})
    assert driver.permit == Permit(2) and driver.state.uid == other.state.uid
    assert {(sink.root / "owner").read_text() for sink in sinks} == {f"orders/totals/{driver.state.uid}"}


def test_a_sink_that_refuses_the_uid_that_counts_ends_the_claim(
    tmp_path: Path, place: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bound(FolderSink):
        def bind(self, pipeline: str, sink: str, uid: str) -> None:
            if (self.root / "owner").exists():
                raise Conflict("it knows another uid", code="sink.foreign")
            super().bind(pipeline, sink, uid)

    with monkeypatch.context() as patch:
        before_the_record(patch, lambda: claim_driver(locate(place.url), "first"))
        with pytest.raises(Conflict, match="another uid"):
            claim_driver(place, "second", sinks={"totals": Bound(tmp_path / "lake")})
    state = locate(place.url).log.read()
    assert state is not None and (state.generation, state.release_append_id is not None) == (2, True)


def test_a_driver_reads_nothing_back_that_it_wrote_itself(tmp_path: Path) -> None:
    driver = pipelines.Driver(tmp_path, keep_last=2)
    for _ in range(3):
        driver.step()
    before = driver.store.requests.snapshot()
    for _ in range(3):
        driver.step()
    spent = driver.store.requests - before
    assert spent.gets == 0 and spent.deletes > 0, "it deletes, and knows what by heart"


def test_a_checkpoint_says_what_query_made_it_and_a_first_one_from_elsewhere_does_not(place: Pipeline) -> None:
    assert make_first(place, "tool", NOTHING, lambda state: None)
    query = golden_manifest().query
    driver, _ = open_driver(place, "test", hydrate=hydrate_nothing, query=query, pipeline_hash=HASH)
    step(driver)
    made = [load_manifest(place.store, entry) for entry in driver.state.live]
    assert [(manifest.query, manifest.pipeline_hash) for manifest in made] == [(None, None), (query, HASH)]


def test_what_is_settled_is_told_before_the_deletes(tmp_path: Path) -> None:
    place = locate(str(tmp_path / "store" / "orders"), Settings(keep_last=1))
    driver, manifests = claim_driver(place, "test"), Path(place.url, "checkpoints")
    step(driver)
    told: list[int] = []
    step(driver, settled=lambda report: told.append(len(list(manifests.glob("*/manifest.json")))))
    assert told == [2] and len(list(manifests.glob("*/manifest.json"))) == 1


def test_as_a_block_a_driver_ends_with_it_and_the_first_error_is_the_one_to_tell(place: Pipeline) -> None:
    with claim_driver(place, "test") as driver:
        step(driver)
    assert driver.state.release_append_id is not None and driver.state.settled_epoch == 1
    with pytest.raises(ZeroDivisionError), claim_driver(place, "test") as driver:
        claim_driver(locate(place.url), "newer")
        raise ZeroDivisionError
    with pytest.raises(Conflict) as caught, claim_driver(place, "test") as driver:
        claim_driver(locate(place.url), "newer")
    assert caught.value.code == "driver.fenced", "nothing else failed, so that is told"


def test_an_end_that_the_store_hinders_is_told(tmp_path: Path) -> None:
    with Faults(Fault("denied", verb="create", nth=2, times=None)).everywhere():
        driver = claim_driver(locate(str(tmp_path / "orders")), "test")
    hindrance = driver.end()
    assert isinstance(hindrance, Unavailable) and hindrance.code == "store.denied"


# --- a program that has the newest state itself


def lose_the_head(place: Pipeline, *, settled: bool) -> None:
    """Make two checkpoints, and damage the newest; the last driver has ended on record, or was killed."""
    driver = claim_driver(place, "test")
    step(driver)
    step(driver)
    if settled:
        assert driver.end() is None
    place.store.put(manifest_key(driver.state.live[-1].checkpoint_id), b"rot")


@pytest.mark.parametrize("settled", [False, True])
def test_a_program_that_has_the_newest_state_itself_goes_on_from_a_damaged_head(place: Pipeline, settled: bool) -> None:
    lose_the_head(place, settled=settled)
    heard: list[tuple[str, int]] = []

    def without_head(damage: SlackwaterError, claimed: Claimed) -> tuple[str, Holdings]:
        heard.append((damage.code, claimed.permit.generation))
        return "its own", {}

    driver, value = open_driver(locate(place.url), "test", hydrate=hydrate_nothing, without_head=without_head)
    assert value == "its own" and driver.head is None
    assert heard == [("object.damaged", driver.permit.generation)]
    step(driver)
    assert [entry.epoch for entry in driver.state.branch] == [1, 2, 3] and driver.state.settled_epoch == 2
    change = driver.pipeline.log.change
    assert isinstance(change, Checkpoint) and (change.settled is None) == settled, "that it is settled is said once"


def test_a_program_is_not_asked_while_the_head_is_sound(place: Pipeline) -> None:
    driver = claim_driver(place, "test")
    step(driver)

    def refuse(damage: SlackwaterError, claimed: Claimed) -> NoReturn:
        raise damage

    driver, _ = open_driver(locate(place.url), "test", hydrate=hydrate_nothing, without_head=refuse)
    assert driver.head is not None and driver.head.epoch == 1


def test_a_program_may_refuse_to_go_on_from_a_damaged_head_and_its_claim_ends(place: Pipeline) -> None:
    lose_the_head(place, settled=True)

    def refuse(damage: SlackwaterError, claimed: Claimed) -> NoReturn:
        raise damage

    with pytest.raises(Corrupt) as caught:
        open_driver(locate(place.url), "test", hydrate=hydrate_nothing, without_head=refuse)
    assert caught.value.code == "object.damaged"
    state = locate(place.url).log.read()
    assert state is not None and (state.epoch, state.release_append_id is not None) == (2, True)


def test_a_run_that_has_ended_on_record_makes_no_checkpoint(place: Pipeline) -> None:
    driver = claim_driver(place, "test:1")
    step(driver)
    assert driver.end() is None
    with pytest.raises(SlackwaterError) as caught:
        step(driver)
    assert caught.value.code == "pipeline.ended" and place.state.epoch == 1


def test_a_start_that_is_fenced_while_it_looks_for_a_sound_checkpoint_says_that(place: Pipeline) -> None:
    """What it found damaged may have been retired by the newer driver."""
    driver = claim_driver(place, "test")
    step(driver)
    step(driver)
    assert driver.end() is None
    newer: list[Driver] = []

    def hydrate(manifest: Manifest | None, claimed: Claimed) -> tuple[None, Holdings]:
        if manifest is not None and manifest.epoch == 2:
            raise Corrupt("an object is missing", code="artifact.missing")
        newer.append(claim_driver(locate(place.url), "newer"))
        return None, {}

    with pytest.raises(Conflict) as caught:
        open_driver(locate(place.url), "test", hydrate=hydrate)
    assert caught.value.code == "driver.fenced" and len(newer) == 1
    step(newer[0])
