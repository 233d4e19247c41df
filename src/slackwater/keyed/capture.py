"""Capture: a keyed state → a part of a cut. Its tables are files that never change."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from ..errors import Corrupt
from ..formats.keys import format_name
from ..protocol.artifacts import Holdings
from ..protocol.cut import CutFile, CutOperator, CutPartition
from .documents import DESCRIPTION_FILE, FOLDER, Snapshot, decode
from .state import KeyedState

# The keyed state of a keyed pipeline, which has one.
STATE = "state"
_STORE = "rocksdb"


def folder_of(name: str) -> str:
    """Tell where the files of a keyed state are in a working directory."""
    return f"{FOLDER}/{format_name(name)}"


def operator_of(name: str) -> str:
    return f"{FOLDER}-{name}"


def read_snapshot(folder: Path) -> Snapshot:
    """Read what ``KeyedState.checkpoint`` says of what it has left in a folder."""
    return decode((folder / DESCRIPTION_FILE).read_bytes(), Snapshot)


def capture_keyed(folder: Path, name: str, held: Collection[str]) -> tuple[CutOperator, list[CutFile]]:
    """Describe what ``KeyedState.checkpoint`` has left in a folder; what ``held`` names is stored already.

    Tables are immutable under their names; what says which of them count, and how they lie, is written anew each time.
    """
    here = folder_of(name)
    snapshot = read_snapshot(folder)
    tables = [_cut(here, path) for path in sorted(folder.glob("*.sst"))]
    old = [table for table in tables if table.path in held]
    new = [table for table in tables if table.path not in held]
    current = (folder / "CURRENT").read_text(encoding="ascii").strip()
    beside = [_cut(here, folder / part) for part in ("CURRENT", current, DESCRIPTION_FILE)]
    partition = CutPartition(
        partition=0,
        path=here,
        version=snapshot.wal_position,
        unique_id=current,
        # The first of all is whole; after that, what is new is a delta to what is there.
        snapshot=old or new,
        deltas=new if old else [],
    )
    operator = CutOperator(
        name=operator_of(name), operator_id=0, operator_name=FOLDER, store=_STORE, partitions=[partition]
    )
    return operator, beside


def _cut(here: str, path: Path) -> CutFile:
    return CutFile(f"{here}/{path.name}", path, path.stat().st_size)


def check_tables(folder: Path, tables: Iterable[CutFile], held: Holdings, *, read_new: bool) -> None:
    """See that tables which are stored again are what they were: a bit that has rotted here would be stored, too.

    Those that are ``held`` have a digest. Where others are not made of such, they are read whole.
    """
    new = False
    for table in tables:
        if table.path not in held:
            new = True
        elif _digest(folder / Path(table.path).name) != held[table.path].sha256:
            raise Corrupt(
                f"the local table {table.path} is not the one that was stored before",
                code="keyed.damaged",
                hint="move the folder away: then the newest checkpoint is restored",
            )
    if new and read_new:
        state = KeyedState(folder, vnode_count=read_snapshot(folder).state.vnode_count, read_only=True, cached=False)
        try:
            for _ in state.scan():
                pass
        finally:
            state.close()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
