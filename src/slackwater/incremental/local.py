"""The local folder of a keyed pipeline: a database that goes on where it is, or gives way to the newest checkpoint.

``state/`` is the database. Beside it, for a moment: ``incoming/``, which is being restored; ``outgoing/``, which has
given way; ``cut/``, which is being checkpointed. ``FOLDER`` names the folder in the log's claims.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from ..artifacts import Held
from ..errors import Conflict, Corrupt, InvalidInput, Unavailable
from ..failpoints import reach
from ..formats.changes import Claim
from ..formats.keyed import DESCRIPTION_FILE, Lineage
from ..formats.manifest import Manifest
from ..formats.states import State
from ..lost import read_record
from ..ownership import KEYED
from ..recovery import restore
from ..settings import Settings
from ..store import Store
from ..world import World, this_process
from .cut import check_keyed, folder_of
from .keyed import KeyedState
from .metadata import STATE
from .rocks import LOCK, lock_folder

_NAME, _UNNAMED = "FOLDER", "FOLDER.tmp"
_TOKEN = re.compile(r"[0-9a-f]{16}")
_CLAIMED = re.compile(rf".* {KEYED} ({_TOKEN.pattern})")


class LocalFolder:
    """The folder, locked: nobody else writes there until it is closed."""

    def __init__(self, folder: Path, world: World, *, archive_wal: bool) -> None:
        self.folder, self._archive_wal = folder, archive_wal
        self._opened: KeyedState | None = None
        with _translated(folder):
            _refuse_other(folder)
            _make_folder(folder)
            self._lock = lock_folder(folder)
            try:
                for name in ("incoming", "outgoing", "cut"):
                    _remove(folder / name)
                self.token = _read_token(folder / _NAME) or _make_token(folder / _NAME, world)
            except BaseException:
                self._lock.close()
                raise

    @property
    def driver(self) -> str:
        """How claims name this process and this folder."""
        return this_process(f"{KEYED} {self.token}")

    @property
    def database(self) -> Path:
        return self.folder / "state"

    @property
    def cut(self) -> Path:
        return self.folder / "cut"

    def open(self) -> KeyedState:
        self._opened = KeyedState(self.database, archive_wal=self._archive_wal)
        return self._opened

    def begin(self, uid: str) -> KeyedState:
        """Begin the database of a pipeline that has no checkpoint yet."""
        with _translated(self.folder):
            _make_folder(self.database)
        state = self.open()
        state.sync(state.note_lineage(Lineage(uid=uid, base_id=None, base_epoch=0, attempt_id=None)))
        return state

    def receive(self, store: Store, manifest: Manifest, settings: Settings) -> dict[str, Held]:
        """Restore a checkpoint beside the database, every byte verified and synced."""
        incoming = self.folder / "incoming"
        with _translated(self.folder):
            _remove(incoming)
            return write_checkpoint(store, manifest, incoming, settings)

    def replace(self, lineage: Lineage) -> KeyedState:
        """Let the database give way to what was restored, which says whose content it is before it has its name."""
        incoming = self.folder / "incoming" / folder_of(STATE)
        with _translated(self.folder):
            (incoming / DESCRIPTION_FILE).unlink()
            state = KeyedState(incoming)
            try:
                state.sync(state.note_lineage(lineage))
            finally:
                state.close()
            _sync_folder(incoming)
            reach("keyed.restored.after")
            self.give_way()
            incoming.rename(self.database)
            _sync_folder(self.folder)
            reach("keyed.placed.after")
            _remove(self.folder / "incoming")
        return self.open()

    def give_way(self) -> None:
        """Move the database out of the way, and remove it."""
        self._close_database()
        with _translated(self.folder):
            if self.database.exists():
                self.database.rename(self.folder / "outgoing")
                _sync_folder(self.folder)
                reach("keyed.outgoing.after")
                _remove(self.folder / "outgoing")

    def remove_cut(self) -> None:
        with _translated(self.folder):
            _remove(self.cut)

    def close(self) -> None:
        try:
            self._close_database()
        finally:
            self._lock.close()

    def _close_database(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def plan_opening(lineage: Lineage, state: State, folder: Path) -> Literal["keep", "replace"]:
    """Decide what becomes of a database: it goes on, or gives way to the head. What nobody can decide is a conflict."""
    head = state.head
    hint = f"move {folder} away, and the newest checkpoint is restored; what is only there stays there"
    if lineage.uid != state.uid:
        raise Conflict(
            f"{folder} belongs to another pipeline, or to one whose store is lost",
            code="keyed.other_pipeline",
            hint=hint,
        )
    noted = (lineage.attempt_id, lineage.base_id)
    if (lineage.base_id is None) if head is None else (head.checkpoint_id in noted):
        return "keep"
    if _was_rolled_back(lineage, state):
        return "replace"
    if lineage.base_epoch > state.epoch:
        what, hint = f"the store ends at {state.epoch}", f"was the store restored from an older copy? If so, {hint}"
    else:
        what = f"the pipeline has come to {state.epoch} elsewhere"
    raise Conflict(
        f"{folder} was last checkpointed after epoch {lineage.base_epoch}, and {what}",
        code="keyed.not_newest",
        hint=hint,
        epoch=state.epoch,
    )


def _was_rolled_back(lineage: Lineage, state: State) -> bool:
    """Tell whether nothing but rollbacks and repairs came after the checkpoint that the database goes on from."""
    known = {entry.checkpoint_id: entry for entry in state.live}
    entry = state.head
    while entry is not None and entry.rollback_to is not None and entry.parent_id is not None:
        if entry.parent_id in (lineage.attempt_id, lineage.base_id):
            return True
        # A repair forgets the records after its target, and this database's checkpoint may have been one of them.
        if entry.repair and entry.rollback_to <= lineage.base_epoch < entry.epoch:
            return True
        entry = known.get(entry.parent_id)
    return False


def refuse_opened_elsewhere(store: Store, state: State, local: LocalFolder) -> None:
    """Refuse to go on with a folder when the pipeline was opened with another one since: that may have newer writes."""
    _, record = read_record(store, state.generation)
    if record is None or not isinstance(record.change, Claim):
        return
    claimed = _CLAIMED.fullmatch(record.change.driver)
    if claimed is not None and claimed[1] != local.token:
        raise Conflict(
            f"the pipeline was opened with another folder than {local.folder} since, by {record.change.driver}",
            code="keyed.opened_elsewhere",
            hint=f"open it there, and let it checkpoint; or move {local.folder} away, and the newest checkpoint is "
            "restored; or, if that other folder has nothing that counts, open_keyed(config, take_over=True) goes on "
            "with this one",
        )


def write_checkpoint(store: Store, manifest: Manifest, directory: Path, settings: Settings) -> dict[str, Held]:
    """Write the files of a checkpoint below a directory, verified and synced, and see that the database opens."""
    folders = {directory}

    def write(path: str, parts: Iterator[bytes]) -> None:
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        folders.add(target.parent)

    directory.mkdir(parents=True)
    holdings = restore(store, manifest, settings, write)
    here = folder_of(STATE)
    if manifest.vnode_count is None or not (directory / here / DESCRIPTION_FILE).is_file():
        raise Corrupt(
            f"checkpoint {manifest.checkpoint_id} holds no keyed state",
            code="keyed.damaged",
            hint="slackwater verify URL --read-data",
        )
    check_keyed(directory / here, manifest.vnode_count)
    for folder in folders:
        _sync_folder(folder)
    return {path: held for path, held in holdings.items() if path.startswith(f"{here}/")}


def restore_into(store: Store, manifest: Manifest, directory: Path, settings: Settings) -> None:
    """Write a checkpoint into a directory that is new or empty; it has its name only when it is whole."""
    partial = directory.with_name(f".{directory.name}.{manifest.checkpoint_id}.partial")
    with _translated(directory):
        try:
            _remove(partial)
            write_checkpoint(store, manifest, partial, settings)
            partial.rename(directory)
            _sync_folder(directory.parent)
        finally:
            _remove(partial)


def check_target(directory: Path, *others: Path) -> None:
    """Refuse a directory to restore into that has something, or that lies where it would be taken for another thing."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidInput(
            f"{directory} is not empty", code="hydrate.not_empty", hint="name a directory that does not exist yet"
        )
    if any(directory.resolve().is_relative_to(other.resolve()) for other in others):
        raise InvalidInput(
            f"{directory} is inside the pipeline's own folder",
            code="option.bad_value",
            hint="name a directory elsewhere",
        )


def _refuse_other(folder: Path) -> None:
    """Refuse a folder of something else: what lies there under our names would be removed."""
    if (folder / _NAME).exists() or not folder.exists():
        return
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {LOCK, _UNNAMED}:
        raise InvalidInput(
            f"{folder} is not empty, and no keyed pipeline's",
            code="keyed.not_empty",
            hint="let wal_path name a folder that does not exist yet, or that this pipeline has made",
        )


def _read_token(path: Path) -> str | None:
    if not path.exists():
        return None
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not _TOKEN.fullmatch(text):
        raise Corrupt(
            f"{path} does not name the folder",
            code="keyed.damaged",
            hint="put it back from a copy, or move the folder away: then the newest checkpoint is restored",
        )
    return text


def _make_token(path: Path, world: World) -> str:
    token, unnamed = world.random_id()[:16], path.with_name(_UNNAMED)
    with open(unnamed, "w", encoding="ascii") as file:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    unnamed.rename(path)
    _sync_folder(path.parent)
    return token


def _make_folder(folder: Path) -> None:
    """Make a folder that is there after a power loss, too: what is in it may be synced, and nothing lead to it."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the keyed state in {folder} cannot be read or written: {error.strerror}",
            code="keyed.unavailable",
            hint="see that this user may write there and that the disk has room, then open it again",
        ) from error
