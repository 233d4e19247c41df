"""A checkpoint of LaminarDB copied into a pipeline: verified, claimed, killed at every step, and done once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from slackwater import failpoints
from slackwater.clock import SystemClock
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from slackwater.formats.manifest import Manifest
from slackwater.ops.import_ import copy_in
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol.log import Log
from slackwater.protocol.pipeline import Pipeline
from slackwater.protocol.recovery import claim, load_manifest, restore
from slackwater.settings import MIB, Settings
from slackwater.spark.hydrate import hydrate
from slackwater.store import open_store
from tests.laminar_folders import AGG, IDS, JOIN, incremental_folder, partition, v1_folder, v2, v2_folder, write
from tests.pipelines import make_pipeline

POINTS = ["claim.before", "claim.after", "artifacts.after", "manifest.after", "append.after", "latest.after",
          "release.before", "release.after"]  # fmt: skip


def files_of(pipeline: Pipeline) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    restore(pipeline.store, head_of(pipeline), Settings(), lambda path, parts: found.update({path: b"".join(parts)}))
    return found


def head_of(pipeline: Pipeline) -> Manifest:
    assert pipeline.state.head is not None
    return load_manifest(pipeline.store, pipeline.state.head)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store" / "orders")


@pytest.mark.parametrize("defective", [False, True])
def test_a_folder_of_version_2_becomes_a_checkpoint(tmp_path, url, defective):
    copied = copy_in(str(v2_folder(tmp_path / "db", defective=defective)), url)
    pipeline = read_pipeline(url)
    manifest = head_of(pipeline)
    assert (copied.epoch, copied.done, copied.pipeline) == (1, False, "orders")
    assert (pipeline.state.epoch, pipeline.state.settled_epoch) == (1, 1)
    assert pipeline.state.release_append_id is not None
    assert verify(pipeline.url, read_data=True).sound
    assert files_of(pipeline) == {
        f"operators/agg/0/{IDS[2]}.snap": AGG[2],
        f"operators/agg/1/{IDS[2]}.snap": AGG[3],
    }
    assert manifest.source_offsets["clicks"].offsets == {"clicks-0": "3"}
    assert manifest.origin is not None and manifest.origin.checkpoint_id == IDS[2]
    assert (manifest.watermark_ms, manifest.sink_epochs, manifest.vnode_count) == (5000, {}, None)


def test_a_chain_of_deltas_is_copied_with_its_base_so_that_it_stands_alone(tmp_path, url):
    copy_in(str(v2_folder(tmp_path / "db")), url, ref="2")
    pipeline = read_pipeline(url)
    assert files_of(pipeline) == {
        f"operators/agg/0/{IDS[0]}.snap": AGG[0],
        f"operators/agg/0/{IDS[1]}.delta": b"a delta",
        f"operators/agg/1/{IDS[1]}.snap": AGG[2],
    }
    assert [p.kind for p in head_of(pipeline).operators["agg"].partitions] == ["delta", "snap"]


def test_state_of_every_size_is_placed_as_that_of_any_checkpoint(tmp_path, url):
    noise = [hashlib.shake_128(bytes([n])).digest(2 * MIB if n == 0 else 8192) for n in range(20)]
    entries = [partition(n, data, f"operators/a b/partition-{n}.snap") for n, data in enumerate(noise)]
    delta = partition(0, noise[1], "operators/a b/partition-0.delta", delta=True)
    base, newest = v2(IDS[0], 1, entries), v2(IDS[1], 2, [delta, *entries[1:]], parent_id=IDS[0])
    for document in (base, newest):
        document["operators"] = {"a b": document["operators"].pop("agg")}
    files: dict[str, Any] = {f"{IDS[0]}/manifest.json": base, f"{IDS[1]}/manifest.json": newest}
    for checkpoint_id in IDS[:2]:
        files |= {f"{checkpoint_id}/operators/a b/partition-{n}.snap": data for n, data in enumerate(noise)}
    files[f"{IDS[1]}/operators/a b/partition-0.delta"] = noise[1]
    copy_in(str(write(tmp_path / "db", files)), url)
    pipeline = read_pipeline(url)
    manifest = head_of(pipeline)
    assert {o.kind for o in manifest.objects} == {"batch", "object"}
    assert verify(pipeline.url, read_data=True).sound
    restored = files_of(pipeline)
    assert restored[f"operators/a%20b/0/{IDS[0]}.snap"] == noise[0]
    assert restored[f"operators/a%20b/0/{IDS[1]}.delta"] == noise[1]
    assert [restored[f"operators/a%20b/{n}/{IDS[1]}.snap"] for n in range(1, 20)] == noise[1:]
    assert len(restored) == 21


def test_a_folder_of_version_1_becomes_a_checkpoint_with_all_that_it_says(tmp_path, url):
    copy_in(str(v1_folder(tmp_path / "db")), url)
    pipeline = read_pipeline(url)
    manifest = head_of(pipeline)
    assert files_of(pipeline) == {"operators/agg/0/000002.snap": b"slack water", "operators/join/0/000002.snap": JOIN}
    assert (manifest.source_watermarks, manifest.sink_epochs, manifest.vnode_count) == (
        {"clicks": "-1"},
        {"pg": 7},
        256,
    )
    assert manifest.table_offsets["rates"].offsets == {"lsn": "0/ABCD"}
    assert manifest.source_offsets["clicks"].metadata == {"connector": "kafka", "topic": "clicks"}


@pytest.mark.parametrize("point", POINTS)
def test_a_copy_that_dies_anywhere_is_done_again_and_counts_once(tmp_path, url, point, monkeypatch):
    folder = str(v2_folder(tmp_path / "db"))
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", {point: (1, "raise")})
        armed.setattr(failpoints, "_hits", {})
        with pytest.raises(SlackwaterError, match=point):
            copy_in(folder, url)
    counted = point in ("append.after", "latest.after", "release.before", "release.after")
    copied = copy_in(folder, url)
    pipeline = read_pipeline(url)
    assert copied.done is counted
    assert (pipeline.state.epoch, pipeline.state.settled_epoch, len(pipeline.state.live)) == (1, 1, 1)
    assert pipeline.state.release_append_id is not None
    assert verify(pipeline.url, read_data=True).sound
    assert copy_in(folder, url).done


def test_a_copy_that_is_done_writes_nothing_more(tmp_path, url):
    folder = str(v2_folder(tmp_path / "db"))
    copy_in(folder, url)
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}
    assert copy_in(folder, url).done
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before


def test_another_checkpoint_or_a_pipeline_with_a_history_is_refused(tmp_path, url):
    folder = str(v2_folder(tmp_path / "db"))
    copy_in(folder, url)
    with pytest.raises(Conflict) as caught:
        copy_in(folder, url, ref="1")
    assert caught.value.code == "copy.not_new"
    make_pipeline(tmp_path, 1, name="busy")
    with pytest.raises(Conflict):
        copy_in(folder, str(tmp_path / "store" / "busy"))


def test_rule_11_a_copy_claims_first_and_fences_a_driver_that_runs(tmp_path, url):
    store = open_store(url)
    log = Log(store, SystemClock(), Settings())
    generation = claim(store, log, SystemClock(), pipeline="orders", driver="a driver", sinks={}).state.generation
    copy_in(str(v2_folder(tmp_path / "db")), url)
    state = read_pipeline(url).state
    assert state.generation > generation


@pytest.mark.parametrize("what", ["flipped", "missing", "cut", "no digest", "missing field", "incremental"])
def test_what_cannot_be_trusted_is_refused_and_nothing_is_claimed(tmp_path, url, what):
    root = incremental_folder(tmp_path / "db") if what == "incremental" else v2_folder(tmp_path / "db")
    folder = root / "checkpoints" / IDS[2]
    victim, manifest = folder / "operators" / "agg" / "partition-1.snap", folder / "manifest.json"
    if what == "flipped":
        victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    elif what == "missing":
        victim.unlink()
    elif what == "cut":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif what == "no digest":
        manifest.write_text(
            manifest.read_text().replace(
                json.loads(manifest.read_text())["operators"]["agg"]["partitions"][0]["sha256"], "0"
            )
        )
    elif what == "missing field":
        document = json.loads(manifest.read_text())
        del document["source_offsets"]
        manifest.write_text(json.dumps(document))
    with pytest.raises(Corrupt) as caught:
        copy_in(str(root), url)
    assert caught.value.code in ("seed.fatal", "seed.digest_mismatch")
    assert not Path(url).exists()


def test_what_is_no_folder_and_what_is_no_name_is_refused(tmp_path, url):
    with pytest.raises(NotFound) as caught:
        copy_in(str(tmp_path / "nothing"), url)
    assert caught.value.code == "copy.no_folder"
    with pytest.raises(InvalidInput) as hostile:
        copy_in(str(v2_folder(tmp_path / "db")), str(tmp_path / "store" / "my orders"))
    assert hostile.value.code == "name.not_encoded"


def test_nothing_is_copied_into_the_folder_of_another_pipeline(tmp_path):
    orders = make_pipeline(tmp_path, 1)
    with pytest.raises(InvalidInput, match="its store is") as caught:
        copy_in(str(v2_folder(tmp_path / "db")), str(orders / "copied"))
    assert caught.value.code == "store.is_pipeline"
    assert not (orders / "copied").exists()


def test_spark_does_not_go_on_from_what_was_copied_in(tmp_path, url):
    copy_in(str(v2_folder(tmp_path / "db")), url)
    pipeline = read_pipeline(url)
    with pytest.raises(Unsupported) as caught:
        hydrate(pipeline.store, head_of(pipeline), tmp_path / "work", Settings())
    assert caught.value.code == "hydrate.foreign"
    assert not (tmp_path / "work").exists()


def test_the_folder_is_only_read(tmp_path, url):
    root = v2_folder(tmp_path / "db")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    copy_in(str(root), url)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
