"""A checkpoint exported as LaminarDB reads it: whole, verified, completed after a kill, and imported again."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import slackwater as sw
from slackwater import failpoints
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from slackwater.formats.manifest import Manifest
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.vnodes import vnode_of
from slackwater.laminar.findings import fatal
from slackwater.laminar.folder import open_folder
from slackwater.laminar.verification import verify_folder
from slackwater.ops import export as exporting
from slackwater.ops.export import Exported, export
from slackwater.ops.forget import forget
from slackwater.ops.import_ import import_folder
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label
from slackwater.program import open_pipeline
from slackwater.protocol.artifacts import get_artifacts
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.store import open_store
from slackwater.testing.faulty_store import Fault, Faults
from tests.keyed_pipelines import config_of
from tests.laminar_folders import v2_folder
from tests.pipelines import flip, make_pipeline

# As a name that LaminarDB joins into a path, and one that no file system takes as it is.
STATE = {
    "counts": {0: b"one" * 2000, 1: b"", 2: b"three"},
    "a/b ~ä": {0: b"odd"},
    "nothing yet": {},
}
OFFSETS = {"rows": {"row": "7"}, "clicks ü": {"clicks-0": "9007199254740993"}}
# All three placements: inline, in a batch, in an object.
SETTINGS = Settings(inline_max_bytes=4, inline_budget_bytes=8, object_min_bytes=4096)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A program's pipeline with three epochs; the newest has an unchanged partition of the first."""
    with open_pipeline(tmp_path / "store", "orders", settings=SETTINGS) as pipeline:
        pipeline.checkpoint(offsets={"rows": {"row": 1}}, state={"counts": {0: b"one" * 2000, 1: b"x"}})
        pipeline.checkpoint(offsets={"rows": {"row": 2}}, state={"counts": {0: b"one" * 2000, 1: b"y" * 500}})
        pipeline.checkpoint(offsets=OFFSETS, state=STATE)
    return str(tmp_path / "store" / "orders")


def head_of(url: str) -> Manifest:
    pipeline = read_pipeline(url)
    assert pipeline.state.head is not None
    return load_manifest(pipeline.store, pipeline.state.head)


def state_of(url: str) -> dict[str, dict[int, bytes]]:
    """The state that an imported checkpoint holds, by operator and partition."""
    found: dict[str, bytes] = {}
    manifest = head_of(url)
    get_artifacts(open_store(url), manifest, Settings(), lambda path, parts: found.update({path: b"".join(parts)}))
    return {
        name: {p.partition: b"".join(data for path, data in found.items() if path.startswith(f"{p.path}/"))
               for p in operator.partitions}
        for name, operator in manifest.operators.items()
    }  # fmt: skip


def read_as_laminar(root: Path) -> tuple[dict[str, Any], dict[str, dict[int, bytes]]]:
    """Read a folder as ``ObjectStoreCheckpointer`` does: pointer, manifest, then each artifact by its stored path."""

    def get(path: str) -> bytes:
        # object_store's own encoding of a path, written out: what is not ASCII, and some of what is.
        segments = [quote(part, safe="!$&'()+,;=:@-_. ").replace("~", "%7E") for part in path.split("/")]
        return root.joinpath(*segments).read_bytes()

    base = "checkpoints/"
    checkpoint_id = get(f"{base}_latest").decode()
    manifest = json.loads(get(f"{base}{checkpoint_id}manifest.json"))
    assert (manifest["version"], manifest["checkpoint_id"], manifest["parent_id"]) == (2, checkpoint_id, None)
    state: dict[str, dict[int, bytes]] = {}
    for name, operator in manifest["operators"].items():
        state[name] = {}
        for entry in operator["partitions"]:
            data = get(entry["path"])
            assert not entry["is_delta"] and entry["size_bytes"] == len(data)
            assert entry["sha256"] == hashlib.sha256(data).hexdigest()
            state[name][entry["partition_id"]] = data
        assert operator["total_bytes"] == sum(map(len, state[name].values()))
    assert manifest["total_size_bytes"] == sum(len(data) for held in state.values() for data in held.values())
    return manifest, state


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- written, and read


def test_LaminarDB_reads_what_was_exported(tmp_path, url):
    exported = export(url, tmp_path / "db")
    manifest, state = read_as_laminar(tmp_path / "db")
    head = head_of(url)
    assert state == STATE
    assert {name: source["offsets"] for name, source in manifest["source_offsets"].items()} == OFFSETS
    assert {(source["source_type"], source["epoch"]) for source in manifest["source_offsets"].values()} == {
        ("program", 3)
    }
    assert (manifest["epoch"], manifest["watermark"], manifest["timestamp_ms"]) == (3, None, head.created_at_ms)
    size = sum(len(data) for held in STATE.values() for data in held.values())
    assert exported == Exported(
        pipeline="orders",
        format="laminar-v2",
        epoch=3,
        checkpoint_id=head.checkpoint_id,
        operators=3,
        partitions=4,
        size_bytes=size,
    )


def test_an_export_is_sound_and_comes_back_when_it_is_imported(tmp_path, url):
    export(url, tmp_path / "db")
    folder = open_folder(open_store(str(tmp_path / "db")))
    assert folder is not None and folder.latest == folder.newest.checkpoint_id == head_of(url).checkpoint_id
    assert fatal([*folder.findings, *folder.newest.findings]) == []
    assert verify_folder(folder, folder.checkpoints, read_data=True).sound
    again = str(tmp_path / "store" / "again")
    imported = import_folder(tmp_path / "db", again)
    assert (imported.origin.checkpoint_id, imported.origin.epoch) == (head_of(url).checkpoint_id, 3)
    assert state_of(again) == STATE
    assert {name: source.offsets for name, source in head_of(again).source_offsets.items()} == OFFSETS
    assert head_of(again).watermark_ms == 0


@pytest.mark.parametrize(("at", "row"), [("1", "1"), (2, "2"), ("before", "2"), ("latest", "7")])
def test_a_checkpoint_is_named_by_any_ref(tmp_path, url, at, row):
    create_label(read_pipeline(url).log, "before", "2")
    export(url, tmp_path / "db", at=at)
    assert read_as_laminar(tmp_path / "db")[0]["source_offsets"]["rows"]["offsets"] == {"row": row}


def test_an_export_goes_into_an_object_store(url):
    exported = sw.export(url, "memory:laminar-export")
    folder = open_folder(open_store("memory:laminar-export"))
    assert folder is not None and verify_folder(folder, folder.checkpoints, read_data=True).sound
    assert folder.newest.checkpoint_id == exported.checkpoint_id


def test_what_is_written_is_told_while_it_is(tmp_path, url):
    told: list[tuple[int, int]] = []
    exported = export(url, tmp_path / "db", progress=lambda *both: told.append(both))
    assert len(told) == 4 and sorted(told) == told and told[-1] == (exported.size_bytes, exported.size_bytes)


def test_the_pipeline_is_only_read(tmp_path, url):
    before = files_in(tmp_path / "store")
    export(url, tmp_path / "db")
    assert files_in(tmp_path / "store") == before


# --- a keyed state


def frames(data: bytes) -> list[tuple[bytes, bytes]]:
    """The entries of an LCB1 body, from LaminarDB's byte table."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        key = data[at + 4 : at + 4 + size]
        at += 4 + size
        (size,) = struct.unpack_from("<I", data, at)
        found.append((key, data[at + 4 : at + 4 + size]))
        at += 4 + size
    assert at == len(data)
    return found


def make_keyed(root: Path) -> dict[bytes, bytes]:
    """Three epochs: the newest has tables of the first, and bytes from outside."""
    rows = {b"%04d" % number: b"v" * number for number in range(300)} | {b"": b"", bytes(range(256)): b"\xff"}
    with open_keyed(config_of(root)) as counts:
        counts.write([(b"gone", b"1"), *rows.items()], offsets={"rows": {"row": "1"}}, watermark_ms=5)
        counts.create_checkpoint()
        counts.write([(b"gone", None)], offsets={"rows": {"row": "2"}}, watermark_ms=1_794_736_800_000)
        counts.create_checkpoint()
        counts.create_checkpoint(b"from outside")
    return rows


@pytest.mark.parametrize(("at", "outside"), [("2", None), ("3", b"from outside")])
def test_a_keyed_state_has_a_partition_for_each_virtual_node_and_comes_back(tmp_path, at, outside):
    rows, url = make_keyed(tmp_path), str(tmp_path / "store" / "counts")
    export(url, tmp_path / "db", at=at)
    manifest, state = read_as_laminar(tmp_path / "db")
    assert list(state["state"]) == list(range(256))
    for node, data in state["state"].items():
        assert frames(data) == sorted((key, value) for key, value in rows.items() if vnode_of(key) == node)
    assert b"" in state["state"].values(), "an empty node has an empty snapshot: it is there, and not missing"
    assert state.get("outside") == (None if outside is None else {0: outside})
    assert manifest["watermark"] == 1_794_736_800_000
    assert manifest["source_offsets"]["rows"]["offsets"] == {"row": "2"}
    again = str(tmp_path / "store" / "again")
    import_folder(tmp_path / "db", again)
    assert state_of(again) == state
    assert head_of(again).watermark_ms == 1_794_736_800_000
    assert head_of(again).source_offsets["rows"].offsets == {"row": "2"}


def test_equal_content_is_exported_as_equal_bytes_however_it_came_about(tmp_path):
    make_keyed(tmp_path / "one")
    exports = []
    for root, changes in (("two", [b"a", b"b"]), ("three", [b"b", b"x", b"a"])):
        with open_keyed(config_of(tmp_path / root)) as counts:
            for key in changes:
                counts.put(key, b"1")
            counts.delete(b"x")
            counts.create_checkpoint()
        export(tmp_path / root / "store" / "counts", tmp_path / f"db-{root}")
        exports.append(read_as_laminar(tmp_path / f"db-{root}")[1])
    assert exports[0] == exports[1]


# --- killed half-way


@pytest.mark.parametrize(
    ("name", "hit"), [("export.snapshot.after", 1), ("export.snapshot.after", 4), ("export.manifest.after", 1)]
)
def test_an_export_that_dies_leaves_no_whole_checkpoint_that_is_not_one_and_is_completed(
    tmp_path, url, name, hit, monkeypatch
):
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", {name: (hit, "raise")})
        armed.setattr(failpoints, "_hits", {})
        with pytest.raises(SlackwaterError, match=name):
            export(url, tmp_path / "db", settings=Settings(concurrency=1))
    assert not (tmp_path / "db" / "checkpoints" / "_latest").exists()
    folder = open_folder(open_store(str(tmp_path / "db")))
    if name == "export.manifest.after":  # all of it is there, and only nothing points to it yet
        assert folder is not None and verify_folder(folder, folder.checkpoints, read_data=True).sound
    else:
        assert folder is None
    with pytest.raises(InvalidInput):  # what is left is this checkpoint's
        export(url, tmp_path / "db", at="1")
    export(url, tmp_path / "db")
    export(url, tmp_path / "whole")
    assert files_in(tmp_path / "db") == files_in(tmp_path / "whole")
    assert read_as_laminar(tmp_path / "db")[1] == STATE


@pytest.mark.parametrize("last", ["*partition-2.snap", "*manifest.json", "*_latest"])
@pytest.mark.parametrize("fate", ["landed", "never"])
def test_a_write_whose_answer_is_lost_leaves_nothing_that_points_to_what_is_not_whole(tmp_path, url, last, fate):
    target = tmp_path / "db"
    faults = Faults(Fault("lost-answer", verb="put", key=last, fate=fate, times=None))
    with faults.everywhere(), pytest.raises(Unavailable):
        export(url, target)
    pointed = (target / "checkpoints" / "_latest").exists()
    assert pointed is ((last, fate) == ("*_latest", "landed"))
    assert not pointed or read_as_laminar(target)[1] == STATE
    export(url, target)
    assert read_as_laminar(target)[1] == STATE


# --- refused


def test_a_folder_that_has_anything_else_is_refused_and_stays_as_it_is(tmp_path, url):
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"notes\.txt") as caught:
        export(url, tmp_path / "db")
    assert caught.value.code == "folder.unusable" and files_in(tmp_path / "db") == {"notes.txt": b"mine"}
    export(url, tmp_path / "full", at="1")
    before = files_in(tmp_path / "full")
    with pytest.raises(InvalidInput, match="is not empty"):
        export(url, tmp_path / "full")
    assert files_in(tmp_path / "full") == before
    export(url, tmp_path / "full", at="1")
    assert files_in(tmp_path / "full") == before


@pytest.mark.parametrize("inside", ["db", "checkpoints/db"])
def test_nothing_is_exported_into_a_pipeline(tmp_path, url, inside):
    other = make_pipeline(tmp_path, 1, name="other")
    for folder in (Path(url) / inside, other / "db", other):
        with pytest.raises(InvalidInput) as caught:
            export(url, folder)
        assert caught.value.code in ("folder.unusable", "option.invalid", "store.invalid")
    assert not (Path(url) / inside).exists() and not (other / "db").exists()


def test_checkpoints_of_another_kind_are_refused_with_the_reason(tmp_path):
    import_folder(v2_folder(tmp_path / "laminar"), tmp_path / "store" / "imported")
    for url, reason in (
        (
            make_pipeline(tmp_path, 1),
            "are Spark's, and cannot be exported: their state is in files of Spark's",
        ),
        (
            tmp_path / "store" / "imported",
            "are imported, and cannot be exported: the folder that they were",
        ),
    ):
        with pytest.raises(Unsupported, match=reason) as caught:
            export(url, tmp_path / "db")
        assert caught.value.code == "export.unsupported" and not (tmp_path / "db").exists()


@pytest.mark.parametrize("names", [("a", "a/"), ("a/b", "a//b"), ("a", "a/partition-0.snap"), ("a", "/a")], ids=str)
def test_A10_names_that_lead_to_one_path_are_refused_before_anything_is_written(tmp_path, names):
    with open_pipeline(tmp_path / "store", "orders") as pipeline:
        pipeline.checkpoint(offsets={}, state={name: {0: b"x"} for name in names})
    with pytest.raises(Unsupported, match="lead to one path") as caught:
        export(tmp_path / "store" / "orders", tmp_path / "db")
    assert caught.value.code == "export.unsupported" and not (tmp_path / "db").exists()


@pytest.mark.parametrize("inside", ["", "cut", "state/db"])
def test_nothing_is_exported_into_the_local_folder_of_a_keyed_state(tmp_path, inside):
    make_keyed(tmp_path)
    local = tmp_path / "store" / "counts.wal"
    before = files_in(local)
    with pytest.raises(InvalidInput, match="own folder"):
        export(tmp_path / "store" / "counts", local / inside)
    assert files_in(local) == before


def test_what_a_killed_export_has_half_written_is_gone_when_the_next_one_is_done(tmp_path, url):
    export(url, tmp_path / "db")
    whole = files_in(tmp_path / "db")
    (snapshot, *_) = (tmp_path / "db").rglob("partition-0.snap")
    hidden = snapshot.with_name(".partition-9.snap.0123456789abcdef.tmp")
    hidden.write_bytes(b"half")
    export(url, tmp_path / "db")
    assert files_in(tmp_path / "db") == whole


def test_what_is_not_there_is_not_found(tmp_path, url):
    with pytest.raises(NotFound) as caught:
        export(tmp_path / "store" / "nothing", tmp_path / "db")
    assert caught.value.code == "pipeline.not_found"
    with pytest.raises(NotFound):
        export(url, tmp_path / "db", at="99")
    assert not (tmp_path / "db").exists()


def test_a_flipped_bit_anywhere_is_found_before_anything_is_written(tmp_path, url):
    head = head_of(url)
    paths = [Path(url) / stored.key for stored in head.objects]
    paths.append(Path(url) / "checkpoints" / head.checkpoint_id / "manifest.json")
    assert len(paths) > 2
    for path in paths:
        whole = path.read_bytes()
        flip(path)
        with pytest.raises(Corrupt):
            export(url, tmp_path / "db")
        path.write_bytes(whole)
        assert not (tmp_path / "db").exists()
    export(url, tmp_path / "db")


def test_a_flipped_bit_of_a_keyed_state_is_found_before_anything_is_written(tmp_path):
    make_keyed(tmp_path)
    url = tmp_path / "store" / "counts"
    for stored in head_of(str(url)).objects:
        whole = (url / stored.key).read_bytes()
        flip(url / stored.key)
        with pytest.raises(Corrupt):
            export(url, tmp_path / "db")
        (url / stored.key).write_bytes(whole)
        assert not (tmp_path / "db").exists()
    export(url, tmp_path / "db")


def test_a_keyed_state_is_not_exported_without_its_library(tmp_path, monkeypatch):
    make_keyed(tmp_path)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(Unsupported, match="the export of a keyed state needs the package rocksdict") as caught:
        export(tmp_path / "store" / "counts", tmp_path / "db")
    assert caught.value.code == "extra.missing" and not (tmp_path / "db").exists()


def test_a_checkpoint_that_is_retired_meanwhile_is_not_found_and_not_damaged(tmp_path, url, monkeypatch):
    pipeline = read_pipeline(url)

    def read(*arguments: Any) -> Any:
        forget(pipeline.url, "1")
        return reading(*arguments)

    reading = exporting._read_program
    monkeypatch.setattr(exporting, "_read_program", read)
    with pytest.raises(NotFound, match="retired"):
        export(url, tmp_path / "db", at="1")
    assert not (tmp_path / "db").exists()


def test_an_import_of_an_export_is_no_pipeline_of_the_program(tmp_path, url):
    export(url, tmp_path / "db")
    import_folder(tmp_path / "db", tmp_path / "store" / "again")
    with pytest.raises(Unsupported, match="imported from laminar-v2"):
        open_pipeline(tmp_path / "store", "again")
    with pytest.raises(Conflict):
        import_folder(tmp_path / "db", url)
