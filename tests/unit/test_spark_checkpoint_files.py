"""Spark's files, read without Spark: what 4.3 writes, and bytes that it never would."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import uuid
import zipfile
from pathlib import Path

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import Corrupt, SlackwaterError, Unavailable, Unsupported
from slackwater.spark.capture import capture, parse_offset
from slackwater.spark.checkpoint_files import (
    Ancestor,
    SstFile,
    decode_commit,
    decode_lineage,
    decode_offsets,
    decode_operator,
    decode_query_id,
    decode_snapshot,
)
from slackwater.spark.hydrate import move_schema_paths

ID = "5941f94e-d62a-4468-81f6-af9a59423d9f"
OTHER_ID = "b4008b51-bce2-48f4-9d45-5576f5af91cb"


def lines(*parts: object) -> bytes:
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts).encode()


# --- offsets/N


def test_an_offset_log_of_version_1_has_a_line_a_source():
    metadata = {"batchWatermarkMs": 5000, "batchTimestampMs": 7, "conf": {"spark.sql.shuffle.partitions": "5"}}
    entry = decode_offsets(lines("v1", metadata, '{"logOffset":3}', "-", "12"), "offsets/4")
    assert (entry.version, entry.watermark_ms) == (1, 5000)
    assert entry.conf == {"spark.sql.shuffle.partitions": "5"}
    assert entry.sources == [(None, '{"logOffset":3}'), (None, None), (None, "12")]


def test_an_offset_log_of_version_2_names_its_sources():
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 7, "conf": {}, "sourceMetadataInfo": {}}
    entry = decode_offsets(lines("v2", metadata, 'clicks:{"a":{"0":1}}', "users:-"), "offsets/4")
    assert entry.sources == [("clicks", '{"a":{"0":1}}'), ("users", None)]


def test_a_newline_at_the_end_of_an_offset_log_is_no_source():
    assert decode_offsets(b"v1\n{}\n0\n", "offsets/0").sources == [(None, "0")]
    assert decode_offsets(b"v1\n{}\n", "offsets/0").sources == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n{}\n1",
        b"1\n{}\n1",
        b"v1\n{\n1",
        b"v1\n[]\n1",
        b'v1\n{"batchWatermarkMs":"x"}\n1',
        b'v1\n{"conf":{"a":1}}\n1',
        b"v1\n{}\n1\n\n2",
        b"v2\n{}\n1",
        b"v2\n{}\n:1",
        b"v2\n{}\na:",
        b"v2\n{}\na:1\na:2",
        b"v1\n{}\n\xff",
        b"v1\n" + b"[" * 100_000,
        b"v1\n{}\n" + b"1" * (17 * 1024 * 1024),
    ],
)
def test_a_broken_offset_log_is_corrupt_and_says_which(data):
    with pytest.raises(Corrupt, match=r"offsets/4 ") as caught:
        decode_offsets(data, "offsets/4")
    assert caught.value.code == "capture.damaged"


@pytest.mark.parametrize(("decode", "newest"), [(decode_offsets, 2), (decode_commit, 3), (decode_operator, 2)])
def test_a_newer_version_is_unsupported_and_not_corrupt(decode, newest):
    with pytest.raises(Unsupported) as caught:
        decode(f"v{newest + 1}\n{{}}".encode(), "some/file")
    assert caught.value.code == "spark.unsupported" and "has version" in str(caught.value)


# --- metadata


def test_a_query_id_is_read_and_anything_else_refused():
    assert decode_query_id(f'{{"id":"{ID}"}}'.encode(), "metadata") == ID
    for data in (b"", b"{}", b'{"id":1}', b'{"id":"x"}', b"\xff"):
        with pytest.raises(Corrupt, match="metadata"):
            decode_query_id(data, "metadata")


# --- commits/N


def test_a_commit_of_format_2_has_an_id_for_every_operator_partition_and_store():
    commit = {"nextBatchWatermarkMs": 9, "stateUniqueIds": {"0": [[ID], [OTHER_ID]], "1": [[ID, OTHER_ID]]}}
    for version, more in (("v2", {}), ("v3", {"sinkMetadataMap": {"out": {"sinkName": "out"}}})):
        entry = decode_commit(lines(version, commit | more), "commits/4")
        assert entry.next_watermark_ms == 9
        assert entry.state_unique_ids == {0: [[ID], [OTHER_ID]], 1: [[ID, OTHER_ID]]}


def test_a_commit_of_format_1_has_no_ids_even_where_spark_wrote_an_empty_map():
    assert decode_commit(b'v1\n{"nextBatchWatermarkMs":3}', "commits/0").state_unique_ids is None
    assert decode_commit(b'v1\n{"nextBatchWatermarkMs":3,"stateUniqueIds":{}}', "commits/0").state_unique_ids is None
    assert decode_commit(b'v2\n{"nextBatchWatermarkMs":3,"stateUniqueIds":{}}', "commits/0").state_unique_ids == {}


@pytest.mark.parametrize(
    "ids",
    ['{"0":[["../../etc/passwd"]]}', '{"0":[[""]]}', '{"-1":[]}', '{"x":[]}', '{"0":["x"]}', '{"0":[[1]]}', "[]"],
)
def test_ids_that_could_not_be_parts_of_a_file_name_are_refused(ids):
    with pytest.raises(Corrupt, match="commits/4"):
        decode_commit(f'v2\n{{"stateUniqueIds":{ids}}}'.encode(), "commits/4")


# --- operator metadata

STORE = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 5}


def operator(*stores: dict, version: str = "v1", name: str = "dedupe") -> bytes:
    return lines(version, {"operatorInfo": {"operatorId": 1, "operatorName": name}, "stateStoreInfo": list(stores)})


def test_an_operators_stores_keep_their_order():
    found = decode_operator(operator(STORE | {"storeName": "right"}, STORE | {"storeName": "left"}), "metadata")
    assert (found.operator_id, found.name) == (1, "dedupe")
    assert [(store.name, store.partitions) for store in found.stores] == [("right", 5), ("left", 5)]


def test_schema_paths_are_read_in_the_new_and_the_old_way():
    found = decode_operator(
        operator(
            STORE | {"stateSchemaFilePaths": ["file:/a/1", "file:/a/2"]},
            STORE | {"storeName": "old", "stateSchemaFilePath": "file:/a/3"},
            version="v2",
        ),
        "metadata",
    )
    assert [store.schema_paths for store in found.stores] == [["file:/a/1", "file:/a/2"], ["file:/a/3"]]


@pytest.mark.parametrize(
    "data",
    [
        operator(STORE, STORE),
        operator(STORE | {"storeName": "../x"}),
        operator(STORE | {"storeName": "..", "numPartitions": 1}),
        operator(STORE | {"storeName": ""}),
        operator(STORE | {"numPartitions": -1}),
        operator(STORE | {"numPartitions": 10**9}),
        operator({}),
        operator(STORE, name=""),
        b"v1\n{}",
    ],
)
def test_operator_metadata_that_spark_would_not_write_is_refused(data):
    with pytest.raises(Corrupt):
        decode_operator(data, "metadata")


PATH = "state/1/_metadata/v2/0"


def test_moved_schema_paths_leave_all_else_byte_for_byte():
    data = operator(
        STORE | {"stateSchemaFilePaths": ["file:/old/state/1/_stateSchema/default/0_a"]},
        STORE | {"storeName": "b", "stateSchemaFilePath": "/old/é/state/1/_stateSchema/b/0_b"},
        version="v2",
        name="file:/old/state/1/_stateSchema/",
    ).replace(b"\\u00e9", "é".encode())
    moved = move_schema_paths(data, PATH, 'file:/new "place"')
    assert moved == data.replace(
        b"file:/old/state/1/_stateSchema/d", b'file:/new \\"place\\"/state/1/_stateSchema/d'
    ).replace("/old/é/state".encode(), b'file:/new \\"place\\"/state')
    stores = decode_operator(moved, PATH).stores
    assert [store.schema_paths for store in stores] == [
        ['file:/new "place"/state/1/_stateSchema/default/0_a'],
        ['file:/new "place"/state/1/_stateSchema/b/0_b'],
    ]


def test_a_root_that_looks_like_a_state_folder_is_still_replaced_whole():
    data = operator(STORE | {"stateSchemaFilePaths": ["s3a://b/state/1/x/state/1/_stateSchema/0_a"]}, version="v2")
    [store] = decode_operator(move_schema_paths(data, PATH, "file:/new"), PATH).stores
    assert store.schema_paths == ["file:/new/state/1/_stateSchema/0_a"]


@pytest.mark.parametrize("path", ["/elsewhere/0_a", "/old/state/2/_stateSchema/0_a", ""])
def test_a_schema_outside_of_its_operator_is_refused(path):
    data = operator(STORE | {"stateSchemaFilePaths": [path]}, version="v2")
    with pytest.raises(Corrupt) as caught:
        move_schema_paths(data, PATH, "file:/new")
    assert caught.value.code == "restore.damaged" and "schema" in str(caught.value)


def test_a_schema_path_with_escapes_that_cannot_be_found_again_is_refused():
    data = operator(STORE | {"stateSchemaFilePaths": ["/old/state/1/_stateSchema/0_a"]}, version="v2")
    with pytest.raises(Corrupt) as caught:
        move_schema_paths(data.replace(b"/old/", b"\\/old\\/"), PATH, "file:/new")
    assert caught.value.code == "restore.damaged" and "schema" in str(caught.value)


# --- changelogs


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def block(data: bytes, *, raw: bool = False, level: int = 5) -> bytes:
    stored = data if raw else lz4.block.compress(data, store_size=False)
    return struct.pack("<8sBiiI", b"LZ4Block", (0x10 if raw else 0x20) | level, len(stored), len(data), 0) + stored


def changelog(lineage: list[tuple[int, str]], version: str = "v3", block_bytes: int = 32 * 1024) -> bytes:
    text = json.dumps([{"version": number, "checkpointUniqueId": unique_id} for number, unique_id in lineage])
    content = utf(version) + utf(text) + b"\x01" * 2_000
    parts = [content[start : start + block_bytes] for start in range(0, len(content), block_bytes)]
    return b"".join(block(part, raw=len(lz4.block.compress(part, store_size=False)) >= len(part)) for part in parts)


@pytest.mark.parametrize("version", ["v3", "v4"])
@pytest.mark.parametrize("block_bytes", [3, 100, 32 * 1024])
def test_a_lineage_is_read_through_any_blocks(version, block_bytes):
    lineage = [(number, str(uuid.UUID(int=number))) for number in range(4, 12)]
    data = changelog(lineage, version, block_bytes)
    assert decode_lineage(io.BytesIO(data), "lz4", "x") == [Ancestor(*pair) for pair in lineage]
    assert decode_lineage(io.BytesIO(changelog([], version, block_bytes)), "lz4", "x") == []


def test_no_more_of_a_changelog_is_read_than_its_header():
    file = io.BytesIO(changelog([(1, ID)]) + b"\0" * 1_000_000)
    decode_lineage(file, "lz4", "x")
    assert file.tell() < 1_000


@pytest.mark.parametrize("size", range(0, 150, 7))
def test_a_changelog_cut_in_its_header_is_corrupt(size):
    data = changelog([(number, str(uuid.uuid4())) for number in range(1, 9)])
    with pytest.raises(Corrupt) as caught:
        decode_lineage(io.BytesIO(data[:size]), "lz4", "3_x.changelog")
    assert caught.value.code == "capture.damaged" and "Spark's file" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        changelog([(1, ID)], "v1"),
        changelog([(1, ID)], "v2"),
        changelog([(0, ID)]),
        changelog([(1, "../x")]),
        block(utf("v3") + utf('{"version":1}')),
        block(utf("v3") + utf("[" * 60_000), level=7),
        block(b""),
        b"LZ4block" + changelog([(1, ID)])[8:],
    ],
)
def test_a_changelog_with_a_hostile_header_is_corrupt(data):
    with pytest.raises(Corrupt):
        decode_lineage(io.BytesIO(data), "lz4", "3_x.changelog")


@pytest.mark.parametrize(("stored", "size"), [(2**31 - 1, 2**31 - 1), (10, 2**25), (-1, 10), (10, -1), (0, 5)])
def test_a_block_that_lies_about_its_size_allocates_nothing(stored, size):
    data = struct.pack("<8sBiiI", b"LZ4Block", 0x2F, stored, size, 0) + b"\0" * 100
    tracemalloc.start()
    with pytest.raises(Corrupt):
        decode_lineage(io.BytesIO(data), "lz4", "3_x.changelog")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lzf", ""])
def test_another_codec_is_unsupported_with_the_line_that_mends_it(codec):
    with pytest.raises(Unsupported, match=r'compression\.codec", "lz4"') as caught:
        decode_lineage(io.BytesIO(changelog([])), codec, "x")
    assert caught.value.code == "spark.unsupported"


# --- snapshots

SST = {"localFileName": "000008.sst", "dfsSstFileName": f"000008-{ID}.sst", "sizeBytes": 1260}


def snapshot(metadata: bytes | None, **more: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("CURRENT", b"MANIFEST-000005")
        for name, data in more.items():
            archive.writestr(name, data)
        if metadata is not None:
            archive.writestr("metadata", metadata)
    return file.getvalue()


def test_a_snapshot_names_its_sst_files():
    data = snapshot(lines("v1", {"sstFiles": [SST], "numKeys": 5, "columnFamilyMapping": {"default": 1}}))
    assert decode_snapshot(io.BytesIO(data), "x") == [SstFile(f"000008-{ID}.sst", 1260)]
    assert decode_snapshot(io.BytesIO(snapshot(lines("v1", {"sstFiles": [], "numKeys": 0}))), "x") == []


WHOLE = snapshot(lines("v1", {"sstFiles": [SST]}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[10:],
        snapshot(None),
        snapshot(b""),
        snapshot(lines("v1", {})),
        snapshot(lines("v1", {"sstFiles": [SST | {"dfsSstFileName": "../../x.sst"}]})),
        snapshot(lines("v1", {"sstFiles": [SST | {"dfsSstFileName": "/x.sst"}]})),
        snapshot(lines("v1", {"sstFiles": [SST | {"localFileName": "a/b.sst"}]})),
        snapshot(lines("v1", {"sstFiles": [SST | {"sizeBytes": -1}]})),
        snapshot(lines("v1", {"sstFiles": [SST]}), **{"../escape": b""}),
        snapshot(lines("v1", {"sstFiles": [SST]}), **{"/absolute": b""}),
    ],
)
def test_a_snapshot_that_is_broken_or_hostile_is_corrupt(data):
    with pytest.raises(Corrupt) as caught:
        decode_snapshot(io.BytesIO(data), "4_x.zip")
    assert caught.value.code == "capture.damaged" and "Spark's file" in str(caught.value)


def test_a_snapshot_whose_metadata_would_fill_the_memory_is_refused_unread():
    bomb = snapshot(b" " * (64 * 1024 * 1024))
    tracemalloc.start()
    with pytest.raises(Corrupt):
        decode_snapshot(io.BytesIO(bomb), "4_x.zip")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


def test_a_snapshot_that_needs_a_log_is_unsupported():
    data = snapshot(lines("v1", {"sstFiles": [], "logFiles": [{"dfsLogFileName": "1.log", "sizeBytes": 1}]}))
    with pytest.raises(Unsupported):
        decode_snapshot(io.BytesIO(data), "x")


# --- any bytes

DECODERS = {
    "offsets": (lambda data: decode_offsets(data, "x"), lines("v2", {"conf": {"a": "b"}}, 'a:{"b":1}', "c:-")),
    "commit": (lambda data: decode_commit(data, "x"), lines("v2", {"stateUniqueIds": {"0": [[ID]]}})),
    "operator": (lambda data: decode_operator(data, "x"), operator(STORE)),
    "moved": (
        lambda data: move_schema_paths(data, PATH, "file:/new"),
        operator(STORE | {"stateSchemaFilePaths": ["/old/state/1/_stateSchema/0_a"]}, version="v2"),
    ),
    "lineage": (lambda data: decode_lineage(io.BytesIO(data), "lz4", "x"), changelog([(1, ID), (2, OTHER_ID)])),
    "snapshot": (lambda data: decode_snapshot(io.BytesIO(data), "x"), WHOLE),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_whatever_the_bytes_only_typed_errors_come_out(name, data):
    decode, valid = DECODERS[name]
    decode(valid)
    cut = data.draw(st.integers(0, len(valid)))
    damage = data.draw(st.binary(max_size=12))
    keep = data.draw(st.integers(cut, len(valid)))
    try:
        decode(valid[:cut] + damage + valid[keep:])
    except SlackwaterError as error:
        assert error.code in ("capture.damaged", "spark.unsupported", "restore.damaged")


# --- offsets as pairs


@pytest.mark.parametrize(
    ("verbatim", "pairs"),
    [
        ('{"clicks":{"0":5,"1":7},"users":{"0":2}}', {"clicks-0": "5", "clicks-1": "7", "users-0": "2"}),
        ('{"logOffset":3}', {"logOffset": "3"}),
        ('{"seq":12345678901234567890123}', {"seq": "12345678901234567890123"}),
        (
            '{"a":1.50,"b":"x","c":null,"d":true,"e":[1,{"f":2}]}',
            {"a": "1.50", "b": "x", "c": "null", "d": "true", "e": '["1", {"f": "2"}]'},
        ),
        ("5", {"offset": "5"}),
        ('"text"', {"offset": '"text"'}),
        ("not JSON", {"offset": "not JSON"}),
        ("{}", {}),
        ("[" * 100_000, {"offset": "[" * 100_000}),
    ],
)
def test_offsets_become_plain_pairs(verbatim, pairs):
    assert parse_offset(verbatim) == pairs


# --- a stateless working directory, whose sources keep logs


def working_directory(root: Path, offsets: bytes, names: list[str]) -> Path:
    contents = {
        "metadata": f'{{"id":"{ID}"}}'.encode(),
        "offsets/0": offsets,
        "commits/0": b'v2\n{"stateUniqueIds":{}}',
    }
    for name, data in {**contents, **dict.fromkeys(names, b"v1")}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def source_files(root: Path) -> list[str]:
    return [file.path for file in capture(root, 0).files if file.path.startswith("sources/")]


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (1, ["0", "1"]),
        (2, ["2.compact"]),
        (4, ["2.compact", "3", "4"]),
        (5, ["5.compact"]),
        (6, ["5.compact", "6"]),
    ],
)
def test_a_sources_log_is_cut_at_its_offset_and_begins_with_the_newest_compaction(tmp_path, end, kept):
    log = ["0", "1", "2.compact", "3", "4", "5.compact", "6", "7"]
    names = [f"sources/0/{name}" for name in (*log, ".7.crc", ".8.tmp")]
    root = working_directory(tmp_path, lines("v1", {}, {"logOffset": end}), names)
    assert source_files(root) == [f"sources/0/{name}" for name in kept]


@pytest.mark.parametrize("missing", ["2.compact", "3", "4"])
def test_a_sources_log_with_a_hole_is_refused(tmp_path, missing):
    names = [f"sources/0/{name}" for name in ("2.compact", "3", "4") if name != missing]
    root = working_directory(tmp_path, lines("v1", {}, {"logOffset": 4}), names)
    with pytest.raises(Corrupt) as caught:
        capture(root, 0)
    assert caught.value.code == "capture.damaged" and "lacks an entry of the source's log" in str(caught.value)


def test_what_other_sources_keep_is_taken_whole_and_one_log_is_cut_apart_from_another(tmp_path):
    offsets = lines("v2", {}, 'files:{"logOffset":0}', 'kafka:{"clicks":{"0":5}}', "idle:-")
    names = [f"sources/{name}" for name in ("files/0", "files/1", "idle/0", "kafka/0", "kafka/deep/1", "kafka/.0.crc")]
    root = working_directory(tmp_path, offsets, names)
    assert source_files(root) == ["sources/files/0", "sources/idle/0", "sources/kafka/0", "sources/kafka/deep/1"]
    cut = capture(root, 0, ["file", "kafka"])
    assert {
        name: (position.source_type, position.offsets, position.verbatim) for name, position in cut.sources.items()
    } == {
        "files": ("file", {"logOffset": "0"}, '{"logOffset":0}'),
        "kafka": ("kafka", {"clicks-0": "5"}, '{"clicks":{"0":5}}'),
        "idle": ("unknown", {}, ""),
    }


@pytest.mark.parametrize(("next_ms", "batch_ms", "expected"), [(9, 5, 9), (0, 5, 0), (-1, 5, 5), (-1, -1, 0)])
def test_the_watermark_is_the_next_micro_batchs_and_never_negative(tmp_path, next_ms, batch_ms, expected):
    root = working_directory(tmp_path, lines("v1", {"batchWatermarkMs": batch_ms}, "0"), [])
    (root / "commits/0").write_bytes(lines("v2", {"nextBatchWatermarkMs": next_ms, "stateUniqueIds": {}}))
    assert capture(root, 0).watermark_ms == expected


def test_a_working_directory_that_is_a_file_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable) as caught:
        capture(tmp_path / "file", 0)
    assert caught.value.code == "folder.unavailable" and "the working directory cannot be read" in str(caught.value)
