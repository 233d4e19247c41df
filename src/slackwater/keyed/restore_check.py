"""Checks a keyed state that was restored into a directory: does it open, and is it what was checkpointed?"""

from __future__ import annotations

from pathlib import Path

from ..errors import Corrupt
from ..formats.manifest import Manifest
from .capture import STATE, folder_of, read_snapshot
from .documents import DESCRIPTION_FILE
from .state import KeyedState


def check_restored(directory: Path, manifest: Manifest) -> None:
    """See that the files of a checkpoint are a keyed state that opens, and is what its description says."""
    folder = directory / folder_of(STATE)
    if manifest.vnode_count is None or not (folder / DESCRIPTION_FILE).is_file():
        raise Corrupt(
            f"checkpoint {manifest.checkpoint_id} holds no keyed state",
            code="keyed.damaged",
            hint="slackwater verify URL --read-data",
        )
    restored = set(folder.iterdir())
    check_keyed(folder, manifest.vnode_count)
    for left in set(folder.iterdir()) - restored:  # RocksDB's binding has noted how it was opened
        left.unlink()


def check_keyed(folder: Path, vnode_count: int) -> None:
    """See that a keyed state that was written out of a checkpoint opens, and is what its description says."""
    expected = read_snapshot(folder)
    state = KeyedState(folder, vnode_count=vnode_count, read_only=True)
    try:
        if (state.description, state.wal_position) != (expected.state, expected.wal_position):
            raise Corrupt(
                f"the keyed state in {folder} is not the one that was checkpointed",
                code="keyed.damaged",
                hint="slackwater verify URL --read-data",
            )
    finally:
        state.close()
