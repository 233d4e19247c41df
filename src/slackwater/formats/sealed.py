"""Sealed documents: ``{"body": …, "sha256": …}``, canonical JSON with the digest of the body's own bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ..errors import SlackwaterError, Unsupported
from .ids import Sha256

T = TypeVar("T")

_HINT = "use the release that wrote it, or a newer one"


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body: msgspec.Raw
    sha256: Sha256


class _Versioned(msgspec.Struct):
    version: int


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_version_decoder = msgspec.json.Decoder(_Versioned)


def seal(body: bytes) -> bytes:
    """Seal a document that is already JSON.

    >>> seal(b"{}")
    b'{"body":{},"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}'
    """
    return msgspec.json.encode(_Envelope(body=msgspec.Raw(body), sha256=hashlib.sha256(body).hexdigest()))


def digest(data: bytes) -> str:
    """Read the digest that a sealed document carries."""
    return _envelope_decoder.decode(data).sha256


def encode(document: msgspec.Struct) -> bytes:
    """Encode a document to canonical, sealed bytes."""
    return seal(msgspec.json.encode(document, order="sorted"))


def decode(
    data: bytes,
    kind: type[T],
    *,
    version: int,
    what: str,
    damaged: Callable[[str], SlackwaterError],
    unknown_code: str = "format.unknown_version",
    older_hint: str = _HINT,
) -> T:
    """Decode a sealed document, whole or not at all; an error begins with ``what`` it is."""
    try:
        body = bytes(_envelope_decoder.decode(data).body)
        # The bytes are canonical and hold their own digest, so to seal them again is to check them.
        if seal(body) != data:
            raise damaged(f"{what} does not match its own digest")
        found = _version_decoder.decode(body).version
        if found != version:
            raise unknown_version(
                what, found, version, code=unknown_code, hint=_HINT if found > version else older_hint
            )
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(f"{what} does not decode: {error}") from None


def unknown_version(what: str, version: int, known: int, *, code: str, hint: str = _HINT) -> Unsupported:
    """Refuse what another release has written."""
    return Unsupported(f"{what} has version {version}, this release reads {known}", code=code, hint=hint)
