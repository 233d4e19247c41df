"""Whose a pipeline is: told by its manifests, and by the claim as long as there are none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Unsupported
from slackwater.formats import manifest as manifests
from slackwater.formats.keys import manifest_key
from slackwater.formats.manifest import Kind
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.program import open_pipeline
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.kinds import refuse_foreign
from slackwater.protocol.log import Log
from slackwater.protocol.pipeline import locate
from slackwater.settings import Settings
from slackwater.testing.faulty_store import Fault, Faults, FaultyStore
from tests.keyed_pipelines import config_of
from tests.pipelines import Driver, make_pipeline

# Each kind, and the roles of those that it may come after.
KINDS: dict[Kind, tuple[str, ...]] = {
    "spark": ("", " adopt", " copy"),
    "program": (" program",),
    "keyed": (" keyed 0a0b",),
}
KIND_OF = {role: kind for kind, roles in KINDS.items() for role in roles}


@pytest.mark.parametrize("role", KIND_OF)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_without_a_checkpoint_is_whose_claim_it_has_until_that_driver_ends(
    tmp_path: Path, kind: Kind, role: str
) -> None:
    place = locate(str(tmp_path / "orders"))
    assert refuse_foreign(place, kind) is None, "a new one is anyone's"
    # A host may be called anything.
    driver = f"keyed-program:7{role}"
    claimed = claim_driver(place, driver)
    if role in KINDS[kind]:
        assert refuse_foreign(place, kind) is None
    else:
        with pytest.raises(Unsupported, match="no checkpoint yet") as caught:
            refuse_foreign(place, kind)
        assert caught.value.code == "pipeline.foreign" and driver in caught.value.message
        assert caught.value.details == {"kind": kind, "found": KIND_OF[role]}
    assert claimed.end() is None
    assert refuse_foreign(place, kind) is None


def test_the_newest_manifest_that_is_read_tells_whose_it_is_and_one_bad_read_passes_none_over(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.step()
    driver.step()
    store = FaultyStore(driver.store, Faults(Fault("bit-flipped", verb="get", nth=2)))
    log = Log(store, SystemClock(), Settings())
    newest = refuse_foreign(msgspec.structs.replace(driver.place, store=store, log=log), "spark")
    assert newest is not None and newest.epoch == 2
    (driver.pipeline / manifest_key(newest.checkpoint_id)).write_bytes(b"rot")
    older = refuse_foreign(driver.place, "spark")
    assert older is not None and older.epoch == 1
    (driver.pipeline / manifest_key(older.checkpoint_id)).unlink()
    assert refuse_foreign(driver.place, "program") is None, "recovery says what is wrong"


def test_a_newest_manifest_of_another_release_is_refused_before_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = manifests.encode
    with monkeypatch.context() as newer:
        newer.setattr(manifests, "encode", lambda made: encode(made).replace(b'"version":3', b'"version":4'))
        place = locate(str(make_pipeline(tmp_path, 1)))
    with pytest.raises(Unsupported) as caught:
        refuse_foreign(place, "spark")
    assert caught.value.code == "format.unknown_version" and "the manifest has version" in str(caught.value)


def test_each_kind_of_pipeline_is_refused_by_the_others(tmp_path: Path) -> None:
    with open_keyed(config_of(tmp_path)) as counts:
        counts.create_checkpoint()
        with pytest.raises(Unsupported, match="a keyed state's") as caught:
            open_pipeline(tmp_path / "store", "counts")
        assert caught.value.code == "pipeline.foreign"
        assert caught.value.details == {"kind": "program", "found": "keyed"}
        with pytest.raises(Unsupported, match="not Spark's: they are a keyed state's"):
            refuse_foreign(counts._pipeline, "spark")
        assert counts.create_checkpoint().epoch == 2, "nobody has fenced it"
    with open_pipeline(tmp_path / "store", "words") as words:
        words.checkpoint(offsets={}, state={})
        with pytest.raises(Unsupported, match="a program's") as caught:
            open_keyed(CheckpointConfig(tmp_path / "store" / "words"))
        assert caught.value.code == "pipeline.foreign"
        assert caught.value.details == {"kind": "keyed", "found": "program"}
        words.checkpoint(offsets={}, state={})
    make_pipeline(tmp_path, 1)
    with pytest.raises(Unsupported, match="Spark's"):
        open_keyed(CheckpointConfig(tmp_path / "store" / "orders"))
    assert not (tmp_path / "store" / "orders.wal").exists()


def test_a_driver_of_another_kind_that_has_no_checkpoint_yet_is_not_fenced(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    with pytest.raises(Unsupported, match="no checkpoint yet"):
        open_keyed(CheckpointConfig(tmp_path / "store" / "orders"))
    driver.step()
    with open_keyed(config_of(tmp_path)) as counts:
        with pytest.raises(Unsupported, match="no checkpoint yet"):
            open_pipeline(tmp_path / "store", "counts")
        with pytest.raises(Unsupported, match="no checkpoint yet") as caught:
            refuse_foreign(counts._pipeline, "spark")
        assert caught.value.code == "pipeline.foreign"
        assert caught.value.details == {"kind": "spark", "found": "keyed"}
        counts.create_checkpoint()
