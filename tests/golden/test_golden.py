"""Committed bytes of every format: read as they were written, refused as they should be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slackwater.errors import SlackwaterError
from slackwater.formats import batch, manifest
from slackwater.formats import record as records
from tests.golden.broken import decode, refusal_of
from tests.golden.lcb1 import Item, write
from tests.golden.samples import (
    BATCHES,
    FOLDER,
    IDS,
    golden_manifest,
    golden_records,
    golden_repair,
    golden_rollback,
    sha256,
)

GOOD = FOLDER / "good"
SPEC = Path(__file__).parents[2] / "docs" / "spec"
BROKEN = {
    (kind, name): row
    for kind in ("batches", "manifests", "records")
    for name, row in json.loads((FOLDER / f"broken-{kind}.json").read_text(encoding="utf-8")).items()
}


def test_every_committed_file_is_read_by_a_test():
    names = {f"record-{name}.json" for name in golden_records()} | {f"batch-{name}.lcb" for name in BATCHES}
    assert {path.name for path in GOOD.iterdir()} == names | {
        "manifest.json",
        "manifest-rollback.json",
        "manifest-repair.json",
    }


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("manifest.json", golden_manifest()),
        ("manifest-rollback.json", golden_rollback()),
        ("manifest-repair.json", golden_repair()),
    ],
)
def test_a_golden_manifest_is_read_and_written_to_the_byte(name, golden):
    data = (GOOD / name).read_bytes()
    assert manifest.decode(data, sha256=sha256(data), checkpoint_id=golden.checkpoint_id) == golden
    assert manifest.encode(golden) == data


@pytest.mark.parametrize("name", golden_records())
def test_a_golden_record_is_read_and_written_to_the_byte(name):
    data, record = (GOOD / f"record-{name}.json").read_bytes(), golden_records()[name]
    assert records.decode(data, number=record.number) == record
    assert records.encode(record) == data
    assert records.digest(data) == json.loads(data)["sha256"]


@pytest.mark.parametrize("name", BATCHES)
def test_a_golden_batch_is_read_and_what_is_written_now_reads_the_same(name):
    # Another release of LZ4 may pack the same bytes in another way, so only the content is compared.
    assert batch.decode((GOOD / f"batch-{name}.lcb").read_bytes()) == BATCHES[name]
    assert batch.decode(batch.encode(BATCHES[name])[0]) == BATCHES[name]


def test_the_mixed_batch_holds_raw_and_packed_entries():
    index = batch.decode_index((GOOD / "batch-mixed.lcb").read_bytes())
    assert [index[key].codec for key in sorted(BATCHES["mixed"], key=str.encode)] == [0, 0, 1, 1]


def test_a_batch_of_raw_entries_is_what_the_byte_tables_say():
    assert batch.encode(BATCHES["one"])[0] == write([Item(b"a", b"slack water")])


def test_the_vector_in_the_specification_is_the_committed_batch():
    text = (SPEC / "batch.md").read_text(encoding="utf-8")
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} )*[0-9a-f]{2})$", text, re.MULTILINE)
    assert bytes.fromhex(" ".join(lines)) == (GOOD / "batch-one.lcb").read_bytes()


@pytest.mark.parametrize(("kind", "name"), BROKEN, ids=lambda value: value)
def test_a_broken_document_is_refused_with_its_code(kind, name):
    row = BROKEN[kind, name]
    data = bytes.fromhex(row["hex"]) if "hex" in row else row["text"].encode()
    assert refusal_of(kind, data) == {"code": row["code"], "says": row["says"]}
    assert row["code"] != "accepted"


@pytest.mark.parametrize(
    ("kind", "path"),
    [("batches", "batch-one.lcb"), ("records", "record-checkpoint.json"), ("manifests", "manifest.json")],
)
def test_every_single_bit_that_flips_is_noticed(kind, path):
    data = (GOOD / path).read_bytes()
    vouched = sha256(data)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SlackwaterError) as caught:
            if kind == "manifests":
                manifest.decode(bytes(flipped), sha256=vouched, checkpoint_id=IDS[2])
            else:
                decode(kind, bytes(flipped))
        assert caught.value.code in ("object.damaged", "format.unknown_version", "log.corrupt")


@pytest.mark.parametrize("name", ["batch-one.lcb", "batch-mixed.lcb"])
def test_a_batch_cut_anywhere_is_noticed(name):
    data = (GOOD / name).read_bytes()
    for size in range(len(data)):
        assert refusal_of("batches", data[:size])["code"] == "object.damaged"
