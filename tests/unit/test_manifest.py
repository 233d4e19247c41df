"""Manifest version 3: canonical, complete, vouched for by a digest."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints
from uuid import UUID

import msgspec
import pytest

from slackwater.errors import Corrupt, InvalidInput, Unsupported
from slackwater.formats import manifest
from slackwater.formats.manifest import File, Manifest, all_files, decode, decode_inline, encode, references
from tests.golden.samples import IDS, golden_manifest, golden_rollback, sha256

GOOD = golden_manifest()
ROLLBACK = golden_rollback()


def vouched(data: bytes, checkpoint_id: str = IDS[2]) -> manifest.Manifest:
    return decode(data, sha256=sha256(data), checkpoint_id=checkpoint_id)


def changed(**fields) -> manifest.Manifest:
    return msgspec.structs.replace(GOOD, **fields)


def test_a_manifest_comes_back_as_it_was():
    assert vouched(encode(GOOD)) == GOOD


def test_a_rollback_has_the_content_of_its_target_and_nothing_to_commit():
    assert vouched(encode(ROLLBACK), IDS[4]) == ROLLBACK
    assert (ROLLBACK.operators, ROLLBACK.files, ROLLBACK.source_offsets) == (
        GOOD.operators,
        GOOD.files,
        GOOD.source_offsets,
    )
    staged = msgspec.structs.replace(ROLLBACK.sinks["totals"], descriptors=[{"path": "part-0.parquet"}])
    assert ROLLBACK.rollback is not None
    for fields in (
        {"sinks": {**ROLLBACK.sinks, "totals": staged}},
        {"rollback": msgspec.structs.replace(ROLLBACK.rollback, to_epoch=ROLLBACK.epoch)},
        {"rollback": msgspec.structs.replace(ROLLBACK.rollback, to_epoch=ROLLBACK.epoch + 1)},
    ):
        with pytest.raises(Corrupt) as caught:
            encode(msgspec.structs.replace(ROLLBACK, **fields))
        assert caught.value.code == "manifest.invalid" and "the manifest of" in str(caught.value)


def test_what_nobody_said_of_a_query_is_null_and_never_left_out():
    document = json.loads(encode(ROLLBACK))
    assert document["query"] is None and document["pipeline_hash"] is None
    assert json.loads(encode(GOOD))["rollback"] is None


def test_A14_the_bytes_are_canonical():
    data = encode(GOOD)
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    shuffled = changed(sinks=dict(reversed(GOOD.sinks.items())), operators=dict(reversed(GOOD.operators.items())))
    assert encode(shuffled) == data


def test_A8_a_flipped_digit_of_an_offset_is_noticed():
    data = encode(GOOD)
    other = data.replace(b"9007199254740993", b"9007199254740994")
    assert other != data
    with pytest.raises(Corrupt) as caught:
        decode(other, sha256=sha256(data), checkpoint_id=IDS[2])
    assert caught.value.code == "object.damaged" and "is not the one that the log names" in str(caught.value)


@pytest.mark.parametrize("field", GOOD.__struct_fields__)
def test_A5_C2_every_field_is_required(field):
    document = msgspec.to_builtins(GOOD)
    del document[field]
    with pytest.raises(Corrupt) as caught:
        vouched(msgspec.json.encode(document))
    assert caught.value.code == "manifest.invalid" and "the manifest does not decode" in str(caught.value)


def test_A5_a_field_that_nobody_knows_is_refused_at_every_level():
    def walk(value):
        if isinstance(value, dict):
            yield value
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from walk(child)

    # Descriptors are the sink's own words, and maps by name take any name.
    places = len([place for place in walk(msgspec.to_builtins(GOOD)) if "size_bytes" in place or "version" in place])
    assert places == 10
    for number in range(places):
        document = msgspec.to_builtins(GOOD)
        found = [place for place in walk(document) if "size_bytes" in place or "version" in place]
        found[number]["colour"] = "blue"
        with pytest.raises(Corrupt) as caught:
            vouched(msgspec.json.encode(document))
        assert caught.value.code == "manifest.invalid" and "the manifest does not decode" in str(caught.value)


def test_A6_the_version_is_looked_at_before_the_rest():
    with pytest.raises(Unsupported) as caught:
        vouched(b'{"version":4,"files":{"another":"shape"}}')
    assert caught.value.code == "format.unknown_version" and "the manifest has version" in str(caught.value)


def test_A7_no_file_is_named_without_length_and_digest():
    for field in ("sha256", "size_bytes"):
        document = msgspec.to_builtins(GOOD)
        del document["files"][0][field]
        with pytest.raises(Corrupt) as caught:
            vouched(msgspec.json.encode(document))
        assert caught.value.code == "manifest.invalid" and "the manifest does not decode" in str(caught.value)


@pytest.mark.parametrize("wrong", ["A" * 64, "g" * 64, "ü" * 64, "0" * 63 + "\n", "0" * 63, "0" * 65, ""])
def test_a_digest_that_is_none_is_neither_read_nor_written(wrong):
    """Digests come by the thousands and are looked at together: one wrong one among good ones is found."""
    places = [("objects", number) for number in range(len(GOOD.objects)) if GOOD.objects[number].sha256]
    places += [("files", number) for number in range(len(GOOD.files))]
    assert {where for where, _ in places} == {"objects", "files"}
    for where, number in places:
        entries = list(getattr(GOOD, where))
        entries[number] = msgspec.structs.replace(entries[number], sha256=wrong)
        bad = changed(**{where: entries})
        with pytest.raises(InvalidInput) as unwritable:
            encode(bad)
        assert unwritable.value.code == "checkpoint.unwritable"
        with pytest.raises(Corrupt) as caught:
            vouched(msgspec.json.encode(bad, order="sorted"))
        assert caught.value.code == "manifest.invalid" and "the manifest does not decode" in str(caught.value)


def test_A7_sizes_must_add_up():
    with pytest.raises(Corrupt) as caught:
        encode(changed(total_size_bytes=GOOD.total_size_bytes + 1))
    assert caught.value.code == "manifest.invalid" and "the manifest of" in str(caught.value)


def test_A13_what_a_restart_needs_is_in_it():
    assert {
        "source_offsets",
        "watermark_ms",
        "pipeline_hash",
        "query",
        "sinks",
        "source_names",
        "sink_names",
        "uid",
    } <= set(GOOD.__struct_fields__)


def test_B10_the_manifest_of_another_checkpoint_is_refused():
    with pytest.raises(Corrupt) as caught:
        vouched(encode(GOOD), checkpoint_id=IDS[3])
    assert caught.value.code == "manifest.invalid" and " names " in str(caught.value)


def test_B10_a_manifest_too_large_is_refused_before_it_is_hashed_or_written(monkeypatch):
    data = encode(GOOD)
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", len(data) - 1)
    with pytest.raises(Corrupt):
        vouched(data)
    with pytest.raises(InvalidInput) as caught:
        encode(GOOD)
    assert caught.value.code == "checkpoint.unwritable"


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": -1},
        {"micro_batch": 2**53},
        {"watermark_ms": -1},
        {"pipeline": ""},
        {"pipeline_hash": "A" * 64},
        {"checkpoint_id": "7"},
        {"pipeline": "\ud800"},
    ],
)
def test_what_could_not_be_read_again_is_never_written(fields):
    with pytest.raises(InvalidInput) as caught:
        encode(changed(**fields))
    assert caught.value.code == "checkpoint.unwritable"


def test_words_of_a_sink_that_are_no_json_are_never_written():
    sink = msgspec.structs.replace(GOOD.sinks["totals"], descriptors=[{"rows": object()}])
    with pytest.raises(InvalidInput) as caught:
        encode(changed(sinks={"totals": sink}))
    assert caught.value.code == "checkpoint.unwritable"


def test_C3_inline_bytes_are_there_or_an_error_is():
    file = GOOD.files[0]
    assert decode_inline(file) == b"v2\n{}"
    assert decode_inline(File(path="empty", sha256=sha256(b""), size_bytes=0, inline="")) == b""
    for inline in ("", "djIKe30", "djIKe30*", "ü", "djIKe34=", None):
        with pytest.raises(Corrupt) as caught:
            decode_inline(msgspec.structs.replace(file, inline=inline))
        assert caught.value.code == "manifest.invalid" and "the inline file" in str(caught.value)


def test_C12_offsets_wider_than_a_json_number_are_strings():
    offsets = json.loads(encode(GOOD))["source_offsets"]["0"]["offsets"]
    assert offsets == {"orders-0": str(2**53 + 1)}


def test_all_that_a_checkpoint_needs_is_named():
    assert references(GOOD) == {entry.key for entry in GOOD.objects}
    assert [file.path for file in all_files(GOOD)] == ["commits/7", "metadata", "state/0/0/8_u-0.zip"]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), b"\x00\x01", (1, 2), {3}, [{"deep": float("nan")}], UUID(int=1)],
    ids=["nan", "inf", "-inf", "bytes", "tuple", "set", "deep", "uuid"],
)
def test_descriptors_that_would_come_back_otherwise_are_refused(value):
    """A sink must be told the same after a crash, from the manifest, as before it, from memory."""
    sinks = {**GOOD.sinks, "totals": msgspec.structs.replace(GOOD.sinks["totals"], descriptors=[{"value": value}])}
    with pytest.raises(InvalidInput, match="'totals'") as caught:
        encode(changed(sinks=sinks))
    assert caught.value.code == "checkpoint.unwritable"


@pytest.mark.parametrize("value", [1, 1.5, -0.0, True, None, "ä\ud7ff", 10**30, [1, [2]], {"b": {}, "a": []}])
def test_descriptors_of_json_come_back_as_they_were(value):
    sinks = {**GOOD.sinks, "totals": msgspec.structs.replace(GOOD.sinks["totals"], descriptors=[{"value": value}])}
    assert vouched(encode(changed(sinks=sinks))).sinks == sinks


def structs_of(kind: Any, found: set[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Collect every struct that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found.add(kind)
        for hint in get_type_hints(kind, include_extras=False).values():
            structs_of(hint, found)
    for part in get_args(kind):
        structs_of(part, found)
    return found


def test_the_fields_of_a_manifest_are_declared_in_the_order_of_its_bytes():
    kinds = structs_of(Manifest, set())
    assert len(kinds) == 11
    for kind in kinds:
        assert list(kind.__struct_fields__) == sorted(kind.__struct_fields__), kind
