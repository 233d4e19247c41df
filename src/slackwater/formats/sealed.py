"""Sealed documents: ``{"body": …, "sha256": …}``, canonical JSON with the digest of the body's own bytes."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from ..errors import Unsupported
from .ids import Sha256

T = TypeVar("T")


class Broken(ValueError):
    """What was read is not what was written; the text says how that shows."""


class OtherVersion(ValueError):
    """The document is whole, and of a version that this release does not read."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


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


def unseal(data: bytes, decoder: msgspec.json.Decoder[T], *, version: int) -> T:
    """Decode a sealed document, whole or not at all."""
    try:
        body = bytes(_envelope_decoder.decode(data).body)
        # The bytes are canonical and hold their own digest, so to seal them again is to check them.
        if seal(body) != data:
            raise Broken("does not match its own digest")
        found = _version_decoder.decode(body).version
        if found != version:
            raise OtherVersion(found)
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(f"does not decode: {error}") from None


def unknown_version(what: str, version: int, known: int) -> Unsupported:
    """Refuse what another release has written."""
    return Unsupported(
        f"{what} has version {version}, this release reads {known}",
        code="format.unknown_version",
        hint="use the release that wrote it, or a newer one",
    )
