"""Local files outlast a power loss, and one module alone syncs them."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import slackwater
from slackwater.store import files

PACKAGE = Path(slackwater.__file__).parent
SYNCS = {"fsync", "fdatasync", "sync_file_range", "syncfs"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed, by the names that it has then."""
    made: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        made.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        made.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    return made


def test_one_module_alone_syncs_to_disk() -> None:
    naming = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
            if named in SYNCS:
                naming.add(str(path.relative_to(PACKAGE)))
    assert naming == {"store/files.py"}


def test_a_file_is_replaced_once_it_is_synced_and_its_folder_after_that(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"old")
    files.replace_file(path, b"new one")
    (first, unfinished), *rest = calls
    assert first == "sync" and unfinished.startswith(".document.") and unfinished.endswith(".tmp")
    assert rest == [("replace", "document"), ("sync", tmp_path.name)]
    assert path.read_bytes() == b"new one" and os.listdir(tmp_path) == ["document"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        files.replace_file(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["document"]


def test_what_a_killed_writer_of_a_file_has_left_is_removed_and_no_others(tmp_path: Path) -> None:
    for name in (".document.1.2.tmp", ".document2.1.2.tmp", "document.1.2.tmp", ".document"):
        (tmp_path / name).write_bytes(b"half")
    files.remove_unfinished(tmp_path / "document")
    assert sorted(os.listdir(tmp_path)) == [".document", ".document2.1.2.tmp", "document.1.2.tmp"]


@pytest.mark.parametrize(("content", "in_place"), [(b"123", True), (b"12", False), (b"1234", False), (None, False)])
def test_a_file_is_written_over_in_place_only_where_that_is_no_change_of_size(
    tmp_path: Path, calls: list[tuple[str, str]], content: bytes | None, in_place: bool
) -> None:
    path = tmp_path / "document"
    if content is not None:
        path.write_bytes(content)
    before = path.stat().st_ino if content is not None else None
    files.overwrite_file(path, b"abc")
    assert path.read_bytes() == b"abc"
    assert (path.stat().st_ino == before) == in_place and (calls == []) == in_place


@pytest.mark.parametrize("sync", [files.sync_file, files.sync_overwritten])
def test_what_is_to_be_synced_must_be_there(tmp_path: Path, sync: Callable[[Path], None]) -> None:
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "gone")


def test_a_folder_is_made_with_all_above_it_and_each_name_is_synced(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert calls == [("sync", tmp_path.name), ("sync", "a")]
