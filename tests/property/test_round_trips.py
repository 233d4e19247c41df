"""What is formatted parses back, what is encoded decodes back, and no two things look the same."""

from __future__ import annotations

import contextlib
import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import Corrupt, InvalidInput
from slackwater.formats import batch, manifest
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats.keys import (
    ArtifactKey,
    BatchKey,
    ManifestKey,
    RecordKey,
    artifact_key,
    batch_key,
    check_path,
    format_name,
    manifest_key,
    parse_key,
    parse_name,
    record_key,
)
from slackwater.formats.query import Query, QueryOperator
from slackwater.protocol.placement import NewFile, plan_placement
from slackwater.settings import Settings
from slackwater.store.verbs import check_key
from tests.golden.samples import IDS, UID, golden_manifest, golden_records, golden_rollback, settlement, sha256

IDENTIFIERS = st.uuids(version=4).map(lambda uuid: f"{str(uuid)[:14]}7{str(uuid)[15:]}")
COUNTS = st.integers(0, 2**53 - 1)


@given(st.text(st.characters()) | st.text(alphabet="a/.%~2fF#\\ ", max_size=8))
def test_a_name_comes_back_or_is_refused(name):
    try:
        component = format_name(name)
    except InvalidInput as error:
        assert error.code == "name.invalid"
        return
    assert parse_name(component) == name
    assert 0 < len(component.encode()) == len(component) <= 200
    assert component not in (".", "..") and not set(component) & set("/\\~#?* \n")


@given(st.text(alphabet="ab/.%25F2f~", min_size=1, max_size=6), st.text(alphabet="ab/.%25F2f~", min_size=1, max_size=6))
def test_A10_two_names_never_share_a_component(one, other):
    with contextlib.suppress(InvalidInput):
        assert (format_name(one) == format_name(other)) == (one == other)


@given(IDENTIFIERS, st.integers(0, 10**20 - 1), st.text(min_size=1, max_size=20), st.integers(0, 10**6))
def test_keys_come_back(checkpoint_id, number, operator, partition):
    assert parse_key(record_key(number)) == RecordKey(number)
    assert parse_key(manifest_key(checkpoint_id)) == ManifestKey(checkpoint_id)
    assert parse_key(batch_key(checkpoint_id, number)) == BatchKey(checkpoint_id, number)
    try:
        key = artifact_key(checkpoint_id, operator, partition, "delta")
    except InvalidInput:
        return
    assert parse_key(key) == ArtifactKey(checkpoint_id, operator, partition, "delta")
    assert len(key.encode()) <= 1024


@given(st.text(alphabet="ab./%\\\n", max_size=12))
def test_a_path_that_passes_is_a_key_below_the_root(path):
    try:
        check_path(path)
    except Corrupt:
        return
    assert check_key(path) == path


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), st.binary(max_size=200), min_size=1)
)
def test_a_batch_comes_back_whole_and_entry_by_entry(entries):
    data = batch.encode(entries)[0]
    assert batch.decode(data) == entries
    assert batch.encode(batch.decode(data))[0] == data
    for key, entry in batch.decode_index(data).items():
        stored = data[entry.offset : entry.offset + entry.stored_bytes]
        assert batch.decode_entry(entry, stored) == entries[key]
        assert entry.sha256 == sha256(entries[key])


CHANGES = st.one_of(
    st.builds(
        changes.Rollback,
        generation=COUNTS,
        epoch=COUNTS,
        checkpoint_id=IDENTIFIERS,
        manifest_sha256=st.just(sha256(b"")),
        manifest_size_bytes=COUNTS,
        parent_id=st.none() | IDENTIFIERS,
        to_epoch=COUNTS,
    ),
    st.builds(changes.Claim, uid=st.just(UID), driver=st.text(st.characters(codec="utf-8"), max_size=200)),
    st.builds(changes.Retire, epochs=st.lists(COUNTS)),
    st.builds(changes.Deleted, epochs=st.lists(COUNTS)),
    st.builds(changes.Label, label=st.text(st.characters(codec="utf-8"), min_size=1, max_size=200), epoch=COUNTS),
    st.builds(
        changes.Release, generation=COUNTS, settled=st.none() | st.builds(settlement, COUNTS), deleted=st.lists(COUNTS)
    ),
)


@given(CHANGES, COUNTS, COUNTS)
def test_a_record_comes_back(change, number, at_ms):
    good = golden_records()["claim"]
    state = msgspec.structs.replace(good.state, at_ms=at_ms, generation=number)
    record = msgspec.structs.replace(good, number=number, change=change, state=state)
    assert records.decode(records.encode(record), number=number) == record


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=200),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9)),
    COUNTS,
)
def test_a_manifest_comes_back_or_is_refused_when_it_is_written(pipeline, offsets, micro_batch):
    good = golden_manifest()
    position = msgspec.structs.replace(good.source_offsets["0"], offsets=offsets)
    changed = msgspec.structs.replace(good, pipeline=pipeline, source_offsets={"0": position}, micro_batch=micro_batch)
    try:
        data = manifest.encode(changed)
    except InvalidInput as error:
        assert error.code == "checkpoint.unwritable"
        return
    assert manifest.decode(data, sha256=sha256(data), checkpoint_id=IDS[2]) == changed


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
QUERIES = st.builds(
    Query,
    output_mode=TEXT,
    sources=st.lists(TEXT, max_size=3),
    operators=st.lists(
        st.builds(QueryOperator, name=TEXT, keys=st.lists(TEXT, max_size=2), values=st.lists(TEXT, max_size=2)),
        max_size=3,
    ),
    settings=st.dictionaries(TEXT, TEXT, max_size=3),
)
ROLLBACKS = st.builds(manifest.RolledBack, to_epoch=COUNTS, to_id=IDENTIFIERS, keep=st.lists(TEXT, max_size=3))


@given(st.none() | QUERIES, st.none() | ROLLBACKS, st.integers(0, 10))
def test_what_a_query_was_and_where_it_was_rolled_back_to_come_back(query, rollback, epoch):
    changed = msgspec.structs.replace(golden_rollback(), query=query, rollback=rollback, epoch=epoch)
    try:
        data = manifest.encode(changed)
    except Corrupt as error:
        assert error.code == "manifest.invalid" and "the manifest of" in str(error) and rollback.to_epoch >= epoch
        return
    assert rollback is None or rollback.to_epoch < epoch
    assert manifest.decode(data, sha256=sha256(data), checkpoint_id=changed.checkpoint_id) == changed


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=6), st.text(st.characters(codec="utf-8"), max_size=6)
    )
)
def test_A14_the_bytes_are_the_canonical_json_of_the_specification(offsets):
    good = golden_manifest()
    position = msgspec.structs.replace(good.source_offsets["0"], offsets=offsets)
    data = manifest.encode(msgspec.structs.replace(good, source_offsets={"0": position}))
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


FILES = st.lists(
    st.tuples(st.sampled_from([None, "p0", "p1", "p2"]), st.integers(0, 5000) | st.integers(0, 3 * 2**20)), max_size=40
).map(lambda rows: [NewFile(f"f{n}", size, group) for n, (group, size) in enumerate(rows)])
SETTINGS = st.builds(
    Settings,
    inline_max_bytes=st.sampled_from([0, 100, 4096]),
    inline_budget_bytes=st.sampled_from([0, 1000, 2**16]),
    object_min_bytes=st.sampled_from([1, 2000, 2**20]),
    batch_target_bytes=st.sampled_from([2**16, 2**23]),
)


@given(FILES, SETTINGS)
def test_B1_every_new_file_has_exactly_one_place(files, settings):
    plan = plan_placement(files, settings)
    places = [plan.inline, *plan.batches, *plan.objects.values()]
    assert sorted(path for paths in places for path in paths) == sorted(file.path for file in files)
    sizes = {file.path: file.size_bytes for file in files}
    assert sum(4 * -(-sizes[path] // 3) for path in plan.inline) <= settings.inline_budget_bytes
    assert all(paths for paths in plan.batches)
    for paths in plan.batches:
        assert sum(sizes[path] for path in paths[:-1]) < settings.batch_target_bytes or len(paths) == 1
    groups = {file.path: file.group for file in files}
    assert all({groups[path] for path in paths} == {group} for group, paths in plan.objects.items())
