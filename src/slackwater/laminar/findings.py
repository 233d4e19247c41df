"""What is wrong with a document of LaminarDB that could be read all the same: findings, and the checks they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from ..errors import Corrupt, InvalidInput
from ..formats.keys import format_name

_MAX_COUNT = 2**53 - 1

Severity = Literal["fatal", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. Fatal: nothing may be restored from this. ``where`` is a path into the document."""

    code: str
    severity: Severity
    message: str
    where: str


class Findings(list[Finding]):
    """Findings as they are collected, in the order of the document."""

    def damaged(self, message: str, *, where: str) -> None:
        """Bytes are missing, cut or changed, or mean nothing."""
        self.append(Finding(code="laminar.damaged", severity="fatal", message=message, where=where))

    def inconsistent(self, message: str, *, where: str) -> None:
        """The document contradicts itself or the folder, as LaminarDB has written it."""
        self.append(Finding(code="laminar.inconsistent", severity="fatal", message=message, where=where))

    def unsupported(self, message: str, *, where: str) -> None:
        """It is there, and is not read or carried on."""
        self.append(Finding(code="laminar.unsupported", severity="fatal", message=message, where=where))

    def not_committed(self, message: str, *, where: str) -> None:
        """A sink may lack rows that the offsets have passed."""
        self.append(Finding(code="laminar.sink_not_committed", severity="fatal", message=message, where=where))

    def unverifiable(self, message: str, *, where: str, severity: Severity = "fatal") -> None:
        """Nothing says what the bytes must be."""
        self.append(Finding(code="laminar.unverifiable", severity=severity, message=message, where=where))

    def warn(self, message: str, *, where: str) -> None:
        """It is not as LaminarDB documents it, and decides nothing."""
        self.append(Finding(code="laminar.unusual", severity="warning", message=message, where=where))

    def note(self, message: str, *, where: str) -> None:
        self.append(Finding(code="laminar.unusual", severity="note", message=message, where=where))


def fatal(findings: Iterable[Finding]) -> list[Finding]:
    """Pick those that forbid a restore."""
    return [finding for finding in findings if finding.severity == "fatal"]


def refuse_fatal(findings: Iterable[Finding], what: str) -> None:
    """Raise when one of the findings forbids a restore."""
    wrong = fatal(findings)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Corrupt(
            f"{what} cannot be trusted: {wrong[0].where}: {wrong[0].message}{more}",
            code="laminar.refused",
            hint="slackwater verify FOLDER --read-data lists every finding",
            findings=[msgspec.structs.asdict(finding) for finding in wrong],
        )


# --- what every document is checked for


def check_count(value: int, where: str, findings: Findings) -> None:
    """A number that no JSON tool keeps cannot be carried on (C12)."""
    if value > _MAX_COUNT:
        findings.inconsistent("the number is above 2^53 - 1 and cannot be carried on", where=where)


def check_positive(value: int, where: str, findings: Findings) -> None:
    if value == 0:
        findings.inconsistent("it is 0, and counts from 1", where=where)
    check_count(value, where, findings)


def check_time(value: int, where: str, findings: Findings) -> None:
    """A clock that could not be read gives 0; nothing is decided by it."""
    if value == 0:
        findings.warn("it is 0: the clock could not be read", where=where)
    check_count(value, where, findings)


def check_watermark(value: int | None, findings: Findings) -> None:
    if value is not None and not 0 <= value <= _MAX_COUNT:
        findings.inconsistent("a watermark before 1970, or past 2^53 - 1 ms, cannot be carried on", where="watermark")


def check_names(names: Iterable[str], where: str, findings: Findings) -> None:
    """Names become one component of a path each; LaminarDB's are joined as they are (A10)."""
    for name in names:
        try:
            fits = bool(format_name(name)) and len(name) <= 200
        except InvalidInput:
            fits = False
        if not fits:
            findings.inconsistent(
                "it is empty, made of dots, too long, or has control characters", where=f"{where}.{name[:60]!r}"
            )


def check_epoch(epoch: int, newest: int, where: str, findings: Findings) -> None:
    """The epoch that an entry repeats must not be another than the manifest's (A14)."""
    if epoch > newest:
        findings.inconsistent(f"it belongs to epoch {epoch}, after epoch {newest}", where=where)
    elif epoch < newest:
        findings.warn(f"it belongs to epoch {epoch}, before epoch {newest}", where=where)


_WITHOUT_TOPIC = re.compile(r"partition-[0-9]+")


def check_offsets(source_type: str, offsets: Mapping[str, str], where: str, findings: Findings) -> None:
    """Two spellings of Kafka's partitions exist: LaminarDB's documents leave the topic out, connectors do not (C13)."""
    if source_type == "kafka" and any(_WITHOUT_TOPIC.fullmatch(key) for key in offsets):
        findings.note("the keys do not name the topic; they are carried on as they are", where=where)


def unprotected(findings: Findings) -> None:
    """Nothing vouches for LaminarDB's manifest itself (A8, C4): every one has this finding."""
    findings.unverifiable(
        "the manifest has no digest: a changed offset, watermark or inline byte cannot be noticed",
        where="manifest",
        severity="warning",
    )
