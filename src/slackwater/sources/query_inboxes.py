"""Inboxes that a query reads: which they are, and whether its pipeline may go on with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import Conflict
from ..formats.manifest import Manifest
from ..formats.positions import KIND, positions_of
from ..inboxes.documents import COVERED_FILE
from ..inboxes.files import read_covered, read_published
from ..inboxes.reader import check_range
from ..spark.logical import leaves_of, source_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Where the inboxes are that this program has opened, by their uids: no others may be written to.
_opened: dict[str, Path] = {}


def remember(inbox: str, folder: Path) -> None:
    """Note that this program reads an inbox."""
    _opened[inbox] = folder


def inboxes_of(frame: DataFrame) -> dict[str, Path]:
    """Find the inboxes that a streaming DataFrame reads, of those that this program has opened."""
    streams = [leaf for leaf in leaves_of(frame) if leaf.isStreaming()]
    sources = [leaf for leaf in streams if leaf.nodeName().startswith("StreamingRelation")]
    uids = [str(leaf.extraOptions().get("inbox")) for leaf in sources if source_type(leaf) == KIND]
    return {uid: _opened[uid] for uid in uids if uid in _opened}


def refuse_others(inboxes: Mapping[str, Path], pipeline: str | None) -> None:
    """Refuse an inbox that another pipeline reads: it may have what the one has not covered dropped by the other."""
    for folder in inboxes.values():
        covered = read_covered(folder)
        if covered is not None and covered.pipeline != pipeline:
            raise Conflict(
                f"the inbox in {folder} is read by another pipeline, which has covered position {covered.position}",
                code="inbox.other_pipeline",
                hint="give each pipeline an inbox of its own; if the other one is gone for good, delete "
                f"{folder / COVERED_FILE}",
            )


def refuse_dropped(inboxes: Mapping[str, Path], head: Manifest) -> None:
    """Refuse to go on from a checkpoint whose next messages an inbox has dropped, or may drop at any time.

    Before the claim: sinks would take back the rows of epochs whose messages are gone.
    """
    for inbox, position in positions_of(head.source_offsets).items():
        if inbox in inboxes:
            published, covered = read_published(inboxes[inbox]), read_covered(inboxes[inbox])
            dropped = max(published.dropped, covered.position if covered else 0)
            published = msgspec.structs.replace(published, dropped=dropped)
            check_range(inboxes[inbox], published, inbox, position)
