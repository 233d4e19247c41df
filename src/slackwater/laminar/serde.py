"""JSON as LaminarDB's serde types read and write it: typed, in the order of their fields, pretty with two spaces.

What ``#[serde(default)]`` lets pass in silence is a fatal finding here: a field that is missing would otherwise read as
an empty checkpoint. So are unknown fields and keys that come twice, of which serde keeps one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from ..errors import Corrupt, InvalidInput, Unsupported
from .findings import Findings

# LaminarDB's manifest carries its small states in base64, as many as there are (C15): more room than ours has.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Kind(Protocol):
    """One type of LaminarDB: reads a value that came from JSON, and writes it back."""

    def read(self, value: Any, where: str, findings: Findings) -> Any: ...

    def write(self, value: Any, where: str) -> Any: ...


class Scalar(msgspec.Struct, frozen=True):
    """A value that is the same in JSON."""

    name: str
    fits: Callable[[Any], bool]

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        return value if self.fits(value) else malformed(f"{where} is not {self.name}")

    def write(self, value: Any, where: str) -> Any:
        if not self.fits(value):
            raise InvalidInput(
                f"LaminarDB's document cannot be written: {where} is not {self.name}", code="laminar.invalid"
            )
        return value


def _whole(name: str, low: int, high: int) -> Scalar:
    return Scalar(name, lambda value: type(value) is int and low <= value <= high)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


U16 = _whole("a u16", 0, 2**16 - 1)
U32 = _whole("a u32", 0, 2**32 - 1)
U64 = _whole("a u64", 0, 2**64 - 1)
I64 = _whole("an i64", -(2**63), 2**63 - 1)
TEXT = Scalar("text", _is_text)
FLAG = Scalar("true or false", lambda value: isinstance(value, bool))


class Maybe(msgspec.Struct, frozen=True):
    """``Option``: null, or the value."""

    inner: Kind

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        return None if value is None else self.inner.read(value, where, findings)

    def write(self, value: Any, where: str) -> Any:
        return None if value is None else self.inner.write(value, where)


class Many(msgspec.Struct, frozen=True):
    """``Vec``."""

    inner: Kind

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        if not isinstance(value, list):
            malformed(f"{where} is not a list")
        return [self.inner.read(item, f"{where}[{n}]", findings) for n, item in enumerate(value)]

    def write(self, value: Any, where: str) -> Any:
        return [self.inner.write(item, f"{where}[{n}]") for n, item in enumerate(value)]


class Pairs(msgspec.Struct, frozen=True):
    """``HashMap`` by text. The order is that of the file, because serde's has no meaning."""

    inner: Kind

    def read(self, value: Any, where: str, findings: Findings) -> Any:
        if not isinstance(value, dict):
            malformed(f"{where} is not a map")
        return {
            TEXT.read(key, f"a key of {where}", findings): self.inner.read(item, join(where, key), findings)
            for key, item in value.items()
        }

    def write(self, value: Any, where: str) -> Any:
        return {TEXT.write(key, where): self.inner.write(item, join(where, key)) for key, item in value.items()}


class Shape(Generic[_Struct]):
    """A struct of LaminarDB: the kinds of its fields. Those with a default in our class are serde's optional ones."""

    def __init__(self, struct: type[_Struct], **kinds: Kind) -> None:
        self._struct, self._kinds = struct, kinds
        required = {field.name for field in msgspec.structs.fields(struct) if field.required}
        self._required = required
        assert list(kinds) == list(struct.__struct_fields__), "the order of the fields is the order of the bytes"

    def read(self, value: Any, where: str, findings: Findings) -> _Struct:
        if not isinstance(value, dict):
            malformed(f"{where or 'the document'} is not an object")
        found: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            place = join(where, name)
            if name in value:
                found[name] = kind.read(value[name], place, findings)
            elif name in self._required:
                malformed(f"{place} is missing")
            else:
                findings.damaged("the field is missing; serde would read it as empty", where=place)
        for name in value:
            if name not in self._kinds:
                findings.unsupported(
                    "the field is unknown, so what it means would be lost", where=join(where, name[:80])
                )
        return self._struct(**found)

    def write(self, value: Any, where: str) -> Any:
        return {name: kind.write(getattr(value, name), join(where, name)) for name, kind in self._kinds.items()}


def decode(data: bytes, kind: Shape[_Struct], findings: Findings, *, version: int | None = None) -> _Struct:
    """Decode a document; what serde itself would refuse is an error, what it would let pass is a finding.

    One that has a version must have this one, and is asked for it before the rest.
    """
    document = parse(data, findings)
    if version is not None and (found := version_of(document)) != version:
        raise Unsupported(
            f"LaminarDB's manifest has version {found}, and those are 1 and 2",
            code="laminar.unsupported",
            hint="use the release of LaminarDB that wrote it",
        )
    return kind.read(document, "", findings)


def parse(data: bytes, findings: Findings) -> Any:
    """Parse JSON as strictly as serde_json does, and note every key that comes twice."""
    if len(data) > MAX_DOCUMENT_BYTES:
        malformed(f"it has {len(data)} bytes, the limit is {MAX_DOCUMENT_BYTES}")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            (twice, _), *_ = Counter(key for key, _ in items).most_common(1)
            findings.damaged("the key comes twice, and only one of the values would count", where=twice[:80])
        return found

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=malformed)
    except (ValueError, RecursionError) as error:
        malformed(f"it is not JSON: {str(error)[:120]}")


def encode(value: msgspec.Struct, kind: Shape[Any]) -> bytes:
    """Encode a document to the bytes of ``serde_json::to_string_pretty``; maps keep the order that they have here."""
    return json.dumps(kind.write(value, ""), indent=2, ensure_ascii=False).encode()


def encode_line(value: msgspec.Struct, kind: Shape[Any]) -> str:
    """Encode a part of a document as one line, to be kept word for word."""
    return json.dumps(kind.write(value, ""), ensure_ascii=False, separators=(",", ":"))


def version_of(document: Any) -> int | None:
    """Read the version of a parsed document, before anything else in it is looked at."""
    version = document.get("version") if isinstance(document, Mapping) else None
    return version if type(version) is int else None


def join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def malformed(what: str) -> NoReturn:
    raise Corrupt(
        f"LaminarDB's document does not decode: {what}",
        code="laminar.damaged",
        hint="slackwater verify FOLDER; LaminarDB could not read it either: restore it from a copy",
    )
