"""What is known of a keyed state as a whole: how many keys it has, and where its sources and its watermark stand."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..errors import Corrupt, InvalidInput, Unsupported
from . import sealed
from .ids import CheckpointId, Count, Name, RandomId

VERSION: Final = 1
# Beside the tables of a keyed state in a checkpoint.
DESCRIPTION_FILE = "state.json"
# In a working directory, the folder that holds the folders of keyed states.
FOLDER = "keyed"
MAX_DESCRIPTION_BYTES = 1024 * 1024


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    vnode_count: Annotated[int, Meta(ge=1, le=65_535)]
    key_count: Count
    watermark_ms: Count | None
    offsets: dict[Name, dict[str, str]]
    version: Literal[1] = VERSION


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A keyed state at one position of its write-ahead log: all changes up to there are in it, and none after."""

    wal_position: Count
    state: Description
    version: Literal[1] = VERSION


class Lineage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which checkpoint of which pipeline a database goes on from, and which one it was last cut for.

    The attempt is written before its checkpoint can count: so a checkpoint contains its own id, and a database tells
    whether the newest one is its own.
    """

    uid: RandomId
    base_id: CheckpointId | None
    base_epoch: Count
    attempt_id: CheckpointId | None
    version: Literal[1] = VERSION


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the manifest of a keyed pipeline's checkpoint has no field for. The manifest has its digest."""

    key_count: Count
    wal_position: Count
    watermark_ms: Count | None
    version: Literal[1] = VERSION


T = TypeVar("T", Description, Snapshot, Lineage, Figures)

_decoder = msgspec.json.Decoder(Description)
_snapshot_decoder = msgspec.json.Decoder(Snapshot)
_lineage_decoder = msgspec.json.Decoder(Lineage)
_figures_decoder = msgspec.json.Decoder(Figures)


def encode_description(description: Description) -> bytes:
    """Encode to canonical, sealed bytes; what could not be read again is refused.

    >>> encode_description(Description(vnode_count=256, key_count=0, watermark_ms=None, offsets={}))[:47]
    b'{"body":{"key_count":0,"offsets":{},"version":1'
    """
    return _encode(description, _decoder)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _encode(snapshot, _snapshot_decoder)


def decode_description(data: bytes) -> Description:
    """Decode what ``encode_description`` gave, whole or not at all."""
    return _decode(data, _decoder)


def decode_snapshot(data: bytes) -> Snapshot:
    return _decode(data, _snapshot_decoder)


def encode_lineage(lineage: Lineage) -> bytes:
    return _encode(lineage, _lineage_decoder)


def decode_lineage(data: bytes) -> Lineage:
    return _decode(data, _lineage_decoder)


def encode_figures(figures: Figures) -> bytes:
    return _encode(figures, _figures_decoder)


def decode_figures(data: bytes) -> Figures:
    return _decode(data, _figures_decoder)


def _encode(document: T, decoder: msgspec.json.Decoder[T]) -> bytes:
    try:
        body = msgspec.json.encode(document, order="sorted")
        decoder.decode(body)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the offsets or the watermark could not be read again: {error}",
            code="keyed.unwritable",
            hint="offsets are texts by name, by source; a watermark is milliseconds since 1970",
        ) from None
    data = sealed.seal(body)
    if len(data) > MAX_DESCRIPTION_BYTES:
        raise InvalidInput(
            f"the offsets of a keyed state take {len(data)} bytes, the limit is {MAX_DESCRIPTION_BYTES}",
            code="keyed.unwritable",
        )
    return data


def _decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return sealed.unseal(data, decoder, version=VERSION)
    except sealed.Broken as error:
        raise Corrupt(f"the description of a keyed state {error}", code="keyed.damaged") from None
    except sealed.OtherVersion as error:
        raise Unsupported(
            f"the keyed state has version {error.version}, this release reads {VERSION}",
            code="keyed.unknown_version",
            hint="use the release that wrote it, or a newer one",
        ) from None


def is_keyed(path: str) -> bool:
    """Tell the files of keyed states from Spark's."""
    return path.startswith(f"{FOLDER}/")
