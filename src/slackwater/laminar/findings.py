"""Findings: what is wrong with a document of LaminarDB that could be read all the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ..errors import Corrupt

Severity = Literal["fatal", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. Fatal: nothing may be restored from this. ``where`` is a path into the document."""

    code: str
    severity: Severity
    message: str
    where: str


class Findings(list[Finding]):
    """Findings as they are collected, in the order of the document."""

    def fatal(self, message: str, *, code: str, where: str) -> None:
        self.append(Finding(code=code, severity="fatal", message=message, where=where))

    def warn(self, message: str, *, code: str, where: str) -> None:
        self.append(Finding(code=code, severity="warning", message=message, where=where))

    def note(self, message: str, *, code: str, where: str) -> None:
        self.append(Finding(code=code, severity="note", message=message, where=where))


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
