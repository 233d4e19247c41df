"""What a checkpoint of LaminarDB holds, in our terms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from ..errors import InvalidInput
from ..formats.keys import format_name
from ..formats.manifest import Origin, SourcePosition
from .findings import Findings

_MAX_COUNT = 2**53 - 1


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition, or one link of its chain: inline, or at an offset of an object of the folder.

    ``path`` is its name among the files of a checkpoint of ours; ``checkpoint`` is LaminarDB's id of whoever wrote it.
    """

    operator: str
    partition: int
    delta: bool
    path: str
    size_bytes: int
    sha256: str
    checkpoint: str
    inline: bytes | None = None
    offset: int = 0


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of LaminarDB. Its pieces are in order: by operator, by partition, each from its snapshot on."""

    origin: Origin
    watermark_ms: int
    sources: dict[str, SourcePosition]
    source_watermarks: dict[str, str]
    table_offsets: dict[str, SourcePosition]
    table_store_path: str | None
    sink_epochs: dict[str, int]
    vnode_count: int | None
    pieces: list[Piece]

    @property
    def operators(self) -> dict[str, dict[int, list[Piece]]]:
        """The pieces by operator and partition."""
        found: dict[str, dict[int, list[Piece]]] = {}
        for piece in self.pieces:
            found.setdefault(piece.operator, {}).setdefault(piece.partition, []).append(piece)
        return found


def piece_path(operator: str, partition: int, checkpoint: str, *, delta: bool) -> str:
    """Name a piece among the files of a checkpoint; the checkpoint's own id keeps the links of a chain apart."""
    return f"{partition_path(operator, partition)}/{checkpoint}.{'delta' if delta else 'snap'}"


def partition_path(operator: str, partition: int) -> str:
    return f"operators/{format_name(operator)}/{partition}"


# --- what both manifests are checked for


def check_count(value: int, where: str, findings: Findings) -> None:
    """A number that no JSON tool keeps cannot be carried on (C12)."""
    if value > _MAX_COUNT:
        findings.fatal(
            "the number is above 2^53 - 1 and cannot be carried on", code="laminar.inconsistent", where=where
        )


def check_positive(value: int, where: str, findings: Findings) -> None:
    if value == 0:
        findings.fatal("it is 0, and counts from 1", code="laminar.inconsistent", where=where)
    check_count(value, where, findings)


def check_time(value: int, where: str, findings: Findings) -> None:
    """A clock that could not be read gives 0; nothing is decided by it."""
    if value == 0:
        findings.warn("it is 0: the clock could not be read", code="laminar.unusual", where=where)
    check_count(value, where, findings)


def check_watermark(value: int | None, findings: Findings) -> None:
    if value is not None and not 0 <= value <= _MAX_COUNT:
        findings.fatal(
            "a watermark before 1970, or past 2^53 - 1 ms, cannot be carried on",
            code="laminar.inconsistent",
            where="watermark",
        )


def check_names(names: Iterable[str], where: str, findings: Findings) -> None:
    """Names become one component of a path each; LaminarDB's are joined as they are (A10)."""
    for name in names:
        try:
            fits = bool(format_name(name)) and len(name) <= 200
        except InvalidInput:
            fits = False
        if not fits:
            findings.fatal(
                "it is empty, made of dots, too long, or has control characters",
                code="laminar.inconsistent",
                where=f"{where}.{name[:60]!r}",
            )


def check_epoch(epoch: int, newest: int, where: str, findings: Findings) -> None:
    """The epoch that an entry repeats must not be another than the manifest's (A14)."""
    if epoch > newest:
        findings.fatal(f"it belongs to epoch {epoch}, after epoch {newest}", code="laminar.inconsistent", where=where)
    elif epoch < newest:
        findings.warn(f"it belongs to epoch {epoch}, before epoch {newest}", code="laminar.unusual", where=where)


_WITHOUT_TOPIC = re.compile(r"partition-[0-9]+")


def check_offsets(source_type: str, offsets: Mapping[str, str], where: str, findings: Findings) -> None:
    """Two spellings of Kafka's partitions exist: LaminarDB's documents leave the topic out, connectors do not (C13)."""
    if source_type == "kafka" and any(_WITHOUT_TOPIC.fullmatch(key) for key in offsets):
        findings.note(
            "the keys do not name the topic; they are carried on as they are",
            code="laminar.unusual",
            where=where,
        )


def unprotected(findings: Findings) -> None:
    """Nothing vouches for LaminarDB's manifest itself (A8, C4): every one has this finding."""
    findings.warn(
        "the manifest has no digest: a changed offset, watermark or inline byte cannot be noticed",
        code="laminar.unverifiable",
        where="manifest",
    )
