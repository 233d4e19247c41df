"""A checkpoint of a keyed state, written into a directory as a database that opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import Corrupt, InvalidInput
from ..formats.manifest import Manifest
from ..protocol.artifacts import Held
from ..protocol.recovery import restore
from ..settings import Settings
from ..store import Store
from ..store.files import remove_folder, sync_folder, write_file
from .capture import STATE, check_keyed, folder_of
from .errors import disk_errors
from .format import DESCRIPTION_FILE


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


def restore_into(store: Store, manifest: Manifest, directory: Path, settings: Settings) -> None:
    """Write a checkpoint into a directory that is new or empty; it has its name only when it is whole."""
    partial = directory.with_name(f".{directory.name}.{manifest.checkpoint_id}.partial")
    with disk_errors(directory):
        try:
            remove_folder(partial)
            write_checkpoint(store, manifest, partial, settings)
            partial.rename(directory)
            sync_folder(directory.parent)
        finally:
            remove_folder(partial)


def write_checkpoint(store: Store, manifest: Manifest, directory: Path, settings: Settings) -> dict[str, Held]:
    """Write the files of a checkpoint below a directory, verified and synced, and see that the database opens."""
    folders = {directory}

    def write(path: str, parts: Iterator[bytes]) -> None:
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, parts)
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
        sync_folder(folder)
    return {path: held for path, held in holdings.items() if path.startswith(f"{here}/")}
