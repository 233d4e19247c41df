"""A write to a folder on disk is durable when it returns, proven from the recorded order of its system calls."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import Unavailable
from slackwater.store import disk, files, open_store
from slackwater.store.disk import Disk
from slackwater.store.verbs import HIDDEN


class Recorder:
    """The ``os`` module, with a note of every call that changes what a disk holds, by inode."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.begin = 0

    def begin_here(self) -> None:
        """Say that the call under test comes next."""
        self.begin = len(self.events)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _at(self, path: str, dir_fd: int | None) -> tuple[int, str]:
        folder = os.stat(os.path.dirname(path)) if dir_fd is None else os.fstat(dir_fd)
        return folder.st_ino, os.path.basename(path)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            self.events.append(("name", *self._at(path, dir_fd), os.fstat(descriptor).st_ino))
        return descriptor

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=dir_fd)
        self.events.append(("name", *self._at(path, dir_fd), os.stat(path, dir_fd=dir_fd).st_ino))

    def write(self, descriptor: int, data: Any) -> int:
        self.events.append(("write", os.fstat(descriptor).st_ino))
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        status = os.fstat(descriptor)
        self.events.append(("sync folder" if stat.S_ISDIR(status.st_mode) else "sync file", status.st_ino))

    def link(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.events.append(("name", *self._at(target, dst_dir_fd), os.stat(source, dir_fd=src_dir_fd).st_ino))

    def rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        inode = os.stat(source, dir_fd=src_dir_fd).st_ino
        os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.events.append(("rename", *self._at(source, src_dir_fd), *self._at(target, dst_dir_fd), inode))

    def unlink(self, path: str, *, dir_fd: int) -> None:
        os.unlink(path, dir_fd=dir_fd)
        self.events.append(("unname", *self._at(path, dir_fd)))

    def rmdir(self, path: str, *, dir_fd: int) -> None:
        inode = os.stat(path, dir_fd=dir_fd).st_ino
        os.rmdir(path, dir_fd=dir_fd)
        self.events.append(("rmdir", *self._at(path, dir_fd), inode))


class Disc:
    """What a power failure leaves: names as of their folder's last sync, contents as of their file's last sync."""

    def __init__(self) -> None:
        self.names: dict[int, dict[str, int]] = {}
        self.synced_names: dict[int, dict[str, int]] = {}
        self.dirty: set[int] = set()

    def replay(self, events: list[tuple[Any, ...]]) -> list[str]:
        """Replay the calls and say which objects had a visible name while their bytes were not safe."""
        torn = []
        for verb, *arguments in events:
            if verb == "name":
                folder, name, inode = arguments
                self.names.setdefault(folder, {})[name] = inode
            elif verb == "unname":
                self.names[arguments[0]].pop(arguments[1])
            elif verb == "rename":
                source, old, target, name, inode = arguments
                self.names.setdefault(source, {}).pop(old, None)
                self.names.setdefault(target, {})[name] = inode
            elif verb == "rmdir":  # taken to be durable at once: the worse case for whoever relies on the folder
                folder, name, inode = arguments
                for names in (self.names, self.synced_names):
                    names.get(folder, {}).pop(name, None)
                    names.pop(inode, None)
            elif verb == "write":
                self.dirty.add(arguments[0])
            elif verb == "sync file":
                self.dirty.discard(arguments[0])
            else:
                self.synced_names[arguments[0]] = dict(self.names.get(arguments[0], {}))
            if verb in ("name", "rename") and arguments[-1] in self.dirty and not HIDDEN.fullmatch(arguments[-2]):
                torn.append(arguments[-2])
        return torn

    def survivors(self, base: int) -> set[str]:
        """Name the whole files that can be reached from ``base`` after the power is back."""
        found = set()
        for name, inode in self.synced_names.get(base, {}).items():
            if inode in self.synced_names or inode in self.names:
                found |= {f"{name}/{below}" for below in self.survivors(inode)}
            elif inode not in self.dirty and not HIDDEN.fullmatch(name):
                found.add(name)
        return found


def violations(events: list[tuple[Any, ...]], base: Path, safe: set[str]) -> list[str]:
    """Say what is wrong, at the end of ``events``, with a disk that must hold exactly ``safe`` below ``base``."""
    disc = Disc()
    torn = disc.replay(events)
    survivors = disc.survivors(base.stat().st_ino)
    return [*(f"torn {name}" for name in torn), *(f"differs {name}" for name in sorted(survivors ^ safe))]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    for module in (disk, files):
        monkeypatch.setattr(module, "os", recorder)
    return recorder


# Each scenario returns what must have survived when its last call returned.


def put_below_new_folders(disk: Disk, _: Recorder, __: Path) -> set[str]:
    disk.put("log/deep/1", [b"a", b"b"])
    return {"new/root/log/deep/1"}


def create_below_new_folders(disk: Disk, _: Recorder, __: Path) -> set[str]:
    assert disk.create("log/deep/1", [b"a"]) is True
    return {"new/root/log/deep/1"}


def put_into_a_folder_of_ours(disk: Disk, recorder: Recorder, __: Path) -> set[str]:
    disk.put("log/1", [b"a"])
    recorder.begin_here()
    disk.put("log/2", [b"b"])
    return {"new/root/log/1", "new/root/log/2"}


def create_a_taken_name(disk: Disk, recorder: Recorder, root: Path) -> set[str]:
    """The winner died between its link and its sync; whoever hears that the name is taken may rely on it."""
    disk.put("log/0", [b"a"])
    file = recorder.open(str(root / "log" / "1"), os.O_CREAT | os.O_WRONLY)
    recorder.events.append(("sync file", os.fstat(file).st_ino))
    os.close(file)
    recorder.begin_here()
    assert disk.create("log/1", [b"b"]) is False
    return {"new/root/log/0", "new/root/log/1"}


def put_into_folders_that_nobody_synced(disk: Disk, recorder: Recorder, root: Path) -> set[str]:
    """Whoever made the folders died before it could sync their names."""
    for folder in (root.parent, root, root / "log"):
        recorder.mkdir(str(folder))
    recorder.events.append(("sync folder", root.parent.parent.stat().st_ino))
    recorder.begin_here()
    disk.put("log/1", [b"a"])
    return {"new/root/log/1"}


def put_into_a_folder_pruned_by_us_and_made_by_another(disk: Disk, recorder: Recorder, root: Path) -> set[str]:
    disk.put("keep", [b"a"])
    disk.put("log/1", [b"a"])
    disk.delete(["log/1"])
    recorder.mkdir(str(root / "log"))
    recorder.begin_here()
    disk.put("log/2", [b"b"])
    return {"new/root/keep", "new/root/log/2"}


def move_what_nobody_synced(disk: Disk, recorder: Recorder, root: Path) -> set[str]:
    disk.put("staged/keep", [b"a"])
    file = recorder.open(str(root / "staged" / "x"), os.O_CREAT | os.O_WRONLY)
    recorder.write(file, b"by a program that does not sync")
    os.close(file)
    recorder.events.append(("sync folder", (root / "staged").stat().st_ino))
    recorder.begin_here()
    disk.move("staged/x", "published/x")
    return {"new/root/staged/keep", "new/root/published/x"}


def move_again_after_a_crash(disk: Disk, recorder: Recorder, root: Path) -> set[str]:
    disk.put("published/y", [b"a"])
    file = recorder.open(str(root / "published" / "x"), os.O_CREAT | os.O_WRONLY)
    os.close(file)
    recorder.begin_here()
    disk.move("staged/x", "published/x")
    return {"new/root/published/x", "new/root/published/y"}


# Scenario, how many files and folders its last call syncs, how many of those syncs it could do without.
SCENARIOS = [
    (put_below_new_folders, 1, 5, 0),
    (create_below_new_folders, 1, 5, 0),
    (put_into_a_folder_of_ours, 1, 1, 0),
    (create_a_taken_name, 1, 1, 1),  # the loser's own file, as it turns out
    (put_into_folders_that_nobody_synced, 1, 3, 0),
    (put_into_a_folder_pruned_by_us_and_made_by_another, 1, 2, 0),
    (move_what_nobody_synced, 1, 3, 0),
    (move_again_after_a_crash, 0, 1, 0),
]


@pytest.mark.parametrize(
    ("scenario", "files", "folders", "spare"), SCENARIOS, ids=lambda it: getattr(it, "__name__", "")
)
def test_a_write_survives_a_power_failure_because_of_each_of_its_syncs(
    *, scenario, files, folders, spare, recorder, tmp_path
) -> None:
    root = tmp_path / "new" / "root"
    safe = scenario(Disk(str(root)), recorder, root)
    events = recorder.events
    assert violations(events, tmp_path, safe) == []

    syncs = [index for index in range(recorder.begin, len(events)) if events[index][0].startswith("sync")]
    verbs = [events[index][0] for index in syncs]
    assert (verbs.count("sync file"), verbs.count("sync folder")) == (files, folders)
    without_one = [violations(events[:index] + events[index + 1 :], tmp_path, safe) for index in syncs]
    assert without_one.count([]) == spare


@pytest.mark.parametrize(("verb", "publication"), [("put", ["rename"]), ("create", ["name", "unname"])])
def test_the_calls_of_a_write_come_in_this_order(verb, publication, recorder, tmp_path) -> None:
    disk = Disk(str(tmp_path))
    getattr(disk, verb)("folder/first", [b"x"])
    made = [event[0] for event in recorder.events]
    assert made[:4] == [
        "sync folder",
        "name",
        "sync folder",
        "name",
    ]  # root's parent, mkdir, its parent, temporary file
    recorder.events.clear()
    getattr(disk, verb)("folder/second", [b"1", b"2"])
    assert [event[0] for event in recorder.events] == [
        "name",
        "write",
        "write",
        "sync file",
        *publication,
        "sync folder",
    ]
    temporary = recorder.events[0][2]
    assert HIDDEN.fullmatch(temporary)
    assert sorted(os.listdir(tmp_path / "folder")) == ["first", "second"]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
KILLED = """
import os, signal, stat, sys
from slackwater.store import files, open_store
class Dying:
    def __getattr__(self, name): return getattr(os, name)
    def fsync(self, descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode): os.kill(os.getpid(), signal.SIGKILL)
        os.fsync(descriptor)
files.os = Dying()
getattr(open_store(sys.argv[1]), sys.argv[2])("log/1", b"half")
"""


@pytest.mark.parametrize("verb", ["put", "create"])
def test_what_a_killed_writer_leaves_is_invisible_and_in_nobodys_way(verb: str, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), verb], check=False, env=ENVIRONMENT)
    assert killed.returncode == -9
    (left,) = os.listdir(tmp_path / "log")
    assert HIDDEN.fullmatch(left)

    store = open_store(str(tmp_path))
    assert store.list("") == []
    assert store.create("log/1", b"whole") is True
    store.put("log/1", b"over")
    assert [listed.key for listed in store.list("")] == ["log/1"]
    store.delete(["log/1"])
    assert store.list("") == []
    assert os.listdir(tmp_path / "log") == [left], "nobody but a start may take it for a killed writer's"

    assert store.remove_unfinished("checkpoints/") == 0 and store.remove_unfinished("lo/") == 0
    assert os.listdir(tmp_path / "log") == [left]
    assert store.remove_unfinished("log/") == 1
    assert store.remove_unfinished("log/") == 0
    assert os.listdir(tmp_path) == [], "and the folder that it kept from being empty"


def test_a_leftover_of_obstore_is_invisible_too(tmp_path: Path) -> None:
    (tmp_path / "part.parquet#1").write_bytes(b"half")
    assert open_store(str(tmp_path)).list("") == []


@pytest.mark.parametrize("links", [1, 2], ids=["as on btrfs", "as on some network file systems"])
def test_folders_are_told_from_objects_where_the_file_system_does_not_count_their_links(
    links: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Uncounted:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fstat(self, descriptor: int) -> os.stat_result:
            found = os.fstat(descriptor)
            return os.stat_result((*found[:3], links if stat.S_ISDIR(found.st_mode) else found.st_nlink, *found[4:]))

    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for name in ("object", "folder/object", "folder/inner/.a.0123456789abcdef.tmp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    monkeypatch.setattr(disk, "os", Uncounted())
    store = open_store(str(tmp_path))
    assert store.list_names("") == ["link", "object"] and store.list_names("", after="link") == ["object"]
    assert store.remove_unfinished("") == 1
    assert os.listdir(tmp_path / "folder") == ["object"]


def test_a_failed_sync_of_the_folder_leaves_the_outcome_open_and_no_temporary_file(
    recorder, monkeypatch, tmp_path
) -> None:
    store = open_store(str(tmp_path))
    store.put("log/1", b"old")

    def fail_on_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "injected")
        os.fsync(descriptor)

    monkeypatch.setattr(recorder, "fsync", fail_on_folders)
    for write in (lambda: store.put("log/1", b"new"), lambda: store.create("log/2", b"new")):
        with pytest.raises(Unavailable) as caught:
            write()
        assert caught.value.code == "store.unavailable"
    assert not [name for name in os.listdir(tmp_path / "log") if HIDDEN.fullmatch(name)]


def test_folders_can_be_pruned_beside_writers_in_other_processes(tmp_path: Path) -> None:
    program = """
import sys
from slackwater.store import open_store
store = open_store(sys.argv[1])
for number in range(150):
    key = f"same/deep/{sys.argv[2]}"
    store.put(key, b"x")
    assert store.get(key) == b"x"
    store.move(key, f"other/deep/{sys.argv[2]}")
    store.delete([f"other/deep/{sys.argv[2]}"])
"""
    commands = [[sys.executable, "-c", program, str(tmp_path), str(number)] for number in range(4)]
    workers = [subprocess.Popen(command, env=ENVIRONMENT) for command in commands]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0, 0]
    assert open_store(str(tmp_path)).list("") == []
