"""What an undo does to a Delta table: the version to go back to, or why there is none."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from deltalake import DeltaTable
from pyarrow.fs import FileType

from ...errors import Conflict, NotFound
from ..staging_sink import format_output, format_undone, undo_refused
from .schema import APPEND_ONLY
from .table import Table, TableFile, files_of

HARMLESS = ("commitInfo", "txn")


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """The files that go and come when the table goes back to ``version``, and the epochs that are taken back."""

    version: int
    epochs: int
    go: list[TableFile]
    come: list[TableFile]


def plan(table: Table, loaded: DeltaTable, app: str, to_epoch: int) -> Undo | None:
    """Plan to take back what ``app`` has committed after ``to_epoch``; None when no file differs."""
    if (loaded.transaction_version(app) or 0) <= to_epoch:
        return None
    first, epochs = _first_undone(table, loaded, app, to_epoch)
    before = table.at(first - 1)
    if before is None:
        raise _log_gone(table, first - 1)
    now, then = files_of(loaded), files_of(before)
    come = sorted(then.keys() - now.keys())
    if not come and not now.keys() - then.keys():
        return None
    if loaded.metadata().configuration.get(APPEND_ONLY) == "true":
        raise undo_refused(f"the table {table.url} is append-only")
    if gone := [info.path for info in table.files.get_file_info(come) if info.type == FileType.NotFound]:
        raise undo_refused(f"{len(gone)} files have to come back into {table.url} and are gone, the first is {gone[0]}")
    go = [file for path, file in now.items() if path not in then]
    return Undo(version=first - 1, epochs=epochs, go=go, come=[then[path] for path in come])


def describe(undo: Undo | None) -> str:
    """Say what an undo would take back, and what comes back."""
    if undo is None:
        return "nothing"
    text = format_undone(len(undo.go), _rows(undo.go), undo.epochs)
    come = format_output(len(undo.come), _rows(undo.come))
    return f"{text}; {come} of before come back" if undo.come else text


def _rows(files: list[TableFile]) -> int | None:
    counts = [file.rows for file in files if file.rows is not None]
    return sum(counts) if len(counts) == len(files) else None


def _first_undone(table: Table, loaded: DeltaTable, app: str, to_epoch: int) -> tuple[int, int]:
    """Find the oldest version of ours after ``to_epoch``, and how many epochs since then are still in the table."""
    first = epochs = 0
    standing = loaded.version()
    for version in range(loaded.version(), 0, -1):
        actions = _read(table, version)
        ours = [action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == app]
        if ours and ours[0] <= to_epoch:
            break
        if ours:
            first = version
            if version <= standing:
                # What an earlier undo took back, and the undo itself, are no epochs that are there.
                standing = min(standing, _restored(actions, version))
                epochs += standing >= version and _changes(actions)
        elif _changes(actions):
            then = table.at(version)
            if then is None:
                raise _log_gone(table, version)
            if (then.transaction_version(app) or 0) <= to_epoch:
                break
            raise undo_refused(f"somebody else has changed {table.url} since: {_signature(version, actions)}")
    return first, epochs


def _read(table: Table, version: int) -> list[dict[str, Any]]:
    try:
        data = table.target.store.get(f"_delta_log/{version:020d}.json")
    except NotFound:
        raise _log_gone(table, version) from None
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        raise undo_refused(f"version {version} of {table.url} does not decode") from None


def _changes(actions: list[dict[str, Any]]) -> bool:
    """Tell whether a version changes rows or columns; a compaction, for one, does not."""
    return any(
        body.get("dataChange", True) if name in ("add", "remove") else name not in HARMLESS
        for action in actions
        for name, body in action.items()
    )


def _info(actions: list[dict[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _restored(actions: list[dict[str, Any]], version: int) -> int:
    """Tell the version whose files this one has again; itself, when it is not the restore of another."""
    with suppress(KeyError, TypeError, ValueError):
        info = _info(actions)
        if info["operation"] == "RESTORE":
            return int(info["operationParameters"]["version"])
    return version


def _signature(version: int, actions: list[dict[str, Any]]) -> str:
    info = _info(actions)
    made_at_ms = info.get("timestamp")
    when = f", {datetime.fromtimestamp(made_at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if made_at_ms else ""
    return f"version {version}, {info.get('operation', 'an unknown operation')}{when}"


def _log_gone(table: Table, version: int) -> Conflict:
    return undo_refused(f"the log of {table.url} no longer goes back to version {version}")
