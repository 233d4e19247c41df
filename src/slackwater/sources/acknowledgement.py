"""Acknowledge sources, rule 9: an inbox may drop what the oldest live checkpoint covers, or, told so, the newest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import Conflict, SlackwaterError
from ..failpoints import reach
from ..formats.manifest import Manifest, SourcePosition
from ..formats.positions import KIND, note_acknowledged, positions_of
from ..formats.state import LiveCheckpoint, State
from ..inboxes.documents import COVERED_FILE, Covered
from ..inboxes.files import read_covered, read_published, write_covered
from ..inboxes.reader import check_range
from ..protocol.recovery import load_manifest
from ..spark.logical import listed, source_type
from ..store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("slackwater")

# Up to which live checkpoint sources are acknowledged.
UpTo = Literal["oldest", "newest"]
# Where the inboxes are that this program has opened, by their uids: no others may be written to.
_opened: dict[str, Path] = {}


def remember(inbox: str, folder: Path) -> None:
    """Note that this program reads an inbox."""
    _opened[inbox] = folder


def inboxes_of(frame: DataFrame) -> dict[str, Path]:
    """Find the inboxes that a streaming DataFrame reads, of those that this program has opened."""
    leaves: list[Any] = listed(frame._jdf.queryExecution().analyzed().collectLeaves())
    sources = [leaf for leaf in leaves if leaf.isStreaming() and leaf.nodeName().startswith("StreamingRelation")]
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


class Acknowledgements:
    """Tells the inboxes of one pipeline what its live checkpoints do not need any more.

    Up to the ``newest``: what is before it. Every checkpoint says so of itself, and no rollback goes past it.
    """

    def __init__(
        self,
        store: Store,
        inboxes: Mapping[str, Path],
        *,
        up_to: UpTo = "oldest",
        acknowledged: Mapping[str, int] | None = None,
    ) -> None:
        self._store, self._inboxes, self._up_to = store, inboxes, up_to
        # What the head's line has let go before, beyond what the oldest live checkpoint covers.
        self._acknowledged = dict(acknowledged or {})
        # Where each checkpoint stands in each inbox; manifests never change.
        self._known: dict[str, dict[str, int]] = {}
        self._said: dict[str, int] = {}

    def note(self, sources: Mapping[str, SourcePosition]) -> dict[str, SourcePosition]:
        """Note in a checkpoint that is being made what will be let go once it counts, and what was before."""
        if self._up_to == "newest":
            self._acknowledged |= {i: p for i, p in positions_of(sources).items() if p > self._acknowledged.get(i, 0)}
        return note_acknowledged(sources, self._acknowledged)

    def know(self, checkpoint_id: str, sources: Mapping[str, SourcePosition]) -> None:
        """Take the word of who has just made the checkpoint."""
        if self._inboxes:
            self._known[checkpoint_id] = positions_of(sources)

    def acknowledge(self, state: State) -> SlackwaterError | None:
        """Tell each inbox; return what hindered it, which is tried again with the next epoch."""
        try:
            for inbox, folder in self._inboxes.items():
                self._tell(inbox, folder, state)
        except SlackwaterError as error:
            logger.warning("what is covered was not acknowledged yet: %s", error)
            return error
        return None

    def _tell(self, inbox: str, folder: Path, state: State) -> None:
        position = self._covered(inbox, state)
        if position is None:
            position = read_published(folder).dropped
        if position <= self._said.get(inbox, -1):
            return
        refuse_others({inbox: folder}, state.uid)
        covered = read_covered(folder)
        if covered is None or covered.position < position:
            write_covered(folder, Covered(inbox=inbox, position=position, pipeline=state.uid))
            reach("acknowledge.after")
        self._said[inbox] = position

    def _covered(self, inbox: str, state: State) -> int | None:
        """Find what all live checkpoints cover, undone ones too; None when one of them covers nothing."""
        needing = state.live if self._up_to == "oldest" else [state.head] if state.head else []
        known = [self._positions(entry).get(inbox) for entry in needing]
        ids = {entry.checkpoint_id for entry in state.live}
        self._known = {checkpoint_id: found for checkpoint_id, found in self._known.items() if checkpoint_id in ids}
        positions = [position for position in known if position is not None]
        return min(positions) if positions and len(positions) == len(known) else None

    def _positions(self, entry: LiveCheckpoint) -> dict[str, int]:
        if entry.checkpoint_id not in self._known:
            self._known[entry.checkpoint_id] = positions_of(load_manifest(self._store, entry).source_offsets)
        return self._known[entry.checkpoint_id]
