"""Which change of the merchants' risk each checkpoint holds, noted while it is live."""

from __future__ import annotations

from pathlib import Path

from demo.merchants import FEED, parse_change
from slackwater.errors import Corrupt, NotFound
from slackwater.ops.pipelines import read_pipeline
from slackwater.protocol.verified_reads import load_manifest

_NOTES = "versions"


def note(folder: Path) -> None:
    """Note it for each live checkpoint that has no note: its manifest goes when retention deletes the checkpoint."""
    notes = folder / _NOTES
    notes.mkdir(exist_ok=True)
    try:
        pipeline = read_pipeline(str(folder / "store" / "payments"))
    except NotFound:
        return  # A driver that failed early has left none.
    for entry in pipeline.state.live:
        if (notes / entry.checkpoint_id).exists():
            continue
        try:
            manifest = load_manifest(pipeline.store, entry)
        except Corrupt as error:
            # Deleted since the log was read: rows of a checkpoint without a note are told to be amiss.
            if error.code == "manifest.missing":
                continue
            raise
        if (position := manifest.table_offsets.get(FEED)) is not None:
            (notes / entry.checkpoint_id).write_text(position.offsets["file"])


def held(folder: Path) -> dict[str, int]:
    """Read the notes: the change that a checkpoint holds, by its id."""
    return {path.name: parse_change(path.read_text()) for path in (folder / _NOTES).iterdir()}
