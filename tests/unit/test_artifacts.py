"""Artifacts to a real store and back: nothing lost, nothing unverified."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import msgspec
import pytest

from slackwater.errors import Corrupt, SlackwaterError, Unavailable
from slackwater.formats import manifest as manifests
from slackwater.formats.keys import artifact_key, batch_key, parse_key
from slackwater.formats.manifest import Manifest, Object
from slackwater.parallel import in_parallel
from slackwater.protocol import artifacts
from slackwater.protocol.artifacts import Holdings, Stored, get_artifacts, put_artifacts
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.protocol.placement import plan_placement
from slackwater.settings import Settings
from slackwater.store import Store, open_store
from tests.golden.lcb1 import Item, write
from tests.golden.samples import HASH, IDS, UID, sha256

# Files beside the state inline, deltas in batches, a partition of 2,000 bytes or more as an object.
MIXED = Settings(inline_max_bytes=64, object_min_bytes=2000, inline_budget_bytes=256)


def content(path: str, size: int) -> bytes:
    return (hashlib.sha256(path.encode()).digest() * (size // 32 + 1))[:size]


def cut_of(sizes: dict[int, list[int]], *, version: int = 1, beside: dict[str, bytes] | None = None) -> Cut:
    """A cut whose partition p has one immutable file for each size, the first a snapshot."""

    def files(partition: int) -> list[CutFile]:
        paths = [f"state/0/{partition}/{n + 1}_u.{'delta' if n else 'snap'}" for n in range(len(sizes[partition]))]
        return [CutFile(path, content(path, size), size) for path, size in zip(paths, sizes[partition], strict=True)]

    partitions = [
        CutPartition(
            partition=p, path=f"state/0/{p}", version=version, unique_id="u", snapshot=files(p)[:1], deltas=files(p)[1:]
        )
        for p in sizes
    ]
    operator = CutOperator(name="0-save", operator_id=0, operator_name="save", store="default", partitions=partitions)
    others = beside if beside is not None else {f"offsets/{version}": b"offsets", "metadata": b"{}"}
    return Cut(
        micro_batch=version,
        watermark_ms=0,
        sources={},
        operators=[operator],
        files=[CutFile(path, data, len(data)) for path, data in others.items()],
    )


def manifest_of(stored: Stored, cut: Cut, number: int) -> Manifest:
    """What the checkpointer makes of it, to the store and back."""
    document = Manifest(
        version=3,
        checkpoint_id=IDS[number],
        epoch=number,
        parent_id=None,
        pipeline="p",
        uid=UID,
        created_at_ms=1,
        micro_batch=cut.micro_batch,
        watermark_ms=0,
        pipeline_hash=HASH,
        query=None,
        rollback=None,
        origin=None,
        source_names=[],
        sink_names=[],
        source_offsets={},
        source_watermarks={},
        table_offsets={},
        table_store_path=None,
        sinks={},
        sink_epochs={},
        vnode_count=None,
        operators=stored.operators,
        files=stored.files,
        objects=stored.objects,
        total_size_bytes=stored.total_size_bytes,
    )
    data = manifests.encode(document)
    return manifests.decode(data, sha256=sha256(data), checkpoint_id=IDS[number])


def put(
    store: Store, cut: Cut, number: int = 1, parent: Holdings | None = None, settings: Settings = MIXED
) -> Manifest:
    return manifest_of(put_artifacts(store, cut, IDS[number], parent or {}, settings), cut, number)


def get(store: Store, manifest: Manifest, settings: Settings = MIXED) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    get_artifacts(store, manifest, settings, lambda path, parts: files.update({path: b"".join(parts)}))
    return files


def all_bytes(cut: Cut) -> dict[str, bytes]:
    files = [*cut.files, *(f for op in cut.operators for p in op.partitions for f in p.files)]
    return {file.path: file.source for file in files if isinstance(file.source, bytes)}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_cut_comes_back_whole_from_inline_batch_and_object(concurrency):
    store, settings = open_store("memory:"), msgspec.structs.replace(MIXED, concurrency=concurrency)
    cut = cut_of({0: [300, 40], 1: [5000, 100, 0], 2: [10]})
    manifest = put(store, cut, settings=settings)
    assert get(store, manifest, settings) == all_bytes(cut)
    assert {entry.kind for entry in manifest.objects} == {"batch", "object"}
    assert [file.path for file in manifest.files if file.inline is not None] == ["offsets/1", "metadata"]
    assert {listed.key for listed in store.list("checkpoints/")} == {entry.key for entry in manifest.objects}


@pytest.mark.parametrize("concurrency", [1, 2, 8])
@pytest.mark.parametrize("size", [20, 3000])
def test_B1_every_file_that_went_in_is_in_the_manifest_or_its_batches(concurrency, size):
    store = open_store("memory:")
    settings = msgspec.structs.replace(MIXED, concurrency=concurrency)
    cut = cut_of({p: [size, 7] for p in range(300)})
    stored = put_artifacts(store, cut, IDS[1], {}, settings)
    named = {file.path for file in manifests.all_files(manifest_of(stored, cut, 1))}
    assert named | stored.holdings.keys() == all_bytes(cut).keys()
    assert get(store, manifest_of(stored, cut, 1), settings) == all_bytes(cut)
    assert len(stored.objects) == (1 if size == 20 else 300)


def test_B1_the_results_of_all_jobs_come_back_in_order():
    for concurrency in (1, 2, 8, 64):
        assert in_parallel([partial(abs, n) for n in range(300)], concurrency) == list(range(300))
    with pytest.raises(SlackwaterError):
        in_parallel([lambda: 1, _fail, lambda: 3], 2)


def test_a_file_that_was_not_stored_is_never_left_out_in_silence(monkeypatch):
    real = plan_placement

    def forgetful(files, settings):
        plan = real(files, settings)
        return msgspec.structs.replace(plan, batches=[paths[1:] for paths in plan.batches])

    monkeypatch.setattr(artifacts, "plan_placement", forgetful)
    with pytest.raises(Corrupt) as caught:
        put(open_store("memory:"), cut_of({0: [300], 1: [300]}))
    assert caught.value.code == "capture.damaged" and "were not stored" in str(caught.value)


def test_the_deltas_of_200_partitions_cost_one_put():
    store = open_store("memory:")
    full = cut_of({p: [400] for p in range(200)})
    parent = put_artifacts(store, full, IDS[1], {}, Settings()).holdings
    before = store.requests.snapshot()
    stored = put_artifacts(store, cut_of({p: [400, 300] for p in range(200)}, version=2), IDS[2], parent, Settings())
    assert (store.requests.snapshot() - before).puts == 1
    assert [entry.key for entry in stored.objects] == [batch_key(IDS[1], 0), batch_key(IDS[2], 0)]
    assert stored.new_bytes == stored.objects[1].size_bytes
    assert (stored.new_files, stored.new_file_bytes) == (200, 200 * 300)


def test_what_the_parent_holds_is_referenced_and_not_stored_again():
    store = open_store("memory:")
    first, second = cut_of({0: [300], 1: [5000]}), cut_of({0: [300, 100], 1: [5000]}, version=2)
    holdings = put_artifacts(store, first, IDS[1], {}, MIXED).holdings
    manifest = put(store, second, 2, holdings)
    old, new = batch_key(IDS[1], 0), batch_key(IDS[2], 0)
    assert [entry.key for entry in manifest.objects] == [old, artifact_key(IDS[1], "0-save", 1, "snap"), new]
    assert get(store, manifest) == all_bytes(second)


def test_what_was_restored_can_be_referenced_by_the_next_checkpoint():
    store = open_store("memory:")
    first = put(store, cut_of({0: [300], 1: [5000]}))
    holdings = get_artifacts(store, first, MIXED, lambda path, parts: None)
    before = store.requests.snapshot()
    second = put(store, cut_of({0: [300], 1: [5000]}, version=2), 2, holdings)
    assert (store.requests.snapshot() - before).puts == 0
    assert second.objects == first.objects


def test_a_batch_gives_back_a_superset_below_the_folders_and_nothing_beside_them():
    store = open_store("memory:")
    settings = msgspec.structs.replace(MIXED, inline_budget_bytes=0)
    first = cut_of({0: [300, 40]})
    holdings = put_artifacts(store, first, IDS[1], {}, settings).holdings
    snapshot_only = cut_of({0: [300]}, version=2)
    files = get(store, put(store, snapshot_only, 2, holdings, settings))
    extra = {"state/0/0/2_u.delta": all_bytes(first)["state/0/0/2_u.delta"]}
    # Not offsets/1, which is in the same batch and lies below no partition's folder.
    assert files == {**all_bytes(snapshot_only), **extra}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_A7_B7_a_flipped_byte_anywhere_in_any_object_is_refused(concurrency):
    store, settings = open_store("memory:"), msgspec.structs.replace(MIXED, concurrency=concurrency)
    manifest = put(store, cut_of({0: [300, 40], 1: [2500, 100], 2: [9]}))
    assert len(manifest.objects) == 2
    for entry in manifest.objects:
        good = store.get(entry.key)
        for at in range(0, len(good), 7):
            store.put(entry.key, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(Corrupt) as caught:
                get(store, manifest, settings)
            assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)
            assert entry.key in str(caught.value)
        store.put(entry.key, good)
    get(store, manifest, settings)


def test_an_object_cut_short_or_grown_is_refused():
    store = open_store("memory:")
    manifest = put(store, cut_of({0: [300], 1: [2500]}))
    for entry in manifest.objects:
        good = store.get(entry.key)
        store.put(entry.key, good[:-1])
        with pytest.raises(Corrupt) as caught:
            get(store, manifest)
        assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)
        store.put(entry.key, good)
    store.put(manifest.objects[0].key, store.get(manifest.objects[0].key) + b"\0")
    with pytest.raises(Corrupt) as caught:
        get(store, manifest)
    assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)


def test_a_missing_object_is_damage():
    store = open_store("memory:")
    manifest = put(store, cut_of({0: [300]}))
    store.delete([manifest.objects[0].key])
    with pytest.raises(Corrupt) as caught:
        get(store, manifest)
    assert caught.value.details["key"] == manifest.objects[0].key


def with_batch(store: Store, manifest: Manifest, data: bytes) -> Manifest:
    """Put another batch in the place of the manifest's own, digest and all."""
    key = manifest.objects[0].key
    store.put(key, data)
    return msgspec.structs.replace(
        manifest, objects=[Object(key=key, kind="batch", sha256=sha256(data), size_bytes=len(data))]
    )


@pytest.mark.parametrize("path", [b"../x", b"/etc/passwd", b"state/0/0/../../../x", b"state/0/0//x", b"a\\b"])
def test_B11_an_entry_of_a_batch_with_a_hostile_path_is_refused(path):
    store = open_store("memory:")
    manifest = put(store, cut_of({0: [300]}, beside={}))
    written: dict[str, bytes] = {}
    hostile = with_batch(store, manifest, write([Item(path, b"evil")]))
    with pytest.raises(Corrupt) as caught:
        get_artifacts(store, hostile, MIXED, lambda path, parts: written.update({path: b"".join(parts)}))
    assert (caught.value.code, written) == ("manifest.invalid", {})
    assert "is not a plain relative path" in caught.value.message


def test_a_batch_whose_entry_lies_about_its_digest_is_refused():
    store = open_store("memory:")
    manifest = put(store, cut_of({0: [300]}, beside={}))
    liar = with_batch(store, manifest, write([Item(b"state/0/0/1_u.snap", b"evil", sha256=bytes(32))]))
    with pytest.raises(Corrupt) as caught:
        get(store, liar)
    assert caught.value.code == "object.damaged" and "the batch" in str(caught.value)


def test_a_named_file_that_its_batch_does_not_hold_is_refused():
    store, settings = open_store("memory:"), msgspec.structs.replace(MIXED, inline_budget_bytes=0)
    manifest = put(store, cut_of({}, beside={"offsets/1": b"x", "metadata": b"y"}), settings=settings)
    poorer = with_batch(store, manifest, write([Item(b"metadata", b"y")]))
    with pytest.raises(Corrupt) as caught:
        get(store, poorer)
    assert caught.value.code == "object.damaged" and "is not in the batch" in str(caught.value)


def test_a_file_that_changes_its_size_while_it_is_captured_is_refused(tmp_path: Path):
    path = tmp_path / "offsets"
    path.write_bytes(b"seven by")
    cut = msgspec.structs.replace(cut_of({0: [10]}), files=[CutFile("offsets/1", path, 7)])
    store = open_store("memory:")
    with pytest.raises(Corrupt) as caught:
        put(store, cut)
    assert caught.value.code == "capture.damaged" and "has changed while it was captured" in str(caught.value)
    path.write_bytes(b"seven b")
    assert get(store, put(store, cut))["offsets/1"] == b"seven b"
    path.unlink()
    with pytest.raises(Unavailable) as gone:
        put(store, cut)
    assert gone.value.code == "folder.unavailable" and "has gone from the working directory" in str(gone.value)


def test_D1_two_batches_of_one_checkpoint_have_names_of_their_own():
    store, settings = open_store("memory:"), Settings(batch_target_bytes=64 * 1024)
    cut = cut_of({p: [40_000] for p in range(5)})
    manifest = put(store, cut, settings=settings)
    assert [parse_key(entry.key) for entry in manifest.objects] == [parse_key(batch_key(IDS[1], n)) for n in range(5)]
    assert get(store, manifest, settings) == all_bytes(cut)


def test_the_same_cut_in_a_folder_on_disk(tmp_path: Path):
    store = open_store(str(tmp_path / "store"))
    cut = cut_of({0: [300, 40], 1: [5000, 100]})
    assert get(store, put(store, cut)) == all_bytes(cut)


def _fail() -> int:
    raise Corrupt("it broke", code="test.broke")
