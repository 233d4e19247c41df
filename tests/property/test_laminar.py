"""LaminarDB's decoders under any document and any bytes: round trips, typed errors, bounded work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import SlackwaterError
from slackwater.laminar import incremental, lcb1, manifest_v1, manifest_v2
from slackwater.laminar.incremental import IncrementalCheckpointMetadata
from slackwater.laminar.layout import below_checkpoint, object_key, survey
from slackwater.laminar.manifest_v1 import CheckpointManifest, ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from slackwater.laminar.manifest_v2 import (
    CheckpointManifestV2,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    SourceOffsetEntry,
)
from tests.laminar_findings import tell
from tests.laminar_folders import IDS, v1, v2

REFUSED = {"malformed", "unknown version", "batch damaged", "batch unchecked"}
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
U64, U32, U16 = (st.integers(0, 2**bits - 1) for bits in (64, 32, 16))
I64 = st.integers(-(2**63), 2**63 - 1)
PAIRS = st.dictionaries(TEXT, TEXT, max_size=3)
CONNECTORS = st.dictionaries(TEXT, st.builds(ConnectorCheckpoint, offsets=PAIRS, epoch=U64, metadata=PAIRS), max_size=3)
STATUSES = st.builds(SinkCommitStatus, status=st.sampled_from(["Pending", "Committed"])) | TEXT.map(
    lambda text: SinkCommitStatus(status="Failed", error=text)
)
STATES = st.builds(
    OperatorCheckpoint, state_b64=st.none() | TEXT, external=st.booleans(), external_offset=U64, external_length=U64
)
V1 = st.builds(
    CheckpointManifest,
    version=st.just(1),
    checkpoint_id=U64,
    epoch=U64,
    timestamp_ms=U64,
    source_offsets=CONNECTORS,
    sink_epochs=st.dictionaries(TEXT, U64, max_size=3),
    sink_commit_statuses=st.dictionaries(TEXT, STATUSES, max_size=3),
    table_offsets=CONNECTORS,
    operator_states=st.dictionaries(TEXT, STATES, max_size=3),
    table_store_checkpoint_path=st.none() | TEXT,
    watermark=st.none() | I64,
    source_watermarks=st.dictionaries(TEXT, I64, max_size=3),
    source_names=st.lists(TEXT, max_size=3),
    sink_names=st.lists(TEXT, max_size=3),
    pipeline_hash=st.none() | U64,
    vnode_count=U16,
    state_checksum=st.none() | TEXT,
)
PARTITIONS = st.builds(
    PartitionSnapshotEntry,
    partition_id=U32,
    is_delta=st.booleans(),
    path=TEXT,
    size_bytes=U64,
    sha256=st.none() | TEXT,
)
V2 = st.builds(
    CheckpointManifestV2,
    version=st.just(2),
    checkpoint_id=st.uuids().map(str),
    epoch=U64,
    timestamp_ms=U64,
    operators=st.dictionaries(
        TEXT,
        st.builds(OperatorSnapshotEntry, partitions=st.lists(PARTITIONS, max_size=3), total_bytes=U64),
        max_size=3,
    ),
    source_offsets=st.dictionaries(
        TEXT, st.builds(SourceOffsetEntry, source_type=TEXT, offsets=PAIRS, epoch=U64), max_size=3
    ),
    parent_id=st.none() | st.uuids().map(str),
    watermark=st.none() | I64,
    total_size_bytes=U64,
)
METADATA = st.builds(
    IncrementalCheckpointMetadata,
    id=U64,
    epoch=U64,
    timestamp=U64,
    wal_position=U64,
    source_offsets=st.dictionaries(TEXT, U64, max_size=3),
    watermark=st.none() | I64,
    size_bytes=U64,
    key_count=U64,
    is_incremental=st.booleans(),
    parent_id=st.none() | U64,
    sst_files=st.lists(TEXT, max_size=3),
)
DECODERS: list[Any] = [manifest_v1.decode, manifest_v2.decode, incremental.decode, lcb1.decode]


@given(V1)
def test_a_manifest_of_version_1_comes_back(manifest):
    data = manifest_v1.encode(manifest)
    restored, findings = manifest_v1.decode(data)
    assert restored == manifest and manifest_v1.encode(restored) == data
    assert "missing field" not in {tell(finding) for finding in findings}


@given(V2)
def test_a_manifest_of_version_2_comes_back(manifest):
    data = manifest_v2.encode(manifest)
    assert manifest_v2.decode(data)[0] == manifest
    assert manifest_v2.encode(manifest_v2.decode(data)[0]) == data


@given(METADATA)
def test_metadata_of_an_incremental_checkpoint_comes_back(metadata):
    assert incremental.decode(incremental.encode(metadata))[0] == metadata


@given(st.lists(st.tuples(TEXT, st.binary(max_size=200)), max_size=20))
def test_a_batch_of_version_2_comes_back(entries):
    data = lcb1.encode(entries)
    assert lcb1.decode(data)[0].entries == entries
    assert lcb1.encode(entries) == data


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__module__.rpartition(".")[2])
@given(st.binary(max_size=300))
def test_any_bytes_give_a_typed_error(decode, data):
    with pytest.raises(SlackwaterError) as caught:
        decode(data)
    assert tell(caught.value) in REFUSED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("version", [1, 2])
@given(st.data())
def test_a_field_of_any_other_content_is_read_or_refused_and_never_crashes(version, data):
    document = v1() if version == 1 else v2(IDS[0], 1, [])
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JSON)
    codec: Any = manifest_v1 if version == 1 else manifest_v2
    try:
        manifest, _ = codec.decode(json.dumps(document).encode())
    except SlackwaterError as error:
        assert tell(error) in REFUSED
        return
    assert codec.decode(codec.encode(manifest))[0] == manifest


@given(st.lists(st.tuples(TEXT, st.binary(max_size=50)), min_size=1, max_size=5), st.data())
def test_a_damaged_batch_is_refused(entries, data):
    whole = bytearray(lcb1.encode(entries))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        batch, _ = lcb1.decode(bytes(whole), allow_unchecked=True)
    except SlackwaterError as error:
        assert tell(error) in REFUSED
        return
    raise AssertionError(f"byte {at} was changed, and {batch} was read")


@given(st.text(max_size=60), st.lists(st.text(max_size=40), max_size=10))
def test_no_path_and_no_key_upsets_the_layout(path, keys):
    survey(keys)
    below_checkpoint(path, IDS[0])
    try:
        key = object_key(path)
    except UnicodeEncodeError:
        return  # a lone surrogate, which no document that was read can hold
    assert not {"", ".", ".."} & set(key.split("/")) or key == ""
