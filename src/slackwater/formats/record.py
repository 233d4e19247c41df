"""Log records: a change, and the whole state after it, as bytes that hold their own digest.

The protocol is in ``docs/spec/log.md``.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ..errors import Code, Corrupt, InvalidInput
from . import sealed
from . import state as states
from .change import Change
from .ids import Count, RandomId, Sha256
from .state import State

VERSION: Final = 1
MAX_RECORD_BYTES = 4 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    number: Count
    append_id: RandomId
    previous_sha256: Sha256 | None
    change: Change
    state: State


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """Encode a record with its own digest; one that could not be read again would end the log, and is refused."""
    try:
        body = msgspec.json.encode(record, order="sorted")
        _decoder.decode(body)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"record {record.number} could not be read again: {error}", code="checkpoint.unwritable"
        ) from None
    return sealed.seal(body)


def digest(data: bytes) -> str:
    """Read the digest that a record carries of itself."""
    return sealed.digest(data)


def decode(data: bytes, *, number: int) -> Record:
    """Decode the record that was stored under ``number``, or say that it is damaged."""
    if len(data) > MAX_RECORD_BYTES:
        raise _corrupt(number, "is larger than a record can be")
    try:
        record = sealed.unseal(data, _decoder, version=VERSION)
    except sealed.OtherVersion as other:
        raise sealed.unknown_version(f"record {number}", other.version, VERSION) from None
    except sealed.Broken as broken:
        raise _corrupt(number, str(broken)) from None
    if record.number != number:
        raise _corrupt(number, f"says that it is {record.number}")
    if contradiction := states.find_contradiction(record.state, number):
        raise _corrupt(number, f"contradicts itself: {contradiction}")
    return record


def _corrupt(number: int, what: str) -> Corrupt:
    return Corrupt(
        f"the log record {number} {what}",
        code=Code.LOG_CORRUPT,
        hint="keep the store as it is; restore log/ from a backup or a replica",
        number=number,
    )
