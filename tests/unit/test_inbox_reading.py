"""What readers of an inbox are told, and read: every position once, or an error, whatever happens to the file."""

from __future__ import annotations

import errno
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slackwater.errors import Corrupt, NotFound
from slackwater.inboxes import documents
from slackwater.inboxes.documents import PUBLISHED_FILE, Published
from slackwater.inboxes.files import read_published
from slackwater.inboxes.group_commit import Appended
from slackwater.inboxes.reader import check_range, read_messages
from slackwater.rocks.wal import SECTOR_BYTES
from tests.inboxes import drop, wait_until


def test_what_is_written_in_place_fits_into_a_sector_of_a_disk():
    most = 2**53 - 1
    assert len(documents.encode(Published(inbox=32 * "f", position=most, dropped=most))) <= SECTOR_BYTES


def test_a_reader_who_sees_half_of_what_is_being_written_looks_again(opened, folder, monkeypatch):
    inbox = opened()
    inbox.append([b"1"]).result()
    inbox.close()  # it would mend the file
    path = folder / PUBLISHED_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"#" * (len(whole) - 60))
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: path.write_bytes(whole))
        assert read_published(folder).position == 1
    path.write_bytes(whole[:60])
    with pytest.raises(Corrupt, match=r"inbox\.damaged"):
        read_published(folder)


def test_what_readers_are_told_is_written_in_place_and_replaced_when_it_gets_longer(opened, folder):
    inbox, path = opened(), folder / PUBLISHED_FILE
    files = []
    with open(path, "rb"):  # so that no other file gets its number
        for position in range(1, 12):
            inbox.append([b"x"]).result()
            files.append(path.stat().st_ino)
            assert documents.decode(path.read_bytes(), Published).position == position
    assert len(set(files[:9])) == len(set(files[9:])) == 1 and files[8] != files[9]


@pytest.mark.parametrize("act", ["removed", "replaced", "moved"])
def test_readers_are_told_though_the_file_is_not_the_one_that_was_written_before(opened, folder, act):
    inbox, path = opened(), folder / PUBLISHED_FILE
    inbox.append([b"1"]).result()
    if act == "replaced":
        shutil.copy(path, folder / "copy")
        os.replace(folder / "copy", path)
    else:
        path.unlink() if act == "removed" else path.rename(folder.parent / "elsewhere")
    inbox.append([b"2"]).result()
    assert read_published(folder).position == 2


@pytest.mark.parametrize("act", ["removed", "put back"])
def test_readers_are_told_again_though_nothing_comes_any_more(opened, folder, act):
    inbox, path = opened(), folder / PUBLISHED_FILE
    older = path.read_bytes()
    inbox.append([b"1"]).result()
    path.unlink() if act == "removed" else path.write_bytes(older)
    wait_until(lambda: path.exists() and read_published(folder).position == 1)


def test_what_readers_are_told_is_brought_to_the_disk_within_seconds(opened, folder, monkeypatch):
    synced: list[tuple[int, bytes]] = []
    fdatasync = os.fdatasync

    def note(descriptor: int) -> None:
        fdatasync(descriptor)
        synced.append((os.fstat(descriptor).st_ino, (folder / PUBLISHED_FILE).read_bytes()))

    monkeypatch.setattr(os, "fdatasync", note)
    inbox, began = opened(), time.monotonic()
    while time.monotonic() < began + 2.5:
        inbox.append([b"x"] * 10).result()
    last = documents.encode(inbox._writer._durable)
    wait_until(lambda: bool(synced) and synced[-1] == ((folder / PUBLISHED_FILE).stat().st_ino, last))
    assert 2 <= len(synced) <= 5, "not with every message"


def test_a_receiver_does_not_pass_over_half_of_what_readers_were_told(opened, folder):
    inbox = opened()
    inbox.append([b"1"]).result()
    inbox.close()
    path = folder / PUBLISHED_FILE
    path.write_bytes(path.read_bytes()[:100] + bytes(96))
    with pytest.raises(Corrupt, match=r"inbox\.damaged.*position\.json") as refused:
        opened()
    assert refused.value.hint is not None and "delete that file" in refused.value.hint
    path.unlink()
    assert opened().append([b"2"]).result() == Appended(2, 2)


def test_messages_are_taken_while_readers_cannot_be_told_of_them_and_then_they_are(opened, folder, monkeypatch, caplog):
    inbox = opened()
    inbox.append([b"x"] * 8).result()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        for position in range(9, 14):  # 10 is a digit longer than 9
            assert inbox.append([b"x"]).result() == Appended(position, position)
            assert read_published(folder).position == 9
        time.sleep(0.6)  # it has looked around, more than once
        assert inbox.append([b"x"]).result() == Appended(14, 14) and inbox.hindrance is None
    assert caplog.text.count("readers are not told") == 1
    wait_until(lambda: read_published(folder).position == 14)


def test_readers_are_told_though_the_disk_is_full(opened, folder, monkeypatch):
    inbox = opened()
    inbox.append([b"1"]).result()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    inbox.append([b"2"]).result()
    assert read_published(folder).position == 2


def test_a_reader_follows_a_receiver_that_writes_flushes_and_drops_under_it(opened, folder):
    inbox = opened()
    read = 0

    def write() -> None:
        for number in range(400):
            last = inbox.append([b"%d" % number + bytes(100_000)]).result().last
            if number % 50 == 49:
                # A slow reader is none that has lost something: what it has not read stays.
                drop(inbox, max(0, min(last - 200, read)))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not (writing.done() and read == 400):
            if writing.done():
                writing.result()  # else a writer that has failed would be waited for
            published = read_published(folder)
            for chunk in read_messages(folder, published.inbox, read, published.position):
                for message in chunk:
                    assert (message.position, message.content[:3].rstrip(b"\0")) == (read + 1, b"%d" % read)
                    read += 1


def test_another_inbox_or_an_older_copy_in_its_place_is_refused(tmp_path):
    published = Published(inbox=32 * "a", position=10, dropped=4)
    check_range(tmp_path, published, 32 * "a", 4, 10)
    with pytest.raises(Corrupt, match=r"inbox\.swapped"):
        check_range(tmp_path, published, 32 * "b", 4)
    with pytest.raises(NotFound, match=r"inbox\.dropped"):
        check_range(tmp_path, published, 32 * "a", 3)
    with pytest.raises(Corrupt, match=r"inbox\.damaged.*ends at"):
        check_range(tmp_path, published, 32 * "a", 11)
    with pytest.raises(Corrupt, match=r"inbox\.damaged.*ends at"):
        check_range(tmp_path, published, 32 * "a", 4, 11)


def test_a_folder_without_an_inbox_and_documents_that_are_none_are_refused(opened, folder, tmp_path):
    with pytest.raises(NotFound, match=r"inbox\.not_found.*there is no"):
        read_published(tmp_path)
    opened().close()
    path = folder / PUBLISHED_FILE
    path.write_bytes(path.read_bytes().replace(b'"dropped":0', b'"dropped":1'))
    with pytest.raises(Corrupt, match=r"inbox\.damaged"):
        read_published(folder)


def test_a_reader_of_an_inbox_that_was_wiped_and_began_anew_is_told(opened, folder):
    inbox = opened()
    inbox.append([b"1", b"2"]).result()
    inbox.close()
    published = read_published(folder)
    shutil.rmtree(folder)
    fresh = opened()
    fresh.append([b"x", b"y", b"z"]).result()
    with pytest.raises(Corrupt, match=r"inbox\.swapped"):
        list(read_messages(folder, published.inbox, 0, 2))
