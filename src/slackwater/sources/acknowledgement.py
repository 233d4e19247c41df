"""Acknowledgement: inboxes are told what checkpoints cover, and may drop it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ..errors import SlackwaterError
from ..failpoints import reach
from ..formats.manifest import SourcePosition
from ..formats.positions import note_acknowledged, positions_of
from ..formats.state import LiveCheckpoint, State
from ..inboxes.documents import Covered
from ..inboxes.files import read_covered, read_published, write_covered
from ..protocol.verified_reads import load_manifest
from ..store import Store
from .query_inboxes import refuse_others

logger = logging.getLogger("slackwater")

# Up to which live checkpoint sources are acknowledged.
UpTo = Literal["oldest", "newest"]


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
