"""What every store does alike: memory, a folder on disk, a real S3 server."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slackwater.errors import Corrupt, InvalidInput, NotFound
from slackwater.settings import MIB
from slackwater.store import Listed, Requests, Store, open_store
from slackwater.store.verbs import check_key


def keys(store: Store, prefix: str = "", after: str | None = None) -> list[str]:
    return [listed.key for listed in store.list(prefix, after=after)]


def test_what_was_put_is_what_is_got(store: Store) -> None:
    for key, data in {"a": b"", "b/c": b"\x00\xff" * 500, "d/e/f/g%20h.json": b"{}", "d/ü x=1": b"text"}.items():
        store.put(key, data)
        assert store.get(key) == data
        assert type(store.get(key)) is bytes


def test_a_put_of_several_buffers_is_one_object(store: Store) -> None:
    store.put("many", [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""])
    assert store.get("many") == b"abcdef"
    store.put("none", [])
    assert store.get("none") == b""


def test_a_put_keeps_nothing_of_the_callers_buffer(store: Store) -> None:
    buffer = bytearray(b"before")
    store.put("copied", [memoryview(buffer)])
    buffer[:] = b"after!"
    assert store.get("copied") == b"before"


def test_a_put_replaces_a_longer_object_in_full(store: Store) -> None:
    store.put("k", b"long" * 1000)
    store.put("k", b"short")
    assert store.get("k") == b"short"
    assert store.list("") == [Listed("k", 5)]


def test_an_object_above_the_limit_of_one_request_comes_back_whole(store: Store) -> None:
    part = bytes(range(256)) * 4096
    store.put("large", [part] * 65)
    assert store.list("") == [Listed("large", 65 * MIB)]
    assert store.get("large", offset=64 * MIB - 3, size=6) == part[-3:] + part[:3]
    assert store.get("large") == part * 65


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 4, b"0123"), (3, 4, b"3456"), (9, 1, b"9"), (0, 10, b"0123456789"), (4, None, b"456789"), (10, None, b"")],
)
def test_a_range_returns_exactly_what_was_asked_for(store: Store, offset: int, size: int | None, expected) -> None:
    store.put("digits", b"0123456789")
    assert store.get("digits", offset=offset, size=size) == expected


@pytest.mark.parametrize("offset", [0, 5, 10])
def test_an_empty_range_inside_the_object_is_empty(store: Store, offset: int) -> None:
    store.put("digits", b"0123456789")
    assert store.get("digits", offset=offset, size=0) == b""


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (9, 2), (10, 1), (11, 0), (11, None), (50, 5)])
def test_a_range_past_the_end_is_corrupt_and_never_short(store: Store, offset: int, size: int | None) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(Corrupt) as caught:
        store.get("digits", offset=offset, size=size)
    assert caught.value.code == "object.damaged" and "ends after" in str(caught.value)


@pytest.mark.parametrize(("offset", "size"), [(-1, None), (-1, 1), (0, -1)])
def test_a_negative_range_is_refused(store: Store, offset: int, size: int | None) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(InvalidInput) as caught:
        store.get("digits", offset=offset, size=size)
    assert caught.value.code == "store.invalid" and "a range cannot be negative" in str(caught.value)


def test_more_than_max_bytes_is_refused_before_it_is_read(store: Store) -> None:
    store.put("k", bytes(1000))
    for bound in ({"max_bytes": 999}, {"max_bytes": 499, "offset": 500}, {"max_bytes": 9, "offset": 1, "size": 10}):
        with pytest.raises(Corrupt) as caught:
            store.get("k", **bound)
        assert caught.value.code == "store.too_large"
    assert len(store.get("k", max_bytes=1000)) == 1000
    assert len(store.get("k", max_bytes=10, offset=1, size=10)) == 10


@pytest.mark.parametrize("bounds", [{}, {"offset": 1}, {"size": 0}, {"offset": 1, "size": 1}])
def test_a_missing_object_is_not_found(store: Store, bounds: dict[str, int]) -> None:
    store.put("a/b", b"x")
    for key in ("nope", "a", "a/b/c", "a/bb"):
        with pytest.raises(NotFound) as caught:
            store.get(key, **bounds)
        assert caught.value.code == "store.not_found"
        assert key in str(caught.value)


def test_a_create_of_a_taken_name_says_so_and_changes_nothing(store: Store) -> None:
    assert store.create("log/1", b"first") is True
    assert store.create("log/1", b"second") is False
    assert store.get("log/1") == b"first"
    store.put("log/2", b"put")
    assert store.create("log/2", b"created") is False
    store.delete(["log/1"])
    assert store.create("log/1", b"third") is True
    assert store.get("log/1") == b"third"


def test_of_eight_threads_that_create_one_name_exactly_one_wins(store: Store) -> None:
    gate = threading.Barrier(8)

    def create(name: str) -> tuple[bool, bytes]:
        gate.wait()
        return store.create(name, data := f"{threading.get_ident()}".encode()), data

    with ThreadPoolExecutor(8) as pool:
        for number in range(3):
            answers = list(pool.map(create, [f"log/{number}"] * 8))
            winners = [data for won, data in answers if won]
            assert winners == [store.get(f"log/{number}")]
    assert keys(store) == [f"log/{number}" for number in range(3)]


def _create_many(url: str, mine: bytes, gate, answers) -> None:
    store = open_store(url)
    gate.wait()
    answers.put((mine, [number for number in range(100) if store.create(f"log/{number}", mine)]))


def test_of_four_processes_that_create_one_name_on_disk_exactly_one_wins(tmp_path) -> None:
    spawn = multiprocessing.get_context("spawn")
    gate, answers = spawn.Barrier(4), spawn.Queue()
    processes = [spawn.Process(target=_create_many, args=(str(tmp_path), b"%d" % i, gate, answers)) for i in range(4)]
    for process in processes:
        process.start()
    won = [(number, mine) for mine, numbers in (answers.get(timeout=60) for _ in processes) for number in numbers]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    store = open_store(str(tmp_path))
    assert sorted(won) == [(number, store.get(f"log/{number}")) for number in range(100)]


def test_a_listing_is_sorted_and_knows_sizes(store: Store) -> None:
    names = ["b", "a/z", "a-b/x", "a/b/c", "a.b", "B", "a0", "ä/ö", "a/10", "a/9"]
    for size, name in enumerate(names):
        store.put(name, bytes(size))
    assert store.list("") == [Listed(name, names.index(name)) for name in sorted(names)]


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(store: Store) -> None:
    for key in ("a/x", "a/b/y", "ab/x", "a.x", "b/a/x"):
        store.put(key, b"")
    assert keys(store, "a/") == keys(store, "a") == ["a/b/y", "a/x"]
    assert keys(store, "a/b/") == ["a/b/y"]
    assert keys(store, "a/x") == keys(store, "nope/") == keys(store, "a/b/y/z/") == []


def test_a_listing_after_a_key_begins_behind_it(store: Store) -> None:
    names = [f"log/{number:020}.json" for number in (1, 2, 9, 10, 11)]
    for key in [*names, "checkpoints/x", "logs/x"]:
        store.put(key, b"")
    for after in [*names, "", "log/", "log/00000000000000000005.json", names[1] + "x", "zzz"]:
        assert keys(store, "log/", after) == [key for key in names if key > after], after


# Not on S3: SeaweedFS passes over whole folders when `start-after` sorts between a folder's name and its keys.
@pytest.mark.parametrize("store", ["memory", "disk"], indirect=True)
def test_a_listing_after_a_key_crosses_folders_in_the_order_of_keys(store: Store) -> None:
    names = ["a-", "a/1", "a/2/x", "a/2/y", "a/20", "a0", "b/c/d"]
    for key in names:
        store.put(key, b"")
    for after in [*names, "", "a", "a/2", "a/2/", "a/2/z", "b", "zzz"]:
        assert keys(store, "", after) == [key for key in names if key > after], after
        assert keys(store, "a/", after) == [key for key in names if key.startswith("a/") and key > after], after


def test_a_listing_of_more_than_a_page_is_whole(store: Store) -> None:
    names = [f"log/{number:05}" for number in range(2100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.put(name, b"1"), names))
    assert keys(store, "log/") == names
    assert keys(store, "log/", "log/01049") == names[1050:]
    before = store.requests.snapshot()
    store.delete(names)
    assert (store.requests - before).deletes == 3
    assert store.list("") == []


def test_names_are_listed_one_level_deep_and_after_a_name(store: Store) -> None:
    names = [f"{number:020}.json" for number in (1, 2, 9, 10, 11)]
    inside = ["log/00000000000000000012.json/x", "log/a/b", "logs/x", "top"]
    for key in [*(f"log/{name}" for name in reversed(names)), *inside]:
        store.put(key, b"")
    assert store.list_names("log/") == store.list_names("log") == names
    assert store.list_names("") == ["top"]
    assert store.list_names("nope/") == store.list_names("top/") == store.list_names("log/a/b/") == []
    for after in [*names, "", "00000000000000000005.json", names[1] + "x", "zzz"]:
        assert store.list_names("log/", after=after) == [name for name in names if name > after], after


def test_names_are_counted_as_listings(store: Store) -> None:
    store.put("log/1", b"")
    before = store.requests.snapshot()
    store.list_names("log/")
    assert (store.requests - before) == Requests(lists=1)


def test_folders_are_listed_one_level_deep(store: Store) -> None:
    for key in ("p2/log/1", "p1/log/1", "p1/checkpoints/x/manifest.json", "p1/checkpoints/y/manifest.json", "file"):
        store.put(key, b"")
    assert store.list_folders("") == ["p1", "p2"]
    assert store.list_folders("p1/") == store.list_folders("p1") == ["checkpoints", "log"]
    assert store.list_folders("p1/checkpoints/") == ["x", "y"]
    assert store.list_folders("p1/log/") == store.list_folders("nope/") == store.list_folders("file/") == []


def test_a_delete_takes_many_and_does_not_mind_missing_ones(store: Store) -> None:
    for key in ("a/1", "a/2", "a/3", "b/c/d"):
        store.put(key, b"x")
    store.delete(["nope", "a/1", "a/nope/nope", "b/c/d", "b/c/d", "a/2/x"])
    assert keys(store) == ["a/2", "a/3"]
    store.delete(["a/1", "a/2", "a/3"])
    store.delete(["a/1"])
    store.delete([])
    assert store.list("") == []
    store.put("a/b/c", b"again")
    assert store.get("a/b/c") == b"again"


def test_a_move_can_be_repeated(store: Store) -> None:
    store.put("staged/x", b"data")
    for _ in range(3):
        store.move("staged/x", "published/deep/x")
        assert keys(store) == ["published/deep/x"]
    assert store.get("published/deep/x") == b"data"


def test_a_move_that_was_cut_off_between_copy_and_delete_is_finished(store: Store) -> None:
    store.put("staged/x", b"data")
    store.put("published/x", b"data")
    store.move("staged/x", "published/x")
    assert keys(store) == ["published/x"]


def test_a_move_of_what_never_was_is_not_found(store: Store) -> None:
    store.put("a/b", b"")
    for source, target in (("nope", "target"), ("nope/x", "deep/target"), ("a/c", "a/d")):
        with pytest.raises(NotFound) as caught:
            store.move(source, target)
        assert caught.value.code == "store.not_found"
    assert keys(store) == ["a/b"]
    assert store.list_folders("") == ["a"]


def test_where_no_writer_was_killed_nothing_is_unfinished(store: Store) -> None:
    for key in ("log/1", "log/a.0123456789abcdef.tmp", "log/deep/.a.tmp.x"):
        store.put(key, b"whole")
    listed, before = keys(store), store.requests.snapshot()
    assert [store.remove_unfinished(prefix) for prefix in ("log/", "log", "", "nope/", "log/1/")] == [0] * 5
    assert (store.requests - before) == Requests(), "a server is not asked"
    assert keys(store) == listed


# Not on S3: SeaweedFS still names a folder for a while after its last object went.
@pytest.mark.parametrize("store", ["memory", "disk"], indirect=True)
def test_a_folder_goes_with_its_last_object(store: Store) -> None:
    for key in ("a/b/c/1", "a/b/2", "d/1", "e/1"):
        store.put(key, b"")
    store.delete(["a/b/c/1", "d/1"])
    store.move("e/1", "f/g/1")
    assert store.list_folders("") == ["a", "f"]
    assert store.list_folders("a/") == ["b"]
    assert store.list_folders("a/b/") == []
    store.delete(["a/b/2", "f/g/1"])
    assert store.list_folders("") == []


HOSTILE = [
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a\\b", "a\x00b", "a\nb", "a\x7f",
    "\ud800", "a#1", "a#12/b", "#0", ".a.0123.tmp", "a/.tmp.tmp/b", "x" * 256, "ü" * 128, "/".join(["x" * 250] * 5),
]  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
def test_a_hostile_key_is_refused_by_every_verb(store: Store, key: str) -> None:
    store.put("there", b"")
    for call in (
        lambda: store.get(key),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.delete(["there", key]),
        lambda: store.move(key, "target"),
        lambda: store.move("there", key),
        lambda: store.list(key + "/"),
        lambda: store.list_folders(key + "/"),
        lambda: store.remove_unfinished(key + "/"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "store.invalid"
    assert keys(store) == ["there"]


UNUSUAL = ["a#b", "a#", "1#1x", "..a", "a..", "...", ".a", "a.tmp", "x" * 255, "%2E%2E", "a b", "~", "*?"]


@pytest.mark.parametrize("key", UNUSUAL)
def test_an_unusual_key_is_a_key(store: Store, key: str) -> None:
    assert check_key(key) == key
    assert store.create(f"f/{key}", b"1") is True
    store.put(f"f/{key}", b"22")
    assert store.list("f/") == [Listed(f"f/{key}", 2)]
    store.delete([f"f/{key}"])
    assert store.list("") == []


def test_requests_are_counted_as_s3_counts_them(store: Store) -> None:
    store.create("warm/up", b"")
    before = store.requests.snapshot()
    store.put("a", b"12345")
    store.create("b", b"123")
    store.create("b", b"123")
    store.get("a")
    store.get("a", offset=1, size=2)
    store.list("")
    store.list_folders("")
    store.delete(["a", "b"])
    store.delete([])
    assert store.requests - before == Requests(puts=3, gets=2, lists=2, deletes=1)
    assert before == before.snapshot() != store.requests


@pytest.fixture
def restless_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_threads")
def test_threads_lose_no_count() -> None:
    requests = Requests()

    def count(_: int) -> None:
        for _ in range(2000):
            requests.add(puts=1, gets=3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert requests == Requests(puts=16_000, gets=48_000)


def test_a_folder_emptied_beside_a_put_never_fails_the_put(store: Store) -> None:
    def put_and_delete(worker: int) -> None:
        for _ in range(50):
            key = f"same/folder/{worker}"
            store.put(key, b"x")
            assert store.get(key) == b"x"
            store.delete([key])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put_and_delete, range(8)))
    assert store.list("") == []
