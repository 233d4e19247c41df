"""Vectors of LaminarDB's formats, written down by hand from its documents: read, and written to the byte."""

from __future__ import annotations

import json

import pytest

from slackwater.errors import SlackwaterError, Unsupported
from slackwater.laminar import incremental, lcb1, manifest_v1, manifest_v2
from slackwater.laminar.findings import fatal
from tests.golden.laminar_batches import bytes_of
from tests.golden.samples import FOLDER
from tests.laminar_findings import tell

LAMINAR = FOLDER / "laminar"
VECTORS = json.loads((LAMINAR / "lcb1.json").read_text(encoding="utf-8"))["vectors"]
DOCUMENTS = {
    "manifest-v1.json": manifest_v1,
    "manifest-v1-broken.json": manifest_v1,
    "manifest-v2.json": manifest_v2,
    "manifest-v2-empty.json": manifest_v2,
    "metadata.json": incremental,
}


def crc32c_bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_every_committed_file_is_read_by_a_test():
    assert {path.name for path in LAMINAR.iterdir()} == {*DOCUMENTS, "lcb1.json", "names.json"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_laminar_is_read_and_written_to_the_byte(name):
    data = (LAMINAR / name).read_bytes()
    codec = DOCUMENTS[name]
    document, _ = codec.decode(data)
    assert codec.encode(document) == data
    assert codec.decode(codec.encode(document))[0] == document


def test_what_is_right_has_no_fatal_finding():
    assert fatal(manifest_v1.decode((LAMINAR / "manifest-v1.json").read_bytes())[1]) == []
    assert fatal(manifest_v2.decode((LAMINAR / "manifest-v2-empty.json").read_bytes())[1]) == []


def test_everything_that_is_wrong_is_found():
    _, findings = manifest_v1.decode((LAMINAR / "manifest-v1-broken.json").read_bytes())
    assert {tell(finding) for finding in fatal(findings)} == {
        "vnode count",
        "unknown sink",
        "sink mismatch",
        "sink not committed",
        "table store outside",
    }
    _, findings = manifest_v2.decode((LAMINAR / "manifest-v2.json").read_bytes())
    assert [tell(finding) for finding in fatal(findings)] == ["no digest"]
    _, findings = incremental.decode((LAMINAR / "metadata.json").read_bytes())
    assert [tell(finding) for finding in fatal(findings)] == ["no digest"]


@pytest.mark.parametrize("name", VECTORS)
def test_a_batch_is_read_as_laminar_defines_it(name):
    vector = VECTORS[name]
    batch, findings = lcb1.decode(bytes_of(name), allow_unchecked=True)
    assert batch.version == vector["version"]
    assert batch.entries == [(key, bytes.fromhex(data)) for key, data in vector["entries"]]
    assert [tell(finding) for finding in findings] == ["no checksum"] * (vector["version"] == 1)


@pytest.mark.parametrize("name", [name for name in VECTORS if VECTORS[name]["version"] == 2])
def test_the_checksum_of_a_vector_is_that_of_its_own_bytes(name):
    data = bytes_of(name)
    assert int.from_bytes(data[16:20], "little") == crc32c_bit_by_bit(data[20:])
    assert crc32c_bit_by_bit(b"123456789") == 0xE3069283  # the check value of CRC-32C


@pytest.mark.parametrize("name", VECTORS)
def test_a_batch_is_written_to_the_byte_where_lz4_has_one_way_to_pack(name):
    vector = VECTORS[name]
    entries = [(key, bytes.fromhex(data)) for key, data in vector["entries"]]
    written = lcb1.encode(entries)
    assert lcb1.decode(written)[0].entries == entries
    assert not vector["encodes_to_the_byte"] or written == bytes_of(name)


@pytest.mark.parametrize("name", VECTORS)
def test_version_1_is_read_only_when_it_is_allowed(name):
    if VECTORS[name]["version"] == 1:
        with pytest.raises(Unsupported) as caught:
            lcb1.decode(bytes_of(name))
        assert tell(caught.value) == "batch unchecked"
    else:
        lcb1.decode(bytes_of(name))


@pytest.mark.parametrize("name", [name for name in VECTORS if VECTORS[name]["version"] == 2])
def test_every_single_bit_that_flips_in_a_batch_is_noticed(name):
    data = bytes_of(name)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SlackwaterError) as caught:
            lcb1.decode(bytes(flipped))
        assert tell(caught.value) in ("batch damaged", "unknown version")
