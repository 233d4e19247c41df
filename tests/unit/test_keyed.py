"""Keyed state: what was written is there, in the node that its key says, and damage is never a smaller state."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from slackwater.errors import Conflict, Corrupt, InvalidInput, SlackwaterError, Unavailable, Unsupported
from slackwater.formats import sealed
from slackwater.keyed.capture import capture_keyed, folder_of, read_snapshot
from slackwater.keyed.documents import Description, decode, encode
from slackwater.keyed.restore_check import check_keyed
from slackwater.keyed.state import MAX_KEY_BYTES, MAX_VALUE_BYTES, KeyedState
from slackwater.keyed.vnodes import VNODE_COUNT, vnode_of
from slackwater.protocol.artifacts import get_artifacts, put_artifacts
from slackwater.protocol.cut import Cut
from slackwater.rocks import database as rocks
from slackwater.settings import Settings
from slackwater.store import open_store
from tests.golden.samples import IDS
from tests.keyed_pipelines import slow_disk
from tests.unit.test_artifacts import manifest_of

CHANGES = st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=40)), max_size=30)


@pytest.fixture
def state(tmp_path: Path) -> Any:
    opened = KeyedState(tmp_path / "state")
    yield opened
    opened.close()


def test_a_write_that_returns_was_synced(state: KeyedState) -> None:
    disk = slow_disk(state)
    for number in range(3):
        state.write([(b"%d" % number, b"")])
        assert disk.syncs == number + 1


def test_threads_that_write_at_once_share_a_sync(state: KeyedState) -> None:
    disk, writing = slow_disk(state), threading.Lock()

    def write(thread: int) -> None:
        for number in range(10):
            with writing:
                position = state.apply(state.prepare([(b"%d-%d" % (thread, number), b"")]))
            state.sync(position)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert state.key_count == 80 and dict(state.scan()) == {b"%d-%d" % (t, n): b"" for t in range(8) for n in range(10)}
    assert 10 <= disk.syncs <= 60  # by itself each of the 80 writes would have one


def test_after_a_sync_that_failed_nothing_is_taken_until_it_is_opened_again(tmp_path: Path) -> None:
    """The kernel tells of it once: a second sync would say that all is well."""
    state = KeyedState(tmp_path / "state")
    state.put(b"a", b"1")
    disk = slow_disk(state, fails="IO error: While fdatasync: Input/output error")
    with pytest.raises(Unavailable, match="fdatasync"):
        state.put(b"b", b"2")
    disk.fails = None
    with pytest.raises(Unavailable, match="could not be synced"):
        state.put(b"c", b"3")
    assert disk.syncs == 1
    state.close()
    opened = KeyedState(tmp_path / "state")
    assert opened.get(b"a") == b"1"
    opened.put(b"d", b"4")
    opened.close()


def test_what_is_closed_says_so_and_may_be_closed_again(state: KeyedState) -> None:
    state.put(b"a", b"1")
    for _ in range(2):
        state.close()
    for act in (lambda: state.get(b"a"), lambda: state.put(b"b", b"2"), lambda: list(state.scan())):
        with pytest.raises(InvalidInput, match=r"pipeline\.ended.*was closed"):
            act()


def test_what_was_not_synced_yet_is_when_it_is_closed(tmp_path: Path) -> None:
    state = KeyedState(tmp_path / "state")
    disk = slow_disk(state)
    position = state.apply(state.prepare([(b"a", b"1")]))
    state.close()
    assert disk.syncs == 1
    state.sync(position)  # of a thread that comes late: it is durable
    opened = KeyedState(tmp_path / "state")
    assert opened.get(b"a") == b"1"
    opened.close()


def test_whoever_opens_it_again_or_reads_it_has_the_cache_that_a_new_one_has(tmp_path: Path) -> None:
    """RocksDB's binding takes the options of a database that is there from its file, which knows no cache."""
    for read_only in (False, False, True):
        state = KeyedState(tmp_path / "state", read_only=read_only)
        assert state._rocks._database.property_int_value("rocksdb.block-cache-capacity") == rocks._BLOCK_CACHE_BYTES
        state.close()


def test_a_scan_has_what_was_there_when_it_began_whatever_is_written_meanwhile(state: KeyedState) -> None:
    state.write([(b"%d" % number, b"") for number in range(100)])
    seen = []
    for key, _ in state.scan():
        state.delete(key)
        seen.append(key)
    assert sorted(seen) == sorted(b"%d" % number for number in range(100)) and state.key_count == 0


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({b"a": b"1"}, {}),
        ([(bytearray(b"a"), b"1")], {}),
        ([(b"a", b"1", b"2")], {}),
        ([], {"offsets": {"rows": "5"}}),
        ([], {"offsets": {"rows": {"row": 1.5}}}),
        ([], {"offsets": "rows"}),
        ([], {"watermark_ms": "5"}),
        ([], {"watermark_ms": -1}),
        ([], {"watermark_ms": True}),
    ],
)
def test_what_cannot_be_written_is_refused_in_our_words(state: KeyedState, changes: Any, fields: Any) -> None:
    position = state.wal_position
    with pytest.raises(InvalidInput):
        state.write(changes, **fields)
    assert state.wal_position == position


def test_the_hash_is_frozen() -> None:
    assert [vnode_of(key) for key in (b"", b"a", b"merchant-1", bytes(32), b"123456789")] == [0, 48, 176, 170, 131]
    assert VNODE_COUNT == 256


def test_keys_spread_over_all_nodes() -> None:
    counts = [0] * VNODE_COUNT
    for number in range(25_600):
        counts[vnode_of(b"merchant-%d" % number)] += 1
    assert min(counts) > 50 and max(counts) < 200


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(CHANGES, max_size=6))
def test_it_is_what_a_dictionary_would_be(tmp_path_factory: pytest.TempPathFactory, batches: list[Any]) -> None:
    folder, model = tmp_path_factory.mktemp("state") / "s", dict[bytes, bytes]()
    for number, batch in enumerate(batches):
        state = KeyedState(folder)  # again each time: what is acknowledged survives
        state.write(batch, offsets={"rows": {"n": str(number)}}, watermark_ms=number)
        for key, value in batch:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        assert state.key_count == len(model) and state.offsets == {"rows": {"n": str(number)}}
        assert dict(state.scan()) == model and state.get_many(list(model)) == list(model.values())
        state.close()


def test_one_node_is_read_and_digested_alone(state: KeyedState, tmp_path: Path) -> None:
    state.write([(b"%d" % number, b"v%d" % number) for number in range(2_000)])
    nodes = [list(state.scan(node)) for node in range(VNODE_COUNT)]
    assert sum(map(len, nodes)) == 2_000
    assert all(vnode_of(key) == node for node, held in enumerate(nodes) for key, _ in held)
    assert [key for key, _ in nodes[3]] == sorted(key for key, _ in nodes[3])
    other = KeyedState(tmp_path / "other")
    for number in reversed(range(2_000)):  # in another order, and in one batch each
        if vnode_of(b"%d" % number) in (3, 4):
            other.put(b"%d" % number, b"v%d" % number)
    assert state.digest(3) == other.digest(3) and state.digest(4) == other.digest(4) != state.digest(5)
    other.put(nodes[3][0][0], b"other")
    assert state.digest(3) != other.digest(3)
    other.close()
    # As the specification has it.
    alone = KeyedState(tmp_path / "alone")
    alone.put(b"a", b"1")
    assert alone.digest(48) == "0e9c3156ac694b081269e7631db910df955a4df29e20086134d7aa57f4e54795"
    assert alone.digest(0) == hashlib.sha256(b"").hexdigest()
    alone.close()
    with pytest.raises(InvalidInput, match="0 to 255"):
        list(state.scan(256))


def test_a_watermark_never_goes_back(state: KeyedState) -> None:
    state.write([], watermark_ms=7)
    state.write([], watermark_ms=3)
    assert state.watermark_ms == 7


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    made = KeyedState(tmp_path / "state", vnode_count=4)
    made.put(b"a", b"1")
    made.close()
    with pytest.raises(Unsupported) as caught:
        KeyedState(tmp_path / "state", read_only=True)
    assert caught.value.code == "keyed.unsupported" and "virtual nodes" in str(caught.value)


def test_E12_a_second_writer_is_refused_and_a_reader_is_not(state: KeyedState) -> None:
    state.put(b"a", b"1")
    with pytest.raises(Conflict) as caught:
        KeyedState(state.folder)
    assert caught.value.code == "keyed.taken"
    code = "import sys; from pathlib import Path; from slackwater.keyed.state import KeyedState\n"
    code += "KeyedState(Path(sys.argv[1]))"
    elsewhere = subprocess.run([sys.executable, "-c", code, str(state.folder)], capture_output=True, check=False)
    assert b"keyed.taken" in elsewhere.stderr
    state.put(b"b", b"2")
    assert state.key_count == 2


@pytest.mark.parametrize(
    ("changes", "fields", "words"),
    [
        ([("a", b"1")], {}, "must be bytes"),
        ([(b"a", 1)], {}, "must be bytes"),
        ([(bytes(MAX_KEY_BYTES + 1), b"")], {}, "and may have"),
        ([(b"a", bytes(MAX_VALUE_BYTES + 1))], {}, "and may have"),
        ([(b"a", b"1")], {"offsets": {"": {"n": "1"}}}, "the offsets"),
        ([(b"a", b"1")], {"offsets": {"s": {"n": 1}}}, "the offsets are"),
        ([(b"a", b"1")], {"watermark_ms": 2**60}, "the offsets"),
        ([(b"a", b"1")], {"offsets": {"s": {"n": "x" * 2**20}}}, "the offsets"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_written(
    state: KeyedState, changes: Any, fields: dict[str, Any], words: str
) -> None:
    state.put(b"before", b"1")
    with pytest.raises(InvalidInput) as caught:
        state.write([(b"first", b"1"), *changes], **fields)
    assert caught.value.code == "state.invalid" and words in str(caught.value)
    assert list(state.scan()) == [(b"before", b"1")] and state.offsets == {}


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    foreign = Rdict(str(tmp_path / "foreign"), Options(raw_mode=True))
    foreign[b"a"] = b"1"
    foreign.close()
    with pytest.raises(Unsupported) as caught:
        KeyedState(tmp_path / "foreign")
    assert caught.value.code == "keyed.unsupported" and "is a database of something else" in str(caught.value)


@pytest.mark.parametrize("where", ["a file", "not there"])
def test_a_place_that_does_not_serve_is_a_typed_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SlackwaterError):
        KeyedState(tmp_path / "file") if where == "a file" else KeyedState(tmp_path / "none", read_only=True)


@pytest.mark.parametrize("cached", [False, True])
def test_a_flipped_bit_of_a_table_is_an_error_and_never_a_smaller_state(tmp_path: Path, cached: bool) -> None:
    state = KeyedState(tmp_path / "state")
    state.write([(b"%05d" % number, os.urandom(50)) for number in range(3_000)])
    state.checkpoint(tmp_path / "copy")
    state.close()
    (table,) = (tmp_path / "copy").glob("*.sst")
    whole = table.read_bytes()
    table.unlink()  # it is a hard link
    state = KeyedState(tmp_path / "state", read_only=True)
    content = list(state.scan())
    state.close()
    found = 0
    for at in range(0, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        table.write_bytes(damaged)
        try:
            opened = KeyedState(tmp_path / "copy", read_only=True, cached=cached)
        except Corrupt:
            found += 1
            continue
        try:
            # Some bytes, such as the filling of the footer, mean nothing.
            assert list(opened.scan()) == content
        except Corrupt:
            found += 1
        finally:
            opened.close()
    # What was read before the damage, the cache still has.
    assert found >= 38 or cached


@pytest.mark.parametrize("damage", [b"{}", b"", b'{"body":{},"sha256":"00"}', None])
def test_a_description_that_is_damaged_is_refused(damage: bytes | None) -> None:
    good = encode(Description(vnode_count=256, key_count=3, watermark_ms=1, offsets={"a": {"b": "c"}}))
    data = good.replace(b'"key_count":3', b'"key_count":4') if damage is None else damage
    with pytest.raises(Corrupt):
        decode(data, Description)
    newer = sealed_again(good.replace(b'"version":1', b'"version":2'))
    with pytest.raises(Unsupported):
        decode(newer, Description)


def sealed_again(data: bytes) -> bytes:
    return sealed.seal(bytes(msgspec.json.decode(data, type=dict[str, msgspec.Raw])["body"]))


# --- in a checkpoint


def test_a_checkpoint_references_the_tables_that_are_stored_and_restores_as_it_was(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    state = KeyedState(tmp_path / "state")
    held: Any = {}
    news = []
    for number, checkpoint_id in enumerate(IDS[:4]):
        state.write(
            [(b"%05d" % (key * 37 % 10_000), os.urandom(100)) for key in range(10_000 if not number else 100)],
            offsets={"feed": {"n": str(number)}},
        )
        folder = tmp_path / f"cut-{number}"
        state.checkpoint(folder)
        operator, files = capture_keyed(folder, "merchants", held)
        assert (operator.partitions[0].deltas != []) == (number > 0)
        cut = cut_of(operator, files)
        stored = put_artifacts(store, cut, checkpoint_id, held, Settings())
        held = stored.holdings
        news.append(stored.new_file_bytes)
    assert max(news[1:]) < news[0] / 20
    written = tmp_path / "restored"

    def write(path: str, parts: Any) -> None:
        (written / path).parent.mkdir(parents=True, exist_ok=True)
        (written / path).write_bytes(b"".join(parts))

    get_artifacts(store, manifest_of(stored, cut, 3), Settings(), write)
    back = written / folder_of("merchants")
    check_keyed(back, VNODE_COUNT)
    assert read_snapshot(back).state == state.description
    restored = KeyedState(back)
    assert list(restored.scan()) == list(state.scan()) and restored.offsets == {"feed": {"n": "3"}}
    restored.put(b"more", b"1")
    assert restored.key_count == state.key_count + 1
    restored.close()
    state.close()


def cut_of(operator: Any, files: Any) -> Any:
    return Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[operator], files=files, vnode_count=VNODE_COUNT)


def test_a_restored_state_that_is_not_the_one_that_was_checkpointed_is_refused(tmp_path: Path) -> None:
    state = KeyedState(tmp_path / "state")
    state.put(b"a", b"1")
    state.checkpoint(tmp_path / "one")
    state.put(b"b", b"1")
    state.checkpoint(tmp_path / "two")
    state.close()
    (tmp_path / "one" / "state.json").write_bytes((tmp_path / "two" / "state.json").read_bytes())
    with pytest.raises(Corrupt):
        check_keyed(tmp_path / "one", VNODE_COUNT)


def test_a_log_that_cannot_grow_is_said_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from contextlib import suppress
from pathlib import Path
from slackwater.errors import Unavailable
from slackwater.keyed.state import KeyedState
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
state = KeyedState(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
done = 0
try:
    while True:
        state.put(b"%d" % done, bytes(1000))
        done += 1
except Unavailable as error:
    print(done, error.code, flush=True)
    import os; os._exit(0)
"""
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE, check=True)
    done, said = ran.stdout.decode().split()
    assert said == "keyed.unavailable" and int(done) > 50
    state = KeyedState(tmp_path / "s")
    assert state.key_count >= int(done) and state.get(b"%d" % (int(done) - 1)) == bytes(1000)
    state.close()


def test_a_write_that_has_to_wait_for_tables_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "_WRITE_BUFFER_BYTES", 64 * 1024)
    state, model, refused = KeyedState(tmp_path / "s"), dict[bytes, bytes](), 0
    real = state._rocks._try_to_write

    def counted(*args: Any) -> bool:
        nonlocal refused
        written = real(*args)
        refused += not written
        return written

    monkeypatch.setattr(state._rocks, "_try_to_write", counted)
    for number in range(400):
        batch = {b"%d" % (number * 50 % 977 + n): os.urandom(1000) for n in range(50)}
        state.apply(state.prepare(batch.items()))  # without a wait for the disk, in which RocksDB could keep up
        model |= batch
        if refused and number > 50:
            break
    assert refused, "RocksDB has kept up with all of it"
    assert dict(state.scan()) == model and state.key_count == len(model)
    state.close()


def test_nothing_is_acknowledged_that_goes_to_a_folder_which_was_removed(tmp_path: Path) -> None:
    state = KeyedState(tmp_path / "state")
    state.put(b"a", b"1")
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(Corrupt, match=r"keyed\.damaged.*was removed, moved or replaced"):
        state.put(b"b", b"1")
    with suppress(SlackwaterError):
        state.close()


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SlackwaterError) as caught:
        KeyedState(tmp_path / "state")
    assert caught.value.code == "keyed.unavailable" and "Read-only" in caught.value.message
