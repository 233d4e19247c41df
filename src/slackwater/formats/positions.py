"""Where a checkpoint stands in its sources; for inboxes also how much may be dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from .manifest import SourcePosition

KIND = "inbox"
# In a source's metadata: up to here its messages may be gone, whatever older checkpoints need.
_ACKNOWLEDGED = "acknowledged"


def text_position(source_type: str, offsets: Mapping[str, str]) -> SourcePosition:
    """Make the position of a source that says where it stands in plain texts.

    >>> text_position("program", {"row": "7"}).verbatim
    '{"row":"7"}'
    """
    plain = dict(offsets)
    verbatim = msgspec.json.encode(plain, order="sorted").decode()
    return SourcePosition(source_type=source_type, offsets=plain, verbatim=verbatim, metadata={})


def positions_of(sources: Mapping[str, SourcePosition]) -> dict[str, int]:
    """Find where a checkpoint stands in each inbox; read twice, an inbox stands where the slower one does."""
    found: dict[str, int] = {}
    for inbox, position, _ in _inboxes(sources):
        found[inbox] = min(position, found.get(inbox, position))
    return found


def acknowledged_of(sources: Mapping[str, SourcePosition]) -> dict[str, int]:
    """Find up to where each inbox may have dropped what is older than this checkpoint; only those that may have."""
    found: dict[str, int] = {}
    for inbox, _, source in _inboxes(sources):
        if (position := source.metadata.get(_ACKNOWLEDGED, "")).isdecimal():
            found[inbox] = max(int(position), found.get(inbox, 0))
    return found


def note_acknowledged(
    sources: Mapping[str, SourcePosition], acknowledged: Mapping[str, int]
) -> dict[str, SourcePosition]:
    """Note with each inbox up to where it may drop, or has."""
    noted = dict(sources)
    for name, source in sources.items():
        inbox = source.offsets.get("inbox", "")
        if source.source_type == KIND and inbox in acknowledged:
            metadata = {**source.metadata, _ACKNOWLEDGED: str(acknowledged[inbox])}
            noted[name] = msgspec.structs.replace(source, metadata=metadata)
    return noted


def _inboxes(sources: Mapping[str, SourcePosition]) -> Iterator[tuple[str, int, SourcePosition]]:
    for source in sources.values():
        inbox, position = source.offsets.get("inbox"), source.offsets.get("position", "")
        if source.source_type == KIND and inbox is not None and position.isdecimal():
            yield inbox, int(position), source
