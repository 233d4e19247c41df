"""Identifiers: UUIDv7 checkpoint ids, random append ids, SHA-256 digests, bounded numbers."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from ..errors import InvalidInput

_UUID7 = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z"

# A checkpoint's name: time-ordered for people, but never what orders checkpoints (epochs do).
CheckpointId = Annotated[str, Meta(pattern=_UUID7)]
# One append to the log, the same for all its tries; also the pipeline's uid. 128 random bits in hex.
RandomId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
# Whole numbers stay below 2^53, so that no JSON tool alters them; wider values are written as strings.
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


def parse_checkpoint_id(text: str) -> str:
    """Parse the canonical text of a UUIDv7.

    >>> parse_checkpoint_id("0192d3f0-7b7c-7000-8000-0123456789ab")
    '0192d3f0-7b7c-7000-8000-0123456789ab'
    """
    if not re.match(_UUID7, text):
        raise InvalidInput(f"{text[:60]!r} is not a checkpoint id (a lower-case UUIDv7)", code="ref.invalid")
    return text
