"""Large files on their way: in parts, digested as they pass, and never whole in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from slackwater.errors import Corrupt, SlackwaterError, Unavailable
from slackwater.formats.batch import MAX_ENTRY_BYTES
from slackwater.formats.manifest import File, Object
from slackwater.protocol import artifacts
from slackwater.protocol.artifacts import check_object, get_artifacts, put_artifacts
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.settings import MIB, Settings
from slackwater.sinks.target import Target, _File
from slackwater.store import Store, Stream, open_store
from slackwater.store.objects import ONE_PUT_BYTES
from slackwater.store.verbs import HIDDEN
from tests.golden.samples import IDS
from tests.unit.test_artifacts import manifest_of

SIZE = ONE_PUT_BYTES + 3 * MIB + 5


@pytest.fixture(params=["memory", "disk", "s3"])
def store(request, tmp_path) -> Store:
    if request.param == "memory":
        return open_store("memory:")
    if request.param == "disk":
        return open_store(str(tmp_path / "store"))
    return open_store("s3://bucket/p", Settings(total_timeout_s=10), **request.getfixturevalue("tiny").options)


def write_file(path: Path, size: int) -> Path:
    block = hashlib.sha256(path.name.encode()).digest() * (MIB // 32)
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(block)
        file.write(block[: size % MIB])
    return path


def cut_of(snapshot: list[CutFile], files: list[CutFile], operator: str = "0-save") -> Cut:
    partition = CutPartition(
        partition=0, path="state/0/0", version=1, unique_id="u", snapshot=snapshot[:1], deltas=snapshot[1:]
    )
    partitions = [partition] if snapshot else []
    operators = [
        CutOperator(name=operator, operator_id=0, operator_name="save", store="default", partitions=partitions)
    ]
    return Cut(micro_batch=1, watermark_ms=0, sources={}, operators=operators, files=files)


def sizes_and_digests(files: dict[str, Path]) -> dict[str, str]:
    return {path: hashlib.sha256(source.read_bytes()).hexdigest() for path, source in files.items()}


def read_back(store: Store, manifest) -> tuple[dict[str, str], int]:
    """Digest what is restored, part by part; and tell the largest part."""
    found: dict[str, str] = {}
    most = 0

    def write(path: str, parts: Iterator[bytes]) -> None:
        nonlocal most
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
            most = max(most, len(part))
        found[path] = digest.hexdigest()

    get_artifacts(store, manifest, Settings(), write)
    return found, most


def test_files_of_many_parts_come_back_and_are_digested_once_each_and_as_a_whole(store, tmp_path):
    sources = {
        "state/0/0/1_u.zip": write_file(tmp_path / "large", SIZE),
        "state/0/0/2_u.changelog": write_file(tmp_path / "small", 7),
        "state/0/0/3_u.changelog": write_file(tmp_path / "empty", 0),
    }
    cut = cut_of([CutFile(path, source, source.stat().st_size) for path, source in sources.items()], [])
    manifest = manifest_of(put_artifacts(store, cut, IDS[1], {}, Settings()), cut, 1)
    (entry,) = manifest.objects
    assert entry.sha256 == hashlib.sha256(b"".join(source.read_bytes() for source in sources.values())).hexdigest()
    found, most = read_back(store, manifest)
    assert found == sizes_and_digests(sources)
    assert most <= 8 * MIB < SIZE, "no part is the whole"
    files = [file for op in manifest.operators.values() for p in op.partitions for file in p.files]
    check_object(store, entry, files)


def test_files_that_are_gone_through_again_are_digested_anew():
    stream = artifacts._Files([CutFile("a", b"one", 3), CutFile("b", b"two", 3)])
    for _ in range(2):
        assert b"".join(stream) == b"onetwo"
        assert stream.sha256 == hashlib.sha256(b"onetwo").hexdigest()
        assert stream.sha256s == [hashlib.sha256(data).hexdigest() for data in (b"one", b"two")]


class Cloud(Stream):
    """Fails where it is told to."""

    def __init__(self, parts: int, fails_at: int) -> None:
        self.size_bytes, self.parts, self.fails_at, self.begun = parts * MIB, parts, fails_at, 0

    def __iter__(self) -> Iterator[bytes]:
        self.begun += 1
        for number in range(self.parts):
            if number == self.fails_at:
                raise Corrupt("it changed", code="capture.damaged")
            yield bytes([number]) * MIB


@pytest.mark.parametrize(("parts", "fails_at"), [(2, 0), (2, 1), (40, 0), (40, 1), (40, 39)])
def test_a_stream_that_ends_in_an_error_leaves_neither_object_nor_parts(parts, fails_at, store, tmp_path, request):
    store.put("folder/other", b"stays")
    with pytest.raises(Corrupt) as caught:
        store.put("folder/key", Cloud(parts, fails_at))
    assert caught.value.code == "capture.damaged" and "it changed" in str(caught.value)
    assert [listed.key for listed in store.list("")] == ["folder/other"]
    if store.url.startswith("s3:"):
        assert request.getfixturevalue("tiny").uploads == {}
    if store.url.startswith("file:"):
        assert not [name for _, _, names in os.walk(tmp_path) for name in names if HIDDEN.fullmatch(name)]
    whole = Cloud(parts, -1)
    store.put("folder/key", whole)
    assert store.get("folder/key") == b"".join(Cloud(parts, -1))
    assert whole.begun == 1
    assert len(store.list("")) == 2


def test_the_requests_of_a_stream_are_counted_as_they_go_out(tiny):
    store = open_store("s3://bucket/p", **tiny.options)
    for parts in (ONE_PUT_BYTES // MIB, ONE_PUT_BYTES // MIB + 1, 40):
        asked, counted = len(tiny.asked), store.requests.snapshot()
        store.put("k", Cloud(parts, -1))
        assert (store.requests - counted).puts == len(tiny.asked) - asked


class Pruning(Stream):
    """The first time that it is gone through, somebody prunes the folder."""

    def __init__(self, folder: Path) -> None:
        self.size_bytes, self.folder, self.begun = 3, folder, 0

    def __iter__(self) -> Iterator[bytes]:
        self.begun += 1
        yield b"on"
        if self.begun == 1:
            for left in self.folder.iterdir():
                left.unlink()
            self.folder.rmdir()
        yield b"e"


def test_a_stream_whose_folder_is_pruned_meanwhile_is_written_again_from_its_beginning(tmp_path):
    store, stream = open_store(str(tmp_path)), Pruning(tmp_path / "folder")
    store.put("folder/key", stream)
    assert store.get("folder/key") == b"one"
    assert stream.begun == 2


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def cut_short(path: Path) -> None:
    os.truncate(path, SIZE - 1)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (grow, Corrupt, r"\[capture.damaged\] state/0/0/1_u.zip has changed"),
        (cut_short, Corrupt, r"\[capture.damaged\] state/0/0/1_u.zip has changed"),
        (Path.unlink, Unavailable, r"\[folder.unavailable\] state/0/0/1_u.zip has gone"),
        (become_a_folder, Unavailable, r"\[folder.unavailable\] state/0/0/1_u.zip cannot be read"),
    ],
)
def test_a_file_that_changes_before_it_is_streamed_is_named_and_nothing_is_left(change, error, says, store, tmp_path):
    source = write_file(tmp_path / "large", SIZE)
    cut = cut_of([CutFile("state/0/0/1_u.zip", source, SIZE)], [])
    change(source)
    with pytest.raises(error, match=says):
        put_artifacts(store, cut, IDS[1], {}, Settings())
    assert store.list("") == []


def test_a_file_that_is_cut_while_it_is_streamed_is_refused(tmp_path, monkeypatch):
    source = write_file(tmp_path / "large", SIZE)
    read_parts = artifacts._read_parts

    def cutting(file: CutFile, path: Path) -> Iterator[bytes]:
        for number, part in enumerate(read_parts(file, path)):
            if number == 2:
                cut_short(path)
            yield part

    monkeypatch.setattr(artifacts, "_read_parts", cutting)
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(Corrupt) as caught:
        put_artifacts(store, cut_of([CutFile("state/0/0/1_u.zip", source, SIZE)], []), IDS[1], {}, Settings())
    assert caught.value.code == "capture.damaged" and "has changed while it was captured" in str(caught.value)
    assert store.list("") == []


@pytest.mark.parametrize("at", [0, 8 * MIB, SIZE - 1])
def test_the_last_part_of_a_damaged_file_is_never_handed_over(at, tmp_path):
    store = open_store("memory:")
    source = write_file(tmp_path / "large", SIZE)
    cut = cut_of([CutFile("state/0/0/1_u.zip", source, SIZE)], [])
    manifest = manifest_of(put_artifacts(store, cut, IDS[1], {}, Settings()), cut, 1)
    (entry,) = manifest.objects
    good = store.get(entry.key)
    for bad in (good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], good[:-1], good[:at]):
        store.put(entry.key, bad)
        sizes: list[int] = []
        for write in (partial(_note_sizes, sizes), lambda path, parts: None):
            with pytest.raises(Corrupt) as caught:
                get_artifacts(store, manifest, Settings(), write)
            assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)
        assert sum(sizes) <= SIZE - SIZE % (8 * MIB)


def _note_sizes(sizes: list[int], _: str, parts: Iterator[bytes]) -> None:
    sizes.extend(map(len, parts))


def file_at(offset: int, data: bytes) -> File:
    sha256 = hashlib.sha256(data).hexdigest()
    return File(path=f"state/0/0/{offset}", sha256=sha256, size_bytes=len(data), object=0, offset=offset)


@pytest.mark.parametrize("named", [[(0, 30)], [(0, 10), (10, 30)], [(10, 20)], [(0, 10), (20, 30)], []])
@pytest.mark.parametrize("part_bytes", [7, 10, 100])
def test_every_byte_of_an_object_is_checked_whichever_files_are_named(named, part_bytes, monkeypatch):
    monkeypatch.setattr(artifacts, "_IN_BYTES", part_bytes)
    store, good = open_store("memory:"), bytes(range(30))
    files = [file_at(begin, good[begin:end]) for begin, end in named]
    stored = Object(key="k", kind="object", sha256=hashlib.sha256(good).hexdigest(), size_bytes=30)
    store.put("k", good)
    check_object(store, stored, files)
    for bad in (*(good[:at] + b"\xff" + good[at + 1 :] for at in range(30)), good[:-1], good + b"x", b""):
        store.put("k", bad)
        with pytest.raises(Corrupt) as caught:
            check_object(store, stored, files)
        assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)
    if named:
        store.put("k", good)
        liar = msgspec.structs.replace(files[-1], sha256="0" * 64)
        with pytest.raises(Corrupt):
            check_object(store, stored, [*files[:-1], liar])


@pytest.mark.parametrize("operator", ["0-save", "files"])
def test_a_large_file_beside_the_state_gets_an_object_of_its_own(operator, tmp_path):
    store = open_store(str(tmp_path / "store"))
    sources = {
        "sources/0/9.compact": write_file(tmp_path / "compact", MAX_ENTRY_BYTES + 1),
        "sources/1/9.compact": write_file(tmp_path / "compact-1", MAX_ENTRY_BYTES + 1),
        "sources/0/10": write_file(tmp_path / "ten", 10),
        "state/0/0/1_u.zip": write_file(tmp_path / "state", 2 * MIB),
    }
    files = {path: CutFile(path, source, source.stat().st_size) for path, source in sources.items()}
    cut = cut_of([files.pop("state/0/0/1_u.zip")], list(files.values()), operator)
    stored = put_artifacts(store, cut, IDS[1], {}, Settings())
    manifest = manifest_of(stored, cut, 1)
    assert len(manifest.objects) == 3
    assert read_back(store, manifest)[0] == sizes_and_digests(sources)


def test_a_failing_stream_says_what_it_says_and_not_what_the_store_would(tmp_path):
    """An OSError of a source must not read as one of the store."""
    source = tmp_path / "folder"
    source.mkdir()
    with pytest.raises(SlackwaterError) as caught:
        put_artifacts(
            open_store(str(tmp_path / "store")),
            cut_of([CutFile("state/0/0/1_u.zip", source, SIZE)], []),
            IDS[1],
            {},
            Settings(),
        )
    assert caught.value.code == "folder.unavailable" and "cannot be read" in str(caught.value)


@pytest.mark.parametrize("size", [0, 5, SIZE])
def test_what_spark_wrote_for_a_sink_is_uploaded_as_it_is(size, tiny, tmp_path):
    (tmp_path / "totals").mkdir()
    source = write_file(tmp_path / "totals" / "part-0", size)
    Target("s3://bucket/table", tiny.options).upload(Target(tmp_path, {}), ["totals/part-0"])
    assert tiny.objects == {"table/totals/part-0": source.read_bytes()}


@pytest.mark.parametrize("change", [grow, cut_short, Path.unlink, become_a_folder])
def test_a_sinks_file_that_changes_while_it_is_uploaded_is_an_error_and_nothing_is_left(change, tiny, tmp_path):
    scratch, target = Target(tmp_path, {}), Target("s3://bucket/table", tiny.options)
    source = write_file(tmp_path / "part-0", SIZE)
    file = _File(scratch, "part-0")
    change(source)
    with pytest.raises(Unavailable) as caught:
        target.store.put("part-0", file)
    assert caught.value.code == "sink.unavailable" and scratch.url in caught.value.message
    assert (tiny.objects, tiny.uploads) == ({}, {})
