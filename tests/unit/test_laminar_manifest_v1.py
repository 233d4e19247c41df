"""Manifest V1 of LaminarDB: its types, its own unit tests, and every defect of them as a finding."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from slackwater.errors import Corrupt, InvalidInput, Unsupported
from slackwater.formats import manifest as manifests
from slackwater.keyed.vnodes import VNODE_COUNT
from slackwater.laminar import manifest_v1, serde
from slackwater.laminar.content import content_v1
from slackwater.laminar.findings import Findings, fatal, refuse_fatal
from slackwater.laminar.manifest_v1 import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorCheckpoint,
    Range,
    SinkCommitStatus,
    check_sidecar,
    check_sidecar_size,
    decode,
    encode,
)
from slackwater.ops.import_ import import_folder
from slackwater.ops.pipelines import read_pipeline
from slackwater.settings import Settings
from tests.laminar_findings import tell
from tests.laminar_folders import JOIN, sha256, v1, v1_folder
from tests.unit.test_laminar_import import head_of

OPTIONAL = [field.name for field in msgspec.structs.fields(CheckpointManifest) if not field.required]


def read(document: dict[str, Any]) -> tuple[CheckpointManifest, Findings]:
    return decode(json.dumps(document).encode())


def cases(document: dict[str, Any]) -> set[str]:
    return {tell(finding) for finding in fatal(read(document)[1])}


def new(**fields: Any) -> CheckpointManifest:
    return msgspec.structs.replace(CheckpointManifest.new(1, 5, timestamp_ms=1000), **fields)


def back(manifest: CheckpointManifest) -> CheckpointManifest:
    return decode(encode(manifest))[0]


# --- LaminarDB's own tests


def test_manifest_new():
    manifest = new()
    assert (manifest.version, manifest.checkpoint_id, manifest.epoch) == (1, 1, 5)
    assert manifest.timestamp_ms > 0 and manifest.vnode_count == VNODE_COUNT == 256
    assert not manifest.source_offsets and not manifest.sink_epochs and not manifest.operator_states


def test_manifest_json_round_trip():
    manifest = new(
        source_offsets={"kafka-src": ConnectorCheckpoint.with_offsets(10, {"partition-0": "1234"})},
        sink_epochs={"pg-sink": 9},
        watermark=999_000,
        operator_states={"window-agg": OperatorCheckpoint.inline(b"hello")},
    )
    restored = back(manifest)
    assert restored == manifest
    assert restored.operator_states["window-agg"].place() == b"hello"


def test_manifest_backward_compat_missing_fields():
    manifest, findings = read({"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1000})
    assert manifest == CheckpointManifest(version=1, checkpoint_id=1, epoch=1, timestamp_ms=1000)
    assert {f.where for f in fatal(findings) if tell(f) == "missing field"} == set(OPTIONAL)


def test_connector_checkpoint_new():
    assert ConnectorCheckpoint.new(5) == ConnectorCheckpoint(offsets={}, epoch=5, metadata={})


def test_connector_checkpoint_with_offsets():
    assert ConnectorCheckpoint.with_offsets(3, {"lsn": "0/ABCD"}).offsets == {"lsn": "0/ABCD"}


def test_operator_checkpoint_inline():
    state = OperatorCheckpoint.inline(b"state-data")
    assert not state.external and state.state_b64 == "c3RhdGUtZGF0YQ=="
    assert state.place() == b"state-data"


def test_operator_checkpoint_external():
    state = OperatorCheckpoint.in_sidecar(1024, 256)
    assert state.external and state.place() == Range(1024, 256)


def test_operator_checkpoint_empty_inline():
    assert OperatorCheckpoint.inline(b"").place() == b""


def test_manifest_table_offsets():
    tables = {"instruments": ConnectorCheckpoint.with_offsets(1, {"lsn": "0/ABCD"})}
    restored = back(new(table_offsets=tables, table_store_checkpoint_path="/tmp/rocksdb_cp"))
    assert restored.table_offsets == tables
    assert restored.table_store_checkpoint_path == "/tmp/rocksdb_cp"


def test_manifest_topology_fields_round_trip():
    restored = back(new(source_names=["kafka-clicks", "ws-prices"], sink_names=["pg-sink"]))
    assert (restored.source_names, restored.sink_names) == (["kafka-clicks", "ws-prices"], ["pg-sink"])


@pytest.mark.parametrize("field", OPTIONAL)
def test_C2_a_field_that_is_missing_decodes_with_a_fatal_finding_and_is_not_restored(field):
    document = v1()
    del document[field]
    manifest, findings = read(document)
    assert getattr(manifest, field) == getattr(
        CheckpointManifest(version=1, checkpoint_id=1, epoch=1, timestamp_ms=1), field
    )
    assert ("missing field", field) in {(tell(f), f.where) for f in fatal(findings)}
    with pytest.raises(Corrupt) as caught:
        refuse_fatal(findings, "checkpoint 2")
    assert tell(caught.value) == "refused"


def test_validate_orphaned_source_offset():
    _, findings = decode(encode(new(source_names=["a", "b"], source_offsets={"c": ConnectorCheckpoint.new(1)})))
    assert "'c' is not in source_names" in {finding.message for finding in fatal(findings)}


def test_manifest_pipeline_hash_round_trip():
    assert back(new(pipeline_hash=0xDEAD_BEEF_CAFE_1234)).pipeline_hash == 0xDEAD_BEEF_CAFE_1234
    assert back(new()).pipeline_hash is None


def test_from_bytes_inline():
    state, sidecar = OperatorCheckpoint.from_bytes(b"small-state", 1024, 0)
    assert (state.external, sidecar, state.place()) == (False, None, b"small-state")


def test_from_bytes_external():
    data = bytes([0xAB]) * 2048
    state, sidecar = OperatorCheckpoint.from_bytes(data, 1024, 512)
    assert state.place() == Range(512, 2048) and sidecar == data


def test_from_bytes_at_threshold_boundary():
    assert OperatorCheckpoint.from_bytes(bytes(100), 100, 0)[1] is None
    state, sidecar = OperatorCheckpoint.from_bytes(bytes(101), 100, 0)
    assert state.external and sidecar == bytes(101)


def test_from_bytes_empty_data():
    state, sidecar = OperatorCheckpoint.from_bytes(b"", 1024, 0)
    assert (state.external, sidecar, state.place()) == (False, None, b"")


# --- what serde does


def test_a_whole_manifest_has_one_finding_the_one_that_all_have():
    _, findings = read(v1())
    assert [(tell(f), f.severity) for f in findings] == [("no self digest", "warning")]


def test_statuses_are_tagged_as_serde_tags_them():
    statuses = {
        "a": SinkCommitStatus(status="Pending"),
        "b": SinkCommitStatus(status="Committed"),
        "c": SinkCommitStatus(status="Failed", error="why"),
    }
    data = encode(new(sink_commit_statuses=statuses))
    assert json.loads(data)["sink_commit_statuses"] == {"a": "Pending", "b": "Committed", "c": {"Failed": "why"}}
    assert decode(data)[0].sink_commit_statuses == statuses


@pytest.mark.parametrize(
    "fields",
    [
        {"version": True},
        {"epoch": -1},
        {"epoch": 2**64},
        {"epoch": 1.0},
        {"epoch": "1"},
        {"vnode_count": 65536},
        {"watermark": 2**63},
        {"source_names": "a"},
        {"source_names": [1]},
        {"source_offsets": []},
        {"source_offsets": {"a": {"offsets": {"x": 1}, "epoch": 1, "metadata": {}}}},
        {"source_offsets": {"a": {"epoch": 1, "metadata": {}}}},
        {"sink_commit_statuses": {"a": "Done"}},
        {"sink_commit_statuses": {"a": {"Failed": None}}},
        {"sink_commit_statuses": {"a": {"Failed": "x", "Pending": "y"}}},
        {"operator_states": {"a": {"external": 1}}},
        {"state_checksum": "\ud800"},
    ],
    ids=str,
)
def test_what_serde_refuses_is_an_error(fields):
    with pytest.raises((Corrupt, Unsupported)) as caught:
        read(v1(**fields))
    assert tell(caught.value) in ("malformed", "unknown version")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"version": NaN}', b"[" * 100_000, b"9" * 5000],
    ids=lambda data: data[:12],
)
def test_what_is_no_json_is_an_error(data):
    with pytest.raises((Corrupt, Unsupported)) as caught:
        decode(data)
    assert tell(caught.value) in ("malformed", "unknown version")


def test_a_document_past_its_bound_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(serde, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(Corrupt, match="the limit is 100"):
        read(v1())


def test_what_does_not_fit_is_refused_when_it_is_written():
    for fields in ({"epoch": 2**64}, {"vnode_count": -1}, {"state_checksum": "\ud800"}, {"source_names": [1]}):
        with pytest.raises(InvalidInput) as caught:
            encode(new(**fields))
        assert tell(caught.value) == "unwritable"


def test_unknown_fields_and_keys_that_come_twice_are_fatal():
    assert cases({**v1(), "colour": "blue"}) == {"unknown field"}
    nested = v1()
    nested["operator_states"]["agg"]["crc"] = 1
    assert cases(nested) == {"unknown field"}
    text = json.dumps(v1()).replace('"clicks-0": "9007199254740993"', '"clicks-0": "1", "clicks-0": "2"')
    assert [tell(f) for f in fatal(decode(text.encode())[1])] == ["duplicate key"]


# --- LaminarDB's defects


@pytest.mark.parametrize("version", [0, 2, 3, 2**32 - 1])
def test_A6_C1_another_version_is_refused_before_the_rest_is_read(version):
    with pytest.raises(Unsupported) as caught:
        read({"version": version, "checkpoint_id": "another shape"})
    assert tell(caught.value) == "unknown version"


@pytest.mark.parametrize("count", [0, 1, 128, 512])
def test_C1_findings_are_typed_and_what_cannot_be_restored_is_fatal(count):
    _, findings = read(v1(vnode_count=count))
    (wrong,) = fatal(findings)
    assert (tell(wrong), wrong.severity, wrong.where) == ("vnode count", "fatal", "vnode_count")


@pytest.mark.parametrize("field", ["checkpoint_id", "epoch"])
def test_C1_a_number_that_counts_from_1_is_not_0(field):
    assert "zero" in cases(v1(**{field: 0}))


def test_C3_state_is_inline_or_external_or_an_error():
    for state in (
        OperatorCheckpoint(),
        OperatorCheckpoint(state_b64="", external=True),
        OperatorCheckpoint(state_b64="", external_length=1),
        OperatorCheckpoint(state_b64="not base64"),
        OperatorCheckpoint(state_b64="c2xhY2s"),
        OperatorCheckpoint(state_b64="c2xhY2t="),
    ):
        with pytest.raises(Corrupt) as caught:
            state.place()
        assert tell(caught.value) == "state misplaced"
        document = v1()
        document["operator_states"]["agg"] = msgspec.to_builtins(state)
        assert cases(document) == {"state misplaced"}


def test_C4_state_without_a_digest_is_fatal_and_inline_state_gets_one_of_its_own():
    for checksum in (None, "", "abcd", "x" * 64):
        assert cases(v1(state_checksum=checksum)) == {"no digest"}
    manifest, _ = read(v1())
    pieces = content_v1(manifest, manifest_sha256="ab" * 32, sidecar=JOIN).pieces
    assert {piece.operator: piece.sha256 for piece in pieces} == {"agg": sha256(b"slack water"), "join": sha256(JOIN)}


def test_C5_each_operator_has_a_digest_of_its_own_range():
    document = v1()
    half = len(JOIN) // 2
    for name, offset, length in (("join", 0, half), ("other", half, len(JOIN) - half)):
        document["operator_states"][name] = {
            "state_b64": None,
            "external": True,
            "external_offset": offset,
            "external_length": length,
        }
    manifest, findings = read(document)
    assert fatal(findings) == []
    pieces = {p.operator: p for p in content_v1(manifest, manifest_sha256="ab" * 32, sidecar=JOIN).pieces}
    assert pieces["join"].sha256 == sha256(JOIN[:half])
    assert pieces["other"].sha256 == sha256(JOIN[half:])


@pytest.mark.parametrize(
    ("offset", "length", "case"),
    [
        (0, 2**64 - 1, "state range"),
        (2**64 - 1, 2**64 - 1, "state range"),
        (10, 20, "state overlap"),
    ],
)
def test_C6_ranges_of_the_sidecar_neither_wrap_nor_overlap(offset, length, case):
    document = v1()
    document["operator_states"]["other"] = {
        "state_b64": None,
        "external": True,
        "external_offset": offset,
        "external_length": length,
    }
    assert case in cases(document)


def test_C6_ranges_must_lie_in_the_sidecar_and_what_nobody_owns_is_told():
    manifest, _ = read(v1())
    for size, expected in (
        (len(JOIN), []),
        (len(JOIN) - 1, [("state range", "fatal")]),
        (len(JOIN) + 1, [("state gap", "warning")]),
        (None, [("state missing", "fatal")]),
    ):
        findings = Findings()
        check_sidecar_size(manifest, size, findings)
        assert [(tell(f), f.severity) for f in findings] == expected
    document = v1()
    document["operator_states"]["join"]["external_offset"] = 5
    assert ("state gap", "warning") in {(tell(f), f.severity) for f in read(document)[1]}
    findings = Findings()
    check_sidecar(manifest, JOIN[:-1] + b"!", findings)
    assert [tell(f) for f in findings] == ["digest mismatch"]


def test_C7_sources_and_offsets_are_compared_in_both_directions():
    assert cases(v1(source_names=["clicks", "prices"])) == {"source without offsets"}
    assert cases(v1(source_names=[])) == {"unknown source"}
    assert cases(v1(source_watermarks={"other": 1})) == {"unknown source"}


@pytest.mark.parametrize(
    ("fields", "case"),
    [
        ({"sink_commit_statuses": {}}, "sink mismatch"),
        ({"sink_epochs": {}}, "sink mismatch"),
        ({"sink_epochs": {"pg": 8}}, "sink ahead"),
        ({"sink_names": ["files"]}, "unknown sink"),
        ({"sink_names": ["files", "pg", "pg"]}, "name twice"),
        ({"source_names": ["clicks", "clicks"]}, "name twice"),
    ],
)
def test_C8_sinks_are_compared_with_their_epochs_and_statuses(fields, case):
    assert case in cases(v1(**fields))


def test_C8_unsorted_names_are_told():
    _, findings = read(v1(sink_names=["pg", "files"]))
    assert ("names unsorted", "warning") in {(tell(f), f.severity) for f in findings}


@pytest.mark.parametrize("status", ["Pending", {"Failed": "timeout"}])
def test_C9_C10_a_sink_that_is_not_known_to_have_committed_is_fatal(status):
    assert cases(v1(sink_commit_statuses={"pg": status})) == {"sink not committed"}


def test_C12_numbers_past_2_to_the_53_are_carried_as_text_or_refused():
    manifest, _ = read(v1(pipeline_hash=2**64 - 1, source_watermarks={"clicks": -(2**63)}))
    made = content_v1(manifest, manifest_sha256="ab" * 32, sidecar=JOIN)
    assert made.origin.pipeline_hash == "18446744073709551615"
    assert made.source_watermarks == {"clicks": "-9223372036854775808"}
    assert "number range" in cases(v1(timestamp_ms=2**53))
    assert "watermark range" in cases(v1(watermark=-1))


def test_C13_both_spellings_of_kafka_partitions_are_read_and_told_apart():
    documented = v1()
    documented["source_offsets"]["clicks"]["offsets"] = {"partition-0": "1"}
    assert "offsets without topic" in {tell(finding) for finding in read(documented)[1]}
    assert "offsets without topic" not in {tell(finding) for finding in read(v1())[1]}


def test_C14_raw_error_text_is_never_repeated_and_paths_are_relative():
    secret = "postgres://user:hunter2@host " * 1000
    _, findings = read(v1(sink_commit_statuses={"pg": {"Failed": secret}}))
    assert "hunter2" not in "".join(finding.message for finding in findings)
    assert all(len(finding.message) < 500 for finding in findings)
    for path, kept in (("/tmp/rocksdb_cp", None), ("../up", None), ("tables/cp", "tables/cp")):
        manifest, findings = read(v1(table_store_checkpoint_path=path))
        assert [tell(f) for f in fatal(findings)] == ["table store outside"]
        assert content_v1(manifest, manifest_sha256="ab" * 32, sidecar=JOIN).table_store_path == kept


def test_A14_the_epoch_that_an_entry_repeats_is_compared():
    document = v1()
    document["source_offsets"]["clicks"]["epoch"] = 8
    assert cases(document) == {"epoch mismatch"}
    document["source_offsets"]["clicks"]["epoch"] = 6
    assert ("epoch older", "warning") in {(tell(f), f.severity) for f in read(document)[1]}
    assert ("no time", "warning") in {(tell(f), f.severity) for f in read(v1(timestamp_ms=0))[1]}


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "x" * 201])
def test_A10_a_hostile_name_is_fatal(name):
    document = v1()
    document["operator_states"][name] = document["operator_states"]["agg"]
    assert "hostile name" in cases(document)


def test_A13_version_3_is_the_union_of_versions_1_and_2(tmp_path):
    import_folder(
        str(v1_folder(tmp_path / "db")),
        str(tmp_path / "store" / "orders"),
        settings=Settings(inline_max_bytes=100, object_min_bytes=100),
    )
    upgraded = head_of(read_pipeline(str(tmp_path / "store" / "orders")))
    assert (upgraded.watermark_ms, upgraded.source_watermarks) == (5000, {"clicks": "-1"})
    assert (upgraded.micro_batch, upgraded.sink_epochs, upgraded.sinks) == (7, {"pg": 7}, {})
    assert upgraded.source_offsets["clicks"].metadata == {"connector": "kafka", "topic": "clicks"}
    assert upgraded.source_offsets["clicks"].source_type == "kafka"
    assert upgraded.table_offsets["rates"].offsets == {"lsn": "0/ABCD"}
    assert upgraded.vnode_count == 256 and upgraded.origin is not None
    assert (upgraded.origin.checkpoint_id, upgraded.origin.pipeline_hash) == ("2", str(0xDEADBEEFCAFE1234))
    agg, join = (upgraded.operators[name].partitions[0].files[0] for name in ("agg", "join"))
    assert manifests.decode_inline(agg) == b"slack water"
    assert (join.object, join.offset, join.size_bytes) == (0, 0, len(JOIN))
    assert manifest_v1.has_sidecar(read(v1())[0])
