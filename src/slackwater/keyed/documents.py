"""The documents of a keyed state: what is known of it as a whole, and which checkpoint it goes on from."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..errors import Corrupt, InvalidInput
from ..formats import sealed
from ..formats.ids import CheckpointId, Count, Name, RandomId

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


def figures_of(snapshot: Snapshot) -> Figures:
    return Figures(
        key_count=snapshot.state.key_count,
        wal_position=snapshot.wal_position,
        watermark_ms=snapshot.state.watermark_ms,
    )


Document = Description | Snapshot | Lineage | Figures
T = TypeVar("T", Description, Snapshot, Lineage, Figures)

_decoders: dict[type, msgspec.json.Decoder[Document]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Description, Snapshot, Lineage, Figures)
}


def encode(document: Document) -> bytes:
    """Encode to canonical, sealed bytes; what could not be read again is refused.

    >>> encode(Description(vnode_count=256, key_count=0, watermark_ms=None, offsets={}))[:47]
    b'{"body":{"key_count":0,"offsets":{},"version":1'
    """
    try:
        body = msgspec.json.encode(document, order="sorted")
        _decoders[type(document)].decode(body)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"the offsets or the watermark could not be read again: {error}",
            code="state.invalid",
            hint="offsets are texts by name, by source; a watermark is milliseconds since 1970",
        ) from None
    data = sealed.seal(body)
    if len(data) > MAX_DESCRIPTION_BYTES:
        raise InvalidInput(
            f"the offsets of a keyed state take {len(data)} bytes, the limit is {MAX_DESCRIPTION_BYTES}",
            code="state.invalid",
        )
    return data


def decode(data: bytes, kind: type[T]) -> T:
    """Decode what ``encode`` gave, whole or not at all."""
    try:
        return sealed.unseal(data, _decoders[kind], version=VERSION)  # type: ignore[return-value]
    except sealed.Broken as error:
        raise Corrupt(f"a document of a keyed state ({kind.__name__.lower()}) {error}", code="keyed.damaged") from None
    except sealed.OtherVersion as error:
        raise sealed.unknown_version("the keyed state", error.version, VERSION) from None


def is_keyed(path: str) -> bool:
    """Tell the files of keyed states from Spark's."""
    return path.startswith(f"{FOLDER}/")
