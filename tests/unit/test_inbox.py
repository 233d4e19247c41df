"""An inbox: what was acknowledged is there, in order and once; whatever is wrong is said."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from slackwater.formats.sealed import seal
from slackwater.inboxes import documents
from slackwater.inboxes.documents import COVERED_FILE, PUBLISHED_FILE, Published
from slackwater.inboxes.errors import OWNER
from slackwater.inboxes.files import read_published
from slackwater.inboxes.group_commit import KILLED, Appended, Limits, Session
from slackwater.inboxes.inbox import STOPPED, Inbox
from slackwater.inboxes.layout import decode_messages, encode_messages, messages_key, position_key
from slackwater.inboxes.reader import read_contents, read_messages
from slackwater.rocks.database import Rocks
from tests.inboxes import SetClock, cover, drop, read_all, wait_until

# --- appending


def test_messages_of_many_senders_are_dense_and_each_senders_stay_in_order(opened, folder):
    inbox = opened()

    def send(sender: int) -> None:
        for number in range(50):
            appended = inbox.append([b"%d %d %d" % (sender, number, part) for part in range(3)]).result()
            assert appended.last - appended.first == 2

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_all(folder)
    assert [message.position for message in found] == list(range(1, 1201))
    for sender in range(8):
        sent = [message.content for message in found if message.content.startswith(b"%d " % sender)]
        assert sent == [b"%d %d %d" % (sender, number, part) for number in range(50) for part in range(3)]


def test_a_key_that_is_known_gives_the_first_answer_also_after_a_restart(opened, folder):
    inbox = opened()
    together = [inbox.append([b"a", b"b"], key=b"k") for _ in range(3)]
    assert [each.result() for each in together] == [Appended(1, 2), Appended(1, 2, True), Appended(1, 2, True)]
    inbox.close()
    assert opened().append([b"a", b"b"], key=b"k").result() == Appended(1, 2, True)
    assert [message.content for message in read_all(folder)] == [b"a", b"b"]


def test_a_key_with_other_content_is_refused(opened, folder):
    inbox = opened()
    inbox.append([b"a"], key=b"k").result()
    with pytest.raises(Conflict, match=r"inbox\.key_reused"):
        inbox.append([b"b"], key=b"k").result()
    assert [message.content for message in read_all(folder)] == [b"a"]


def test_a_key_is_forgotten_when_it_is_old_by_running_time_and_covered_never_by_the_clock(folder):
    clock = SetClock()
    inbox = Inbox(folder, Limits(keep_keys_s=60), clock=clock)
    for number in range(5):
        inbox.append([b"%d" % number], key=b"%d" % number).result()
    clock.at_ms += 10**9  # a clock that is set forward makes nothing old
    drop(inbox, 4)
    assert inbox.description.keys_dropped == 0
    clock.running_s += 61
    inbox.append([b"x"]).result()
    assert inbox.description.keys_dropped == 4  # the fifth names what nothing covers yet
    assert inbox.append([b"4"], key=b"4").result() == Appended(5, 5, True)
    assert inbox.append([b"0"], key=b"0").result() == Appended(7, 7)
    inbox.close()


def test_a_full_inbox_lets_senders_wait_until_something_is_covered(opened):
    inbox = opened(max_messages=3, max_bytes=100)
    inbox.append([b"1", b"2", b"3"]).result()
    with pytest.raises(Unavailable, match=r"inbox\.full"):
        inbox.append([b"4"]).result()
    drop(inbox, 2)
    assert inbox.append([b"4"]).result() == Appended(4, 4)
    drop(inbox, 4)
    with pytest.raises(Unavailable, match=r"inbox\.full"):
        inbox.append([bytes(101)]).result()
    assert inbox.append([bytes(100)]).result() == Appended(5, 5)


def test_what_is_known_is_answered_by_a_full_inbox_too(opened):
    inbox = opened(max_keys=1, max_messages=2)
    inbox.append([b"1"], key=b"a").result()
    with pytest.raises(Unavailable, match=r"inbox\.full.*as many keys.*--max-keys"):
        inbox.append([b"2"], key=b"b").result()
    assert inbox.append([b"1"], key=b"a").result() == Appended(1, 1, True)
    inbox.append([b"2"]).result()
    with pytest.raises(Unavailable, match=r"inbox\.full.*2 messages"):
        inbox.append([b"3"]).result()
    assert inbox.append([b"1"], key=b"a").result() == Appended(1, 1, True)


def test_that_messages_have_to_wait_is_said_once_and_so_is_that_they_have_not(folder, caplog):
    caplog.set_level("INFO")
    clock = SetClock()
    inbox = Inbox(folder, Limits(max_keys=2, keep_keys_s=60), clock=clock)
    for key in (b"a", b"b"):
        inbox.append([key], key=key).result()
    for _ in range(3):
        with pytest.raises(Unavailable):
            inbox.append([b"c"], key=b"c").result()
    assert inbox.hindrance is not None and inbox.hindrance.code == "inbox.full"
    told = read_contents(folder).description.full
    assert told is not None and "as many keys are remembered as may be (2)" in told
    assert caplog.text.count("messages have to wait") == 1
    # Whoever sends only to receivers in good health would else never find out.
    drop(inbox, 2)
    assert inbox.hindrance is None
    clock.running_s += 61
    wait_until(lambda: inbox.description.keys_dropped == 2)
    assert inbox.append([b"c"], key=b"c").result() == Appended(3, 3)
    assert caplog.text.count("has room again") == 1
    inbox.close()
    assert read_contents(folder).description.full is None


def test_after_a_message_that_had_no_room_none_of_its_session_is_taken(opened, folder):
    inbox, session = opened(max_bytes=10), Session()
    done = [inbox.append([message], session=session) for message in (b"1", bytes(20), b"3")]
    assert done[0].result() == Appended(1, 1)
    for waiting, code in zip(done[1:], (r"inbox\.full", r"inbox\.unavailable"), strict=True):
        with pytest.raises(Unavailable, match=code):
            waiting.result()
    assert [message.content for message in read_all(folder)] == [b"1"]


def test_an_upstream_goes_on_after_a_position_only_when_another_one_has_come(opened):
    inbox = opened()
    for position, token in [("6", None), ("7", "6"), ("7", "6"), ("8", "7")]:
        inbox.append([b"x"], token=position).result()
        assert inbox.description.token == token
    inbox.append([b"x"], token="9", unique=True).result()
    assert (inbox.description.token, inbox.description.open_token) == ("9", None)


def test_keys_at_the_position_that_is_asked_for_again_are_never_forgotten(folder):
    clock = SetClock()
    inbox = Inbox(folder, Limits(keep_keys_s=60), clock=clock)
    keys = {position: position_key(position.encode(), position) for position in "67"}
    for position, key in keys.items():
        inbox.append([position.encode()], key=key, token=position).result()
    inbox.append([b"x"], key=b"hx").result()
    drop(inbox, 3)
    for _ in range(3):
        clock.running_s += 61
        inbox.append([b"y"]).result()
    assert inbox.description.keys_held == 1
    assert inbox.append([b"7"], key=keys["7"], token="7").result() == Appended(2, 2, True)
    assert inbox.append([b"6"], key=keys["6"]).result().repeated is False
    inbox.append([b"8"], key=position_key(b"8", "8"), token="8").result()
    drop(inbox, inbox.description.last)
    clock.running_s += 61
    inbox.append([b"y"]).result()
    assert inbox.description.keys_held == 1
    inbox.close()


def test_behind_an_append_that_failed_nothing_of_its_session_is_taken(opened, folder):
    inbox, session = opened(), Session()
    session.broken = True
    with pytest.raises(Unavailable, match=r"inbox\.unavailable.*a message before this one"):
        inbox.append([b"2"], session=session).result()
    assert inbox.append([b"1"], session=Session()).result() == Appended(1, 1)


def test_what_was_refused_and_repeated_is_counted_for_good(opened, folder):
    inbox = opened()
    inbox.count_refused(garbage=2)
    inbox.count_refused(oversized=1)
    assert inbox.refused == (2, 1)
    inbox.append([b"a"], key=b"k").result()
    inbox.append([b"a"], key=b"k").result()
    inbox.close()
    found = read_contents(folder).description
    assert (found.garbage, found.oversized, found.repeated) == (2, 1, 1)


# --- one receiver, its times


def test_a_second_receiver_is_refused_and_the_first_goes_on(opened, folder):
    inbox = opened()
    with pytest.raises(Conflict, match=r"inbox\.taken"):
        Inbox(folder)
    assert inbox.append([b"a"]).result() == Appended(1, 1)


def test_a_clock_that_is_set_back_takes_no_time_back_and_loses_nothing(folder):
    clock = SetClock()
    for at_ms in (2_000_000, 1_000, 500):
        clock.at_ms = at_ms
        inbox = Inbox(folder, clock=clock)
        inbox.begin_receiving().result()
        inbox.append([b"%d" % at_ms]).result()
        inbox.close()
    found = read_all(folder)
    assert [message.content for message in found] == [b"2000000", b"1000", b"500"]
    assert [message.received_at_ms for message in found] == [2_000_000] * 3
    assert [(gap.from_ms, gap.to_ms) for gap in read_contents(folder).gaps] == [(2_000_000, 2_000_000)] * 2


def test_each_time_without_a_receiver_is_a_gap_with_its_times_and_reason(folder):
    clock = SetClock()

    def receive(at_ms: int) -> Inbox:
        clock.at_ms = at_ms
        inbox = Inbox(folder, clock=clock)
        inbox.begin_receiving().result()
        inbox.append([b"x"]).result()
        return inbox

    receive(1_000).close()
    inbox = receive(5_000)
    clock.at_ms = 6_000
    inbox.end_receiving("the upstream went away").result()
    clock.at_ms = 8_000
    inbox.end_receiving("it is still away").result()
    inbox.begin_receiving().result()
    shutil.copytree(folder, folder.with_name("killed"))  # as a kill leaves it
    inbox.close()
    gaps = [(gap.from_ms, gap.to_ms, gap.after, gap.why) for gap in read_contents(folder).gaps]
    assert gaps == [(1_000, 5_000, 1, STOPPED), (6_000, 8_000, 2, "the upstream went away")]
    clock.at_ms = 9_000
    killed = Inbox(folder.with_name("killed"), clock=clock)
    killed.begin_receiving().result()
    killed.close()
    assert [gap.why for gap in read_contents(folder.with_name("killed")).gaps][2:] == [KILLED]


def test_a_gap_begins_when_the_upstream_was_last_heard_of_whatever_the_heartbeats_say(folder):
    clock = SetClock()
    inbox = Inbox(folder, clock=clock)
    clock.at_ms = 1_001_000
    inbox.begin_receiving().result()
    clock.at_ms, clock.running_s = 1_060_000, 60.0
    wait_until(lambda: inbox.description.alive_at_ms == 1_060_000)
    inbox.end_receiving("no answer", since_ms=1_020_000).result()
    inbox.begin_receiving().result()
    inbox.close()
    gaps = [(gap.from_ms, gap.to_ms, gap.why) for gap in read_contents(folder).gaps]
    assert gaps == [(1_020_000, 1_060_000, "no answer")]


def test_a_sender_that_asks_often_is_taken_again_once_the_disk_has_room(opened, monkeypatch):
    inbox = opened()
    full = Unavailable("No space left on device", code="inbox.disk_full")
    with monkeypatch.context() as patch:

        def refuse(*args, **fields):
            raise full

        patch.setattr(Rocks, "write", refuse)
        with pytest.raises(Unavailable):
            inbox.append([b"1"]).result()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # each sooner after the last than the inbox tries again
        try:
            assert inbox.append([b"2"]).result() == Appended(1, 1)
            break
        except Unavailable:
            time.sleep(0.1)
    else:
        pytest.fail("it is never tried again")


# --- a folder that is not, or no longer, what it was


def test_all_folders_on_the_way_to_an_inbox_outlast_a_power_loss(tmp_path, synced):
    folder = tmp_path / "a" / "b" / "inbox"
    Inbox(folder).close()
    made = [tmp_path, tmp_path / "a", tmp_path / "a" / "b", folder]
    assert [path for path in made if path.stat().st_ino not in synced] == []


def test_what_a_killed_receiver_left_unfinished_is_removed_by_the_next_one(opened, folder):
    opened().close()
    left = folder / f".{PUBLISHED_FILE}.123.456.tmp"
    # The pipeline has no lock on the folder: it may be writing this one now.
    others = folder / f".{COVERED_FILE}.123.456.tmp"
    left.write_bytes(b"{")
    others.write_bytes(b"{")
    opened()
    assert not left.exists() and others.exists()


@pytest.mark.parametrize("left", [b"", bytes(100)])
def test_a_power_loss_that_empties_what_readers_are_told_loses_no_message(opened, folder, left):
    inbox = opened()
    inbox.append([b"1", b"2"]).result()
    inbox.close()
    (folder / PUBLISHED_FILE).write_bytes(left)
    assert opened().append([b"3"]).result().first == 3
    assert documents.decode((folder / PUBLISHED_FILE).read_bytes(), Published).position == 3


def test_a_database_that_lacks_what_was_acknowledged_is_refused_and_nothing_is_given_out_again(opened, folder):
    inbox = opened()
    inbox.append([b"1"]).result()
    older = folder.with_name("older")
    shutil.copytree(folder / "messages", older)
    inbox.append([b"2"]).result()
    published = (folder / PUBLISHED_FILE).read_bytes()
    inbox.close()
    shutil.rmtree(folder / "messages")
    shutil.copytree(older, folder / "messages")
    with pytest.raises(Corrupt, match=r"inbox\.damaged.*up to message 2, and its database ends at 1"):
        opened()
    shutil.rmtree(folder / "messages")
    with pytest.raises(Corrupt, match=r"inbox\.swapped"):
        opened()
    assert (folder / PUBLISHED_FILE).read_bytes() == published


@pytest.mark.parametrize("act", ["removed", "moved", "replaced"])
def test_nothing_is_acknowledged_that_goes_to_a_folder_which_is_no_longer_there(opened, folder, act):
    inbox = opened()
    inbox.begin_receiving().result()
    inbox.append([b"1"]).result()
    if act == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(folder.with_name("elsewhere"))
    if act == "replaced":
        shutil.copytree(folder.with_name("elsewhere"), folder)
    with pytest.raises(Corrupt, match=r"inbox\.swapped.*was removed, moved or replaced"):
        inbox.append([b"2"]).result(10)
    assert inbox.failure is not None and inbox.hindrance is inbox.failure


def test_a_receiver_tells_nothing_to_readers_of_another_folder_that_is_where_its_own_was(opened, folder):
    inbox = opened()
    inbox.append([b"1"]).result()
    shutil.copytree(folder, folder.with_name("copy"))
    inbox.append([b"2"]).result()
    folder.rename(folder.with_name("moved"))
    folder.with_name("copy").rename(folder)
    wait_until(lambda: inbox.failure is not None)
    assert (
        inbox.failure is not None
        and inbox.failure.code == "inbox.swapped"
        and "was removed, moved or replaced" in str(inbox.failure)
    )
    time.sleep(0.6)  # it has looked around since
    assert read_published(folder).position == 1


def test_a_receiver_whose_folder_was_removed_does_not_end_cleanly(opened, folder):
    inbox = opened()
    inbox.begin_receiving().result()
    shutil.rmtree(folder)
    inbox.close()
    assert (
        inbox.failure is not None
        and inbox.failure.code == "inbox.swapped"
        and "was removed, moved or replaced" in str(inbox.failure)
    )


@pytest.mark.parametrize("what", ["log flipped", "log gone", "list of tables flipped"])
def test_damage_below_an_inbox_is_told_as_its_own_and_without_a_word_of_checkpoints(opened, folder, what):
    inbox = opened()
    for number in range(10):
        inbox.append([b"%d" % number]).result()
    shutil.copytree(folder, folder.with_name("killed"))  # closed, it would have an empty log
    database = folder.with_name("killed") / "messages"
    (log,) = database.glob("*.log")
    path = database / (database / "CURRENT").read_text().strip() if what.startswith("list") else log
    if what == "log gone":
        log.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data.rstrip(b"\0")) // 2] ^= 0x10
        path.write_bytes(data)
    with pytest.raises(Corrupt, match=r"inbox\.damaged") as refused:
        Inbox(database.parent)
    assert refused.value.hint is not None and "checkpoint" not in refused.value.hint


def test_all_that_may_happen_to_the_folder_of_an_inbox_has_a_code_of_an_inbox():
    assert {error("what").code.partition(".")[0] for error in OWNER} == {"inbox"}


def test_an_inbox_is_not_made_among_other_things(opened, folder):
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"inbox\.invalid"):
        opened()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_nobody_takes_back_an_append_and_the_inbox_goes_on(opened):
    inbox = opened()
    done = inbox.append([b"1"])
    assert not done.cancel()
    assert done.result() == Appended(1, 1) and inbox.append([b"2"]).result(10) == Appended(2, 2)


def test_nobody_takes_back_what_is_said_of_the_receiver_and_the_inbox_goes_on(opened):
    inbox = opened()
    for said in (inbox.begin_receiving(), inbox.end_receiving("the upstream went away")):
        assert not said.cancel()
    assert inbox.append([b"1"]).result(10) == Appended(1, 1)
    assert inbox.description.away == "the upstream went away"


@pytest.mark.parametrize("step", ["_take_group", "_write", "look_around"])
def test_nobody_waits_for_an_inbox_whose_thread_has_met_something_unexpected(opened, monkeypatch, step):
    inbox = opened()

    def fail(*args: object, **named: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(inbox._writer if step == "look_around" else inbox, step, fail)
    with pytest.raises(SlackwaterError, match=r"inbox\.failed.*unexpected"):
        inbox.append([b"1"]).result(10)
        wait_until(lambda: inbox.failure is not None)
        inbox.append([b"2"]).result(10)
    assert inbox.hindrance is inbox.failure is not None


# --- dropping


def test_what_a_pipeline_covers_is_dropped_and_reading_it_again_is_an_error(opened, folder):
    inbox = opened()
    inbox.append([b"%d" % number for number in range(1, 11)]).result()
    uid = inbox.description.uid
    cover(folder, 7, uid)
    wait_until(lambda: inbox.description.dropped == 7)
    wait_until(lambda: read_published(folder) == Published(inbox=uid, position=10, dropped=7))
    assert [message.content for message in read_all(folder, 7)] == [b"8", b"9", b"10"]
    assert inbox.description.held_bytes == 4
    with pytest.raises(NotFound, match=r"inbox\.dropped"):
        read_all(folder, 6)
    cover(folder, 3, uid)  # it never goes back
    status = (folder / COVERED_FILE).stat()
    wait_until(lambda: inbox._writer._covered_seen == (status.st_ino, status.st_mtime_ns))
    assert inbox.description.dropped == 7


@pytest.mark.parametrize(("position", "uid"), [(99, None), (1, 32 * "b")], ids=["ahead", "of another inbox"])
def test_what_covers_more_than_is_there_or_something_else_drops_nothing(opened, folder, position, uid, caplog):
    inbox = opened()
    inbox.append([b"1", b"2"]).result()
    cover(folder, position, uid or inbox.description.uid)
    wait_until(lambda: "nothing was dropped" in caplog.text)
    assert inbox.description.dropped == 0
    assert len(read_all(folder)) == 2


@pytest.mark.parametrize("seed", range(3))
def test_wherever_it_is_read_dropped_and_opened_again_all_after_what_was_dropped_is_there(opened, folder, seed):
    chosen, sent, dropped = random.Random(seed), [b""], 0
    inbox = opened()
    for _ in range(30):
        messages = [chosen.randbytes(chosen.randrange(9)) for _ in range(chosen.choice((1, 1, 2, 5, 40)))]
        inbox.append(messages).result()
        sent += messages
        if chosen.random() < 0.3:
            dropped = chosen.randint(dropped, len(sent) - 1)
            drop(inbox, dropped)
        if chosen.random() < 0.2:
            inbox.close()
            inbox = opened()
        assert inbox.description.held_bytes == sum(map(len, sent[dropped + 1 :]))
        begin = chosen.randint(dropped, len(sent) - 1)
        end = chosen.randint(begin, len(sent) - 1)
        chunks = list(read_messages(folder, inbox.description.uid, begin, end, patience_s=0))
        read = [(message.position, message.content) for chunk in chunks for message in chunk]
        assert read == [(position, sent[position]) for position in range(begin + 1, end + 1)]


def test_messages_that_came_together_go_when_the_last_of_them_may(opened, folder):
    inbox = opened()
    inbox.append([b"1", b"2", b"3"]).result()
    inbox.append([b"4", b"5"]).result()
    drop(inbox, 2)
    drop(inbox, 4)
    inbox.close()
    rocks = Rocks(folder / "messages", OWNER, read_only=True)
    assert [key for key, _ in rocks.scan(b"m", b"n")] == [messages_key(5)]
    rocks.close()


# --- what is stored


def test_messages_are_stored_as_the_specification_says():
    record = encode_messages(0x0102, 0x0304, [b"ab", b"", b"c"])
    assert record == bytes.fromhex("0000000000000102 0000000000000304 00000003 00000002 00000000 00000001") + b"abc"
    assert messages_key(9) == b"m" + bytes(7) + b"\x09"
    block = decode_messages(messages_key(9), record)
    assert (block.first, block.last, block.messages) == (7, 9, [b"ab", b"", b"c"])
    assert [block.bytes_up_to(position) for position in (7, 8, 9)] == [0x0304 - 1, 0x0304 - 1, 0x0304]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        bytes(19),
        bytes(20),  # of no message
        bytes(16) + b"\xff\xff\xff\xff",
        bytes(16) + b"\0\0\0\1" + b"\0\0\0\2" + b"a",
        bytes(16) + b"\0\0\0\1" + b"\0\0\0\2" + b"abc",
    ],
)
def test_messages_that_do_not_decode_are_damage(record):
    with pytest.raises(Corrupt, match=r"inbox\.damaged"):
        decode_messages(messages_key(9), record)


@pytest.mark.parametrize(("other", "hint"), [(1, "then begin a new folder"), (3, "or a newer one")])
def test_an_inbox_of_another_release_is_refused_and_stays_as_it_is(opened, folder, other, hint):
    inbox = opened()
    inbox.append([b"1"]).result()
    written = documents.encode(inbox.description)
    inbox.close()
    body = written[len(b'{"body":') : written.rindex(b',"sha256"')].replace(b'"version":2', b'"version":%d' % other)
    rocks = Rocks(folder / "messages", OWNER)
    rocks.write([(b"d", seal(body))])
    before = list(rocks.scan(b"", b"\xff"))
    rocks.close()
    with pytest.raises(
        Unsupported, match=r"inbox\.unsupported.*description document of the inbox has version"
    ) as refused:
        opened()
    assert refused.value.hint is not None and hint in refused.value.hint
    rocks = Rocks(folder / "messages", OWNER, read_only=True)
    assert list(rocks.scan(b"", b"\xff")) == before
    rocks.close()


# --- damage


def damaged(folder: Path, file: Path, bit: int) -> Path:
    copy = folder.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    path = copy / file.relative_to(folder)
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return copy


def same_or_error(copy: Path, expected: list[bytes], uid: str) -> str:
    """Read a damaged inbox as a pipeline and as a receiver do: all there, or an error."""
    told = []
    try:
        chunks = read_messages(copy, uid, 0, len(expected), patience_s=0)
        assert [message.content for chunk in chunks for message in chunk] == expected
    except SlackwaterError as error:
        told.append(error.code)
    try:
        inbox = Inbox(copy)
        try:
            assert (inbox.description.uid, inbox.description.last) == (uid, len(expected))
        finally:
            inbox.close()
        chunks = read_messages(copy, uid, 0, len(expected), patience_s=0)
        assert [message.content for chunk in chunks for message in chunk] == expected
    except SlackwaterError as error:
        told.append(error.code)
    return " ".join(told)


@pytest.mark.parametrize("kind", ["log", "sst"])
def test_a_flipped_bit_is_an_error_and_never_fewer_messages(opened, folder, kind):
    inbox = opened()
    expected = [b"message %d" % number for number in range(60)]
    for at in range(0, 60, 6):
        inbox.append(expected[at : at + 6], key=b"%d" % at).result()
    uid = inbox.description.uid
    if kind == "log":
        folder = Path(shutil.copytree(folder, folder.with_name("killed")))  # a close makes a table of the log
    inbox.close()
    file = max((folder / "messages").glob(f"*.{kind}"), key=lambda path: path.stat().st_size)
    bits = file.stat().st_size * 8
    told = [same_or_error(damaged(folder, file, bit), expected, uid) for bit in range(3, bits, bits // 60)]
    print(f"{sum(map(bool, told))} of {len(told)} flips were told: {sorted(set(told))}")
    assert sum(map(bool, told)) > len(told) // 2
