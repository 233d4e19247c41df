"""Folders of LaminarDB: recognised, read with findings, verified. Real stores."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from slackwater.errors import Corrupt, InvalidInput, NotFound, Unsupported
from slackwater.laminar.content import fetch, load_content
from slackwater.laminar.findings import fatal
from slackwater.laminar.folder import Folder, open_folder, resolve
from slackwater.laminar.verification import FolderVerification, findings_of, verify_folder
from slackwater.store import open_store
from tests.golden.laminar_batches import VERSION_1, VERSION_2
from tests.laminar_findings import tell
from tests.laminar_folders import AGG, IDS, JOIN, incremental_folder, v1, v1_folder, v2, v2_folder, write
from tests.pipelines import make_pipeline


def opened(root: Path) -> Folder:
    folder = open_folder(open_store(str(root)))
    assert folder is not None
    return folder


def verified(root: Path, *, read_data: bool = True) -> FolderVerification:
    folder = opened(root)
    return verify_folder(folder, folder.checkpoints, read_data=read_data)


def wrong(root: Path) -> set[str]:
    return {tell(finding) for finding in verified(root).findings if finding.severity == "fatal"}


def digest_of(root: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*")) if p.is_file()}


# --- recognised


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("make", [v1_folder, v2_folder])
def test_a_folder_is_recognised_from_above_and_from_inside(tmp_path, make, inner):
    root = make(tmp_path)
    folder = opened(root / "checkpoints" if inner else root)
    assert len(folder.checkpoints) > 1 and folder.latest == folder.newest.checkpoint_id
    assert all(checkpoint.sound for checkpoint in folder.checkpoints)


def test_what_is_none_of_laminars_is_not_taken_for_one(tmp_path):
    assert open_folder(open_store(str(tmp_path / "empty"))) is None
    make_pipeline(tmp_path, 1)
    assert open_folder(open_store(str(tmp_path / "store"))) is None
    assert open_folder(open_store(str(tmp_path / "store" / "orders"))) is None
    shutil.rmtree(tmp_path / "store" / "orders" / "log")
    make_pipeline(tmp_path, 3, name="cut")
    shutil.rmtree(tmp_path / "store" / "cut" / "log")
    min((tmp_path / "store" / "cut").rglob("manifest.json")).write_bytes(b"{")
    assert open_folder(open_store(str(tmp_path / "store" / "cut"))) is None
    assert open_folder(open_store(str(tmp_path / "store" / "orders"))) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "a web page"}', '{"version": 3}', '{"version": "1"}'])
def test_a_manifest_of_something_else_is_not_taken_for_one(tmp_path, text):
    for name in ("manifest.json", "metadata.json"):
        write(tmp_path / name, {name: text})
        assert open_folder(open_store(str(tmp_path / name))) is None


def test_one_checkpoint_alone_is_a_folder_too(tmp_path):
    alone = opened(v1_folder(tmp_path / "v1") / "checkpoints" / "checkpoint_000002")
    assert [c.checkpoint_id for c in alone.checkpoints] == ["2"] and alone.newest.sound
    alone = opened(v2_folder(tmp_path / "v2") / "checkpoints" / IDS[0])
    assert [c.checkpoint_id for c in alone.checkpoints] == [IDS[0]] and alone.newest.sound


def test_the_object_stores_layout_of_version_1_is_read(tmp_path):
    root = write(
        tmp_path,
        {
            "manifests/manifest-000002.json": v1(),
            "manifests/latest.json": '{"checkpoint_id": 2}',
            "checkpoints/state-000002.bin": JOIN,
        },
    )
    folder = opened(root)
    assert folder.latest == "2" and folder.newest.sound
    assert verified(root).sound


def test_an_incremental_folder_is_shown_and_not_restored(tmp_path):
    folder = opened(incremental_folder(tmp_path))
    assert [(c.kind, c.checkpoint_id, c.epoch, c.parent_id) for c in folder.checkpoints] == [
        ("incremental", "1", 10, None),
        ("incremental", "2", 11, "1"),
    ]
    assert [(tell(f), f.where) for f in folder.findings] == [("partial", "checkpoint_0000000000000003")]
    with pytest.raises(Corrupt) as caught:
        load_content(folder, folder.newest)
    assert tell(caught.value) == "refused"


def test_batches_are_found_and_read(tmp_path):
    root = write(tmp_path, {"checkpoints/batch-000007.lz4": VERSION_2, "checkpoints/batch-1000000.lz4": VERSION_1})
    assert sorted(opened(root).batches.values()) == [7, 1_000_000]
    result = verified(root)
    assert result.sound and [tell(f) for f in result.findings] == ["no checksum"]
    (root / "checkpoints" / "batch-000007.lz4").write_bytes(VERSION_2[:-1])
    assert wrong(root) == {"unreadable"}
    with pytest.raises(NotFound):
        resolve(opened(root), "latest")


# --- read, and only read


@pytest.mark.parametrize("defective", [False, True])
def test_A1_A2_A12_both_path_forms_are_read_whole(tmp_path, defective):
    root = v2_folder(tmp_path, defective=defective)
    before = digest_of(root)
    folder = opened(root)
    assert [c.checkpoint_id for c in folder.checkpoints] == IDS[:3]
    result = verified(root)
    assert result.sound and result.objects == 6 and result.read_bytes == sum(map(len, AGG)) + len(AGG[2]) + 7
    assert ("defective paths" in {tell(f) for f in folder.findings}) is defective
    assert digest_of(root) == before


@pytest.mark.parametrize("base", ["", "checkpoints/"])
def test_A12_a_folder_is_found_wherever_its_prefix_ends(tmp_path, base):
    assert verified(v2_folder(tmp_path, base=base, defective=True)).sound


def test_a_folder_in_an_object_store_reads_the_same(tmp_path):
    root, store = v2_folder(tmp_path, defective=True), open_store("memory:")
    for path in root.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path.read_bytes())
    folder = open_folder(store)
    assert folder is not None and [c.checkpoint_id for c in folder.checkpoints] == IDS[:3]
    assert verify_folder(folder, folder.checkpoints, read_data=True).sound


def test_what_a_checkpoint_holds_is_fetched_verified(tmp_path):
    folder = opened(v2_folder(tmp_path))
    checkpoint = resolve(folder, IDS[1])
    content = load_content(folder, checkpoint)
    assert [fetch(folder, p) for p in content.pieces] == [AGG[0], b"a delta", AGG[2]]
    (tmp_path / "checkpoints" / IDS[0] / "operators" / "agg" / "partition-0.snap").write_bytes(bytes(len(AGG[0])) + b"")
    (tmp_path / "checkpoints" / IDS[1] / "operators" / "agg" / "partition-1.snap").write_bytes(b"x" * len(AGG[2]))
    with pytest.raises(Corrupt) as caught:
        [fetch(folder, p) for p in content.pieces]
    assert tell(caught.value) == "digest mismatch"


@pytest.mark.parametrize(("ref", "found"), [("latest", 2), ("3", 2), ("2", 1), (IDS[0], 0), (IDS[1][:36], 1)], ids=str)
def test_a_checkpoint_is_named_by_epoch_id_or_latest(tmp_path, ref, found):
    assert resolve(opened(v2_folder(tmp_path)), ref).checkpoint_id == IDS[found]


def test_a_reference_to_nothing_or_to_several_is_an_error(tmp_path):
    folder = opened(v2_folder(tmp_path))
    with pytest.raises(NotFound) as caught:
        resolve(folder, "99")
    assert caught.value.code == "checkpoint.not_found"
    with pytest.raises(InvalidInput) as ambiguous:
        resolve(folder, IDS[0][:8])
    assert ambiguous.value.code == "ref.invalid" and "checkpoints" in str(ambiguous.value)


# --- damaged


@pytest.mark.parametrize("defective", [False, True])
def test_A7_B7_a_flipped_missing_or_cut_artifact_is_found(tmp_path, defective):
    root = v2_folder(tmp_path, defective=defective)
    victim = min(root.rglob("partition-0.delta"))
    whole = victim.read_bytes()
    victim.write_bytes(b"A" + whole[1:])
    assert wrong(root) == {"digest mismatch"}
    victim.write_bytes(whole[:-1])
    assert wrong(root) == {"object size"}
    victim.unlink()
    assert wrong(root) == {"object missing"}


def test_C4_C5_a_flipped_byte_of_the_sidecar_is_found(tmp_path):
    root = v1_folder(tmp_path)
    victim = root / "checkpoints" / "checkpoint_000002" / "state.bin"
    victim.write_bytes(JOIN[:-1] + b"!")
    assert wrong(root) == {"digest mismatch"}
    folder = opened(root)
    with pytest.raises(Corrupt) as caught:
        load_content(folder, folder.newest)
    assert tell(caught.value) == "refused"
    victim.unlink()
    assert wrong(root) == {"state missing"}


@pytest.mark.parametrize(
    "pointer", [b"", b"\xff\xfe", b"0192d3f0-7b7c-7000-8000-0000000000ff", b"latest", b"{}" * 5000]
)
def test_B8_F1_a_broken_pointer_is_told_and_the_newest_is_found_without_it(tmp_path, pointer):
    root = v2_folder(tmp_path)
    (root / "checkpoints" / "_latest").write_bytes(pointer)
    folder = opened(root)
    assert folder.newest.checkpoint_id == IDS[2]
    assert [(tell(f), f.severity) for f in folder.findings] == [("latest", "warning")]


def test_B8_a_pointer_with_a_newline_is_read(tmp_path):
    root = v2_folder(tmp_path)
    (root / "checkpoints" / "_latest").write_text(f"{IDS[2]}\n")
    assert opened(root).findings == [] and opened(root).latest == IDS[2]
    (root / "checkpoints" / "_latest").write_text(IDS[0])
    assert [f.severity for f in opened(root).findings] == ["note"]


def test_A9_the_greatest_epoch_is_the_newest_whatever_the_ids_say(tmp_path):
    root = v2_folder(tmp_path)
    older = "0192d3f0-7b7c-7000-8000-000000000000"
    write(root, {f"checkpoints/{older}/manifest.json": v2(older, 9, [])})
    assert opened(root).newest.checkpoint_id == older


def test_B12_a_checkpoint_in_both_forms_is_listed_once_and_two_that_differ_are_told(tmp_path):
    root = v2_folder(tmp_path)
    manifest = root / "checkpoints" / IDS[2] / "manifest.json"
    beside = root / "checkpoints" / f"{IDS[2]}manifest.json"
    shutil.copy(manifest, beside)
    assert len(opened(root).checkpoints) == 3 and verified(root).sound
    beside.write_bytes(manifest.read_bytes() + b"\n")
    assert wrong(root) == {"two manifests"}


def test_B12_what_is_skipped_is_told(tmp_path):
    root = v2_folder(tmp_path)
    write(root, {"checkpoints/not-an-idmanifest.json": "{}"})
    assert [(tell(f), f.where) for f in opened(root).findings] == [
        ("foreign key", "checkpoints/not-an-idmanifest.json")
    ]


def test_B10_a_manifest_under_another_name_is_found(tmp_path):
    root = v2_folder(tmp_path)
    shutil.copytree(root / "checkpoints" / IDS[2], root / "checkpoints" / IDS[5])
    assert "wrong id" in wrong(root)


def test_a_manifest_that_does_not_decode_is_told_and_hides_no_other(tmp_path):
    root = v2_folder(tmp_path)
    (root / "checkpoints" / IDS[1] / "manifest.json").write_bytes(b"")
    folder = opened(root)
    assert [c.checkpoint_id for c in folder.checkpoints if c.sound] == [IDS[0], IDS[2]]
    assert "malformed" in {tell(f) for f in findings_of(folder, folder.checkpoints)}


def test_A4_a_chain_whose_base_is_gone_or_not_sound_is_not_read(tmp_path):
    root = v2_folder(tmp_path)
    base = root / "checkpoints" / IDS[0]
    (base / "operators" / "agg" / "partition-0.snap").unlink()
    folder = opened(root)
    with pytest.raises(Corrupt, match=IDS[0]):
        load_content(folder, resolve(folder, "2"))
    shutil.rmtree(base)
    folder = opened(root)
    with pytest.raises(Corrupt) as caught:
        load_content(folder, resolve(folder, "2"))
    assert tell(caught.value) == "chain broken"
    assert load_content(folder, resolve(folder, "3")).pieces


def test_A10_two_operators_on_one_object_are_told(tmp_path):
    root = v2_folder(tmp_path)
    document = v2(IDS[4], 9, [])
    entry = {"partition_id": 0, "is_delta": False, "size_bytes": 1, "sha256": "ab" * 32}
    document["operators"] = {
        name: {"partitions": [{**entry, "path": f"operators/{name}/partition-0.snap"}], "total_bytes": 1}
        for name in ("a", "a/")
    }
    write(
        root,
        {
            f"checkpoints/{IDS[4]}/manifest.json": {**document, "total_size_bytes": 2},
            f"checkpoints/{IDS[4]}/operators/a/partition-0.snap": b"x",
        },
    )
    assert "object shared" in {tell(f) for f in fatal(opened(root).newest.findings)}


def test_a_newer_version_is_unsupported_and_not_misread(tmp_path):
    write(tmp_path, {"checkpoints/checkpoint_000001/manifest.json": {"version": 9}})
    folder = opened(tmp_path)
    assert [tell(f) for f in folder.newest.findings] == ["unknown version"]
    with pytest.raises((Corrupt, Unsupported)):
        load_content(folder, folder.newest)
