"""Manifest V2 of LaminarDB: its types, its own unit tests, and every defect of them as a finding."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from slackwater.errors import Corrupt, Unsupported
from slackwater.laminar.content import content_v2, needs_parent
from slackwater.laminar.findings import Findings, fatal
from slackwater.laminar.manifest_v2 import (
    CheckpointManifestV2,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    SourceOffsetEntry,
    decode,
    encode,
)
from slackwater.ops.import_ import import_folder
from slackwater.ops.pipelines import read_pipeline
from slackwater.settings import Settings
from tests.laminar_findings import tell
from tests.laminar_folders import AGG, IDS, partition, sha256, v2, write
from tests.unit.test_laminar_import import head_of

OPTIONAL = [field.name for field in msgspec.structs.fields(CheckpointManifestV2) if not field.required]
WHOLE = [partition(n, AGG[n], f"operators/agg/partition-{n}.snap") for n in range(2)]


def read(document: dict[str, Any]) -> tuple[CheckpointManifestV2, Findings]:
    return decode(json.dumps(document).encode())


def cases(partitions: list[dict[str, Any]], **fields: Any) -> set[str]:
    return {tell(finding) for finding in fatal(read(v2(IDS[0], 1, partitions, **fields))[1])}


# --- LaminarDB's own tests


def test_manifest_v2_json_round_trip():
    manifest = CheckpointManifestV2(
        version=2,
        checkpoint_id=IDS[0],
        epoch=10,
        timestamp_ms=1000,
        parent_id=IDS[1],
        watermark=5000,
        operators={
            "window-agg": OperatorSnapshotEntry(
                partitions=[
                    PartitionSnapshotEntry(
                        partition_id=0,
                        is_delta=False,
                        path="operators/window-agg/partition-0.snap",
                        size_bytes=1024,
                        sha256="abcd1234",
                    ),
                    PartitionSnapshotEntry(
                        partition_id=1, is_delta=True, path="operators/window-agg/partition-1.delta", size_bytes=256
                    ),
                ],
                total_bytes=1280,
            )
        },
        source_offsets={
            "kafka-trades": SourceOffsetEntry(source_type="kafka", offsets={"partition-0": "1234"}, epoch=10)
        },
    )
    restored, findings = decode(encode(manifest))
    assert restored == manifest
    assert {tell(finding) for finding in fatal(findings)} == {"bad digest", "no digest"}


def test_manifest_v2_backward_compat_missing_fields():
    manifest, findings = read({"version": 2, "checkpoint_id": IDS[0], "epoch": 1, "timestamp_ms": 1000})
    assert manifest == CheckpointManifestV2(version=2, checkpoint_id=IDS[0], epoch=1, timestamp_ms=1000)
    assert {f.where for f in fatal(findings)} == set(OPTIONAL)


# --- what serde does


@pytest.mark.parametrize("field", OPTIONAL)
def test_A5_a_field_that_is_missing_decodes_with_a_fatal_finding(field):
    document = v2(IDS[0], 1, WHOLE)
    del document[field]
    assert ("missing field", field) in {(tell(f), f.where) for f in fatal(read(document)[1])}


def test_A5_what_is_empty_and_says_so_is_no_finding():
    document = v2(IDS[0], 1, [], operators={}, source_offsets={})
    assert fatal(read(document)[1]) == []


@pytest.mark.parametrize(
    "fields",
    [{"checkpoint_id": "x"}, {"checkpoint_id": 7}, {"parent_id": "x"}, {"epoch": None}, {"operators": {"a": {}}}],
    ids=str,
)
def test_what_serde_refuses_is_an_error(fields):
    with pytest.raises(Corrupt) as caught:
        read({**v2(IDS[0], 1, WHOLE), **fields})
    assert tell(caught.value) == "malformed"


def test_A6_another_version_is_refused_before_the_rest_is_read():
    with pytest.raises(Unsupported) as caught:
        read({"version": 4, "checkpoint_id": {}})
    assert tell(caught.value) == "unknown version"


def test_an_id_is_written_in_lower_case_and_one_that_is_no_uuid7_is_told():
    manifest, findings = read(v2(IDS[0].upper(), 1, []))
    assert manifest.checkpoint_id == IDS[0] and fatal(findings) == []
    _, findings = read(v2("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", 1, []))
    assert ("not UUIDv7", "warning") in {(tell(f), f.severity) for f in findings}


# --- LaminarDB's defects


def test_A4_a_delta_needs_a_parent_that_it_does_not_name():
    delta = partition(0, b"d", "operators/agg/partition-0.delta", delta=True)
    assert cases([delta]) == {"delta without base"}
    manifest, findings = read(v2(IDS[0], 1, [delta], parent_id=IDS[1]))
    assert ("delta base implied", "warning") in {(tell(f), f.severity) for f in findings}
    assert needs_parent(manifest)
    with pytest.raises(Corrupt) as caught:
        content_v2([manifest], manifest_sha256="ab" * 32)
    assert tell(caught.value) == "chain broken"
    assert cases([], parent_id=IDS[0]) == {"bad parent"}


def test_A4_in_version_3_every_link_of_a_chain_is_named_with_its_digest(tmp_path):
    snap = partition(0, b"base", "operators/agg/partition-0.snap")
    delta = partition(0, b"change", "operators/agg/partition-0.delta", delta=True)
    folder = write(
        tmp_path / "db",
        {
            f"checkpoints/{IDS[0]}/manifest.json": v2(IDS[0], 1, [snap]),
            f"checkpoints/{IDS[0]}/{snap['path']}": b"base",
            f"checkpoints/{IDS[1]}/manifest.json": v2(IDS[1], 2, [delta], parent_id=IDS[0]),
            f"checkpoints/{IDS[1]}/{delta['path']}": b"change",
            "checkpoints/_latest": IDS[1],
        },
    )
    url = str(tmp_path / "store" / "orders")
    import_folder(str(folder), url, settings=Settings(inline_max_bytes=0, object_min_bytes=1))
    upgraded = head_of(read_pipeline(url))
    (only,) = upgraded.operators["agg"].partitions
    assert [(f.sha256, f.offset, f.size_bytes) for f in only.files] == [
        (sha256(b"base"), 0, 4),
        (sha256(b"change"), 4, 6),
    ]
    assert only.kind == "delta" and len(upgraded.objects) == 1


def test_A7_B7_no_digest_is_fatal_and_sums_are_compared():
    assert cases([partition(0, b"x", "operators/agg/partition-0.snap", sha256=None)]) == {"no digest"}
    assert cases([partition(0, b"x", "operators/agg/partition-0.snap", sha256="zz")]) == {"bad digest"}
    assert cases(WHOLE, total_size_bytes=7) == {"wrong total"}
    _, findings = read(v2(IDS[0], 1, WHOLE, total_size_bytes=0))
    assert ("no total", "warning") in {(tell(f), f.severity) for f in findings}


def test_A8_nothing_vouches_for_the_manifest_and_that_is_told():
    assert "no self digest" in {tell(finding) for finding in read(v2(IDS[0], 1, []))[1]}


@pytest.mark.parametrize(
    "path",
    [
        "operators/agg/partition-0.snap",
        f"{IDS[0]}/operators/agg/partition-0.snap",
        f"checkpoints/{IDS[0]}/operators/agg/partition-0.snap",
        f"s3://bucket/checkpoints/{IDS[0]}operators/agg/partition-0.snap",
    ],
)
def test_A11_a_path_is_taken_relative_to_its_checkpoint_however_it_was_stored(path):
    assert cases([partition(0, b"x", path)]) == set()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "operators/agg/partition-1.snap",
        "operators/agg/partition-0.delta",
        "operators/other/partition-0.snap",
        "../operators/agg/partition-0.snap",
        "/etc/passwd",
        f"{IDS[1]}/operators/agg/partition-0.snap",
        f"{IDS[0]}/../operators/agg/partition-0.snap",
    ],
)
def test_B11_a_path_that_leads_elsewhere_is_fatal(path):
    assert cases([partition(0, b"x", path)]) == {"bad path"}


def test_A13_what_version_2_does_not_say_is_told():
    assert "sinks unknown" in {tell(finding) for finding in read(v2(IDS[0], 1, []))[1]}


def test_A15_a_partition_comes_once_as_a_snapshot_or_as_a_delta():
    twice = [partition(0, b"x", "operators/agg/partition-0.snap"), partition(0, b"y", "operators/agg/partition-0.snap")]
    both = [twice[0], partition(0, b"y", "operators/agg/partition-0.delta", delta=True)]
    assert "partition twice" in cases(twice)
    assert "partition twice" in cases(both, parent_id=IDS[1])


def test_B1_partitions_that_laminar_lost_above_its_concurrency_are_missed():
    kept = [partition(n, b"x", f"operators/agg/partition-{n}.snap") for n in range(248, 256)]
    assert cases(kept) == {"partition missing"}


def test_B15_the_order_of_uploads_and_the_case_of_digests_do_not_matter():
    shouting = [{**entry, "sha256": entry["sha256"].upper()} for entry in reversed(WHOLE)]
    manifest, findings = read(v2(IDS[0], 1, shouting))
    assert fatal(findings) == []
    pieces = content_v2([manifest], manifest_sha256="ab" * 32).pieces
    assert [(p.partition, p.sha256) for p in pieces] == [(n, sha256(AGG[n])) for n in range(2)]


def test_A10_a_hostile_name_of_an_operator_or_source_is_fatal():
    for name in ("", "..", "a\x00b"):
        entry = {"partitions": [], "total_bytes": 0}
        assert "hostile name" in cases([], operators={name: entry}, total_size_bytes=0)
