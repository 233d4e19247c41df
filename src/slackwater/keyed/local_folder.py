"""The local folder of a keyed pipeline: the database in it, begun, replaced by a restored one, and locked.

``state/`` is the database. Beside it, for a moment: ``incoming/``, which is being restored; ``outgoing/``, which has
given way; ``cut/``, which is being checkpointed. ``FOLDER`` names the folder in the log's claims.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from ..clock import Clock, this_process
from ..errors import Corrupt, InvalidInput
from ..failpoints import reach
from ..formats.manifest import Manifest
from ..protocol.artifacts import Held
from ..protocol.directory import write_files
from ..protocol.kinds import KEYED
from ..rocks.database import LOCK, lock_folder
from ..settings import Settings
from ..store import Store
from ..store.files import make_folder, remove_folder, sync_folder, write_file
from .capture import STATE, folder_of
from .documents import DESCRIPTION_FILE, Lineage
from .errors import OWNER, disk_errors
from .restore_check import check_restored
from .state import KeyedState

# How a folder is named, in itself and in claims.
TOKEN = re.compile(r"[0-9a-f]{16}")
_NAME, _UNNAMED = "FOLDER", "FOLDER.tmp"


class LocalFolder:
    """The folder, locked: nobody else writes there until it is closed."""

    def __init__(self, folder: Path, clock: Clock, *, archive_wal: bool) -> None:
        self.folder, self._archive_wal = folder, archive_wal
        self._opened: KeyedState | None = None
        with disk_errors(folder):
            _refuse_other(folder)
            make_folder(folder)
            self._lock = lock_folder(folder, OWNER)
            try:
                for name in ("incoming", "outgoing", "cut"):
                    remove_folder(folder / name)
                self.token = _read_token(folder / _NAME) or _make_token(folder / _NAME, clock)
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
        with disk_errors(self.folder):
            make_folder(self.database)
        state = self.open()
        state.sync(state.note_lineage(Lineage(uid=uid, base_id=None, base_epoch=0, attempt_id=None)))
        return state

    def receive(self, store: Store, manifest: Manifest, settings: Settings) -> dict[str, Held]:
        """Restore a checkpoint beside the database, every byte verified and synced."""
        incoming = self.folder / "incoming"
        with disk_errors(self.folder):
            remove_folder(incoming)
            holdings = write_files(store, manifest, incoming, settings, durable=True, check=check_restored)
        return {path: held for path, held in holdings.items() if path.startswith(f"{folder_of(STATE)}/")}

    def replace(self, lineage: Lineage) -> KeyedState:
        """Let the database give way to what was restored, which says whose content it is before it has its name."""
        incoming = self.folder / "incoming" / folder_of(STATE)
        with disk_errors(self.folder):
            (incoming / DESCRIPTION_FILE).unlink()
            state = KeyedState(incoming)
            try:
                state.sync(state.note_lineage(lineage))
            finally:
                state.close()
            sync_folder(incoming)
            reach("keyed.restored.after")
            self.give_way()
            incoming.rename(self.database)
            sync_folder(self.folder)
            reach("keyed.placed.after")
            remove_folder(self.folder / "incoming")
        return self.open()

    def give_way(self) -> None:
        """Move the database out of the way, and remove it."""
        self._close_database()
        with disk_errors(self.folder):
            if self.database.exists():
                self.database.rename(self.folder / "outgoing")
                sync_folder(self.folder)
                reach("keyed.outgoing.after")
                remove_folder(self.folder / "outgoing")

    def measure(self, held: Collection[str]) -> int:
        """Tell how many bytes the database has, in its log and its tables, that the newest checkpoint does not hold."""
        names = {path.rpartition("/")[2] for path in held}
        tables = [path for path in self.database.glob("*.sst") if path.name not in names]
        return sum(path.stat().st_size for path in [*self.database.glob("*.log"), *tables])

    def remove_cut(self) -> None:
        with disk_errors(self.folder):
            remove_folder(self.cut)

    def close(self) -> None:
        try:
            self._close_database()
        finally:
            self._lock.close()

    def _close_database(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def _refuse_other(folder: Path) -> None:
    """Refuse a folder of something else: what lies there under our names would be removed."""
    if (folder / _NAME).exists() or not folder.exists():
        return
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {LOCK, _UNNAMED}:
        raise InvalidInput(
            f"{folder} is not empty, and no keyed pipeline's",
            code="folder.unusable",
            hint="let wal_path name a folder that does not exist yet, or that this pipeline has made",
        )


def _read_token(path: Path) -> str | None:
    if not path.exists():
        return None
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not TOKEN.fullmatch(text):
        raise Corrupt(
            f"{path} does not name the folder",
            code="keyed.damaged",
            hint="put it back from a copy, or move the folder away: then the newest checkpoint is restored",
        )
    return text


def _make_token(path: Path, clock: Clock) -> str:
    token, unnamed = clock.random_id()[:16], path.with_name(_UNNAMED)
    write_file(unnamed, [token.encode()])
    unnamed.rename(path)
    sync_folder(path.parent)
    return token
