"""Incremental checkpoints of LaminarDB: metadata, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from slackwater.errors import Corrupt
from slackwater.laminar.findings import Findings, fatal
from slackwater.laminar.incremental import IncrementalCheckpointMetadata, check_state_size, decode, encode
from tests.laminar_findings import tell

GOOD: dict[str, Any] = {
    "id": 3,
    "epoch": 42,
    "timestamp": 1_794_736_800,
    "wal_position": 500,
    "source_offsets": {"source1": 100},
    "watermark": 5000,
    "size_bytes": 15,
    "key_count": 0,
    "is_incremental": True,
    "parent_id": 2,
    "sst_files": ["000012.sst"],
}


def cases(**fields: Any) -> set[str]:
    return {tell(finding) for finding in fatal(decode(json.dumps({**GOOD, **fields}).encode())[1])}


def test_metadata_comes_back_as_it_was():
    metadata, _ = decode(json.dumps(GOOD).encode())
    assert msgspec.to_builtins(metadata) == GOOD
    assert decode(encode(metadata))[0] == metadata
    assert encode(metadata) == json.dumps(GOOD, indent=2).encode()


def test_E6_nothing_vouches_for_the_state():
    assert cases() == {"no digest"}


@pytest.mark.parametrize("field", ["watermark", "parent_id"])
def test_an_option_that_is_missing_is_fatal(field):
    document = {name: value for name, value in GOOD.items() if name != field}
    assert "missing field" in {tell(finding) for finding in fatal(decode(json.dumps(document).encode())[1])}


def test_a_required_field_that_is_missing_is_an_error():
    for field in sorted(GOOD.keys() - {"watermark", "parent_id"}):
        with pytest.raises(Corrupt, match=f"{field} is missing"):
            decode(json.dumps({name: value for name, value in GOOD.items() if name != field}).encode())


def test_E13_incremental_without_a_parent_is_fatal_and_so_is_a_parent_that_is_not_older():
    assert "delta without base" in cases(parent_id=None)
    assert "bad parent" in cases(parent_id=3)
    assert "zero" in cases(id=0, parent_id=None)


def test_the_size_of_the_state_is_compared():
    metadata, _ = decode(json.dumps(GOOD).encode())
    empty = msgspec.structs.replace(metadata, size_bytes=0)

    def found(metadata: IncrementalCheckpointMetadata, size: int | None) -> list[tuple[str, str]]:
        findings = Findings()
        check_state_size(metadata, size, findings)
        return [(tell(finding), finding.severity) for finding in findings]

    assert found(metadata, 15) == []
    assert found(metadata, 14) == [("state range", "fatal")]
    assert found(metadata, None) == [("state missing", "fatal")]
    assert found(empty, None) == [("state absent", "warning")]
