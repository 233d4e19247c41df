"""A checkpoint of LaminarDB imported into a pipeline: verified, claimed, killed at every step, and done once."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from slackwater import failpoints
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from slackwater.formats.manifest import Manifest
from slackwater.ops.import_ import import_folder
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol.artifacts import get_artifacts
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.pipeline import Pipeline, locate
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import MIB, Settings
from slackwater.spark.hydrate import hydrate
from tests.laminar_findings import tell
from tests.laminar_folders import AGG, IDS, JOIN, incremental_folder, partition, v1_folder, v2, v2_folder, write
from tests.pipelines import make_pipeline

POINTS = ["claim.before", "claim.after", "artifacts.after", "manifest.after", "append.after", "latest.after",
          "release.before", "release.after"]  # fmt: skip


def files_of(pipeline: Pipeline) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    get_artifacts(
        pipeline.store, head_of(pipeline), Settings(), lambda path, parts: found.update({path: b"".join(parts)})
    )
    return found


def head_of(pipeline: Pipeline) -> Manifest:
    assert pipeline.state.head is not None
    return load_manifest(pipeline.store, pipeline.state.head)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store" / "orders")


@pytest.mark.parametrize("defective", [False, True])
def test_a_folder_of_version_2_becomes_a_checkpoint(tmp_path, url, defective):
    imported = import_folder(str(v2_folder(tmp_path / "db", defective=defective)), url)
    pipeline = read_pipeline(url)
    manifest = head_of(pipeline)
    assert (imported.epoch, imported.done, imported.pipeline) == (1, False, "orders")
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


def test_a_chain_of_deltas_is_imported_with_its_base_so_that_it_stands_alone(tmp_path, url):
    import_folder(str(v2_folder(tmp_path / "db")), url, at="2")
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
    import_folder(str(write(tmp_path / "db", files)), url)
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
    import_folder(str(v1_folder(tmp_path / "db")), url)
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
def test_an_import_that_dies_anywhere_is_done_again_and_counts_once(tmp_path, url, point, monkeypatch):
    folder = str(v2_folder(tmp_path / "db"))
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", {point: (1, "raise")})
        armed.setattr(failpoints, "_hits", {})
        with pytest.raises(SlackwaterError, match=point):
            import_folder(folder, url)
    if point != "claim.before":
        # What fails at the release itself cannot be on record; all else after the claim is.
        ended = read_pipeline(url).state.release_append_id is not None
        assert ended == (point != "release.before")
    counted = point in ("append.after", "latest.after", "release.before", "release.after")
    imported = import_folder(folder, url)
    pipeline = read_pipeline(url)
    assert imported.done is counted
    assert (pipeline.state.epoch, pipeline.state.settled_epoch, len(pipeline.state.live)) == (1, 1, 1)
    assert pipeline.state.release_append_id is not None
    assert verify(pipeline.url, read_data=True).sound
    assert import_folder(folder, url).done


def test_an_import_that_is_done_writes_nothing_more(tmp_path, url):
    folder = str(v2_folder(tmp_path / "db"))
    import_folder(folder, url)
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}
    assert import_folder(folder, url).done
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before


def test_another_checkpoint_or_a_pipeline_with_a_history_is_refused(tmp_path, url):
    folder = str(v2_folder(tmp_path / "db"))
    import_folder(folder, url)
    with pytest.raises(Conflict) as caught:
        import_folder(folder, url, at="1")
    assert caught.value.code == "pipeline.not_new"
    make_pipeline(tmp_path, 1, name="busy")
    with pytest.raises(Conflict):
        import_folder(folder, str(tmp_path / "store" / "busy"))


def test_rule_11_an_import_claims_first_and_fences_a_driver_that_runs(tmp_path, url):
    running = claim_driver(locate(url), "a driver")
    import_folder(str(v2_folder(tmp_path / "db")), url)
    assert read_pipeline(url).state.generation > running.permit.generation


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
        import_folder(str(root), url)
    assert tell(caught.value) in ("refused", "digest mismatch")
    assert not Path(url).exists()


def test_what_is_no_folder_and_what_is_no_name_is_refused(tmp_path, url):
    with pytest.raises(NotFound) as caught:
        import_folder(str(tmp_path / "nothing"), url)
    assert caught.value.code == "folder.not_found"
    with pytest.raises(InvalidInput) as hostile:
        import_folder(str(v2_folder(tmp_path / "db")), str(tmp_path / "store" / "my orders"))
    assert hostile.value.code == "name.invalid" and "is not how Slackwater writes" in str(hostile.value)


def test_what_another_system_has_made_is_told_by_its_content_and_refused(tmp_path, url):
    for name in ("offsets", "commits", "state"):
        write(tmp_path / "spark", {f"{name}/0": "v1"})
    orders = make_pipeline(tmp_path, 1, name="other")
    for folder, hint in ((tmp_path / "spark", "sw.adopt"), (orders, "where it is")):
        with pytest.raises(Unsupported) as caught:
            import_folder(folder, url)
        assert caught.value.code == "import.unsupported" and hint in str(caught.value.hint)
    assert not Path(url).exists()


def test_what_is_read_is_told_while_it_is(tmp_path, url):
    told: list[tuple[int, int]] = []
    import_folder(v2_folder(tmp_path / "db"), url, at="1", progress=lambda *both: told.append(both))
    size = len(AGG[0]) + len(AGG[1])
    assert told == [(len(AGG[0]), size), (size, size)]


def test_nothing_is_imported_into_the_folder_of_another_pipeline(tmp_path):
    orders = make_pipeline(tmp_path, 1)
    with pytest.raises(InvalidInput, match="its store is") as caught:
        import_folder(str(v2_folder(tmp_path / "db")), str(orders / "imported"))
    assert caught.value.code == "store.invalid"
    assert not (orders / "imported").exists()


def test_spark_does_not_go_on_from_what_was_imported(tmp_path, url):
    import_folder(str(v2_folder(tmp_path / "db")), url)
    pipeline = read_pipeline(url)
    with pytest.raises(Unsupported) as caught:
        hydrate(pipeline.store, head_of(pipeline), tmp_path / "work", Settings())
    assert caught.value.code == "pipeline.foreign"
    assert not (tmp_path / "work").exists()


def test_the_folder_is_only_read(tmp_path, url):
    root = v2_folder(tmp_path / "db")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    import_folder(str(root), url)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_the_folder_that_is_imported_holds_no_pipeline(tmp_path):
    folder = v2_folder(tmp_path / "db")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for url in (folder / "orders", folder / "checkpoints"):
        with pytest.raises(InvalidInput, match="only read") as caught:
            import_folder(folder, url)
        assert caught.value.code == "store.invalid"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_disk_that_is_full_where_a_state_waits_is_told_with_the_way_out(tmp_path, url, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = str(v2_folder(tmp_path / "db"))
    monkeypatch.setattr("slackwater.ops.import_._spool", full)
    with pytest.raises(Unavailable, match="No space left") as caught:
        import_folder(folder, url)
    assert caught.value.code == "folder.unavailable" and "TMPDIR" in str(caught.value.hint)
