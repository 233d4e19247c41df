"""Folders of LaminarDB on the command line: what ``show`` and ``verify`` say about one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import Code, Corrupt, SlackwaterError
from .options import make_settings
from .progress_bar import progress_bar
from .text import count, format_offsets, format_size, format_time, print_fields, print_json, print_table

if TYPE_CHECKING:
    from ..laminar.findings import Finding
    from ..laminar.folder import Folder, LaminarCheckpoint
    from ..laminar.verification import FolderFinding

_INSTEAD = (Code.PIPELINE_NOT_FOUND, Code.LOG_MISSING)


def folder_instead(error: SlackwaterError, url: str, timeout_s: float) -> Folder:
    """Open what is not a pipeline as a folder of LaminarDB's; raise the error if it is not one, either."""
    from ..laminar.folder import open_folder  # noqa: PLC0415
    from ..store import open_store  # noqa: PLC0415

    folder = open_folder(open_store(url, make_settings(timeout_s))) if error.code in _INSTEAD else None
    if folder is None:
        raise error
    return folder


def show_folder(folder: Folder, ref: str, *, as_json: bool) -> None:
    from ..laminar.folder import resolve  # noqa: PLC0415
    from ..laminar.verification import findings_of  # noqa: PLC0415

    chosen = resolve(folder, ref) if folder.checkpoints else None
    findings = findings_of(folder, [chosen] if chosen else [])
    if as_json:
        print_json(
            {
                "folder": folder.url,
                "latest": folder.latest,
                "checkpoints": [_facts(checkpoint) for checkpoint in folder.checkpoints],
                "batches": [{"epoch": epoch, "key": key} for key, epoch in folder.batches.items()],
                "checkpoint": _facts(chosen) | _content(chosen) if chosen else None,
                "findings": findings,
            }
        )
        return
    print_fields(
        {
            "folder": f"{folder.url}, LaminarDB's",
            "checkpoints": str(len(folder.checkpoints)),
            "batches": str(len(folder.batches)),
            "pointer": folder.latest or "none",
        }
    )
    if folder.checkpoints:
        print()
        print_table(["CHECKPOINT", "FORMAT", ">EPOCH", "MADE", ">STATE", "PARENT", "FINDINGS"], _rows(folder))
    if chosen is not None:
        _print_content(chosen)
    _print_findings(findings)


def verify_folder(folder: Folder, ref: str | None, *, read_data: bool, as_json: bool) -> int:
    from ..laminar.folder import resolve  # noqa: PLC0415
    from ..laminar.verification import verify_folder as verify  # noqa: PLC0415

    checkpoints = folder.checkpoints if ref is None else [resolve(folder, ref)]
    with progress_bar("reading") as progress:
        result = verify(folder, checkpoints, read_data=read_data, progress=progress)
    if as_json:
        facts = {"folder": folder.url, "sound": result.sound, "read_data": read_data}
        print_json({**facts, "checkpoints": result.checkpoints, "batches": result.batches, "objects": result.objects,
                    "read_bytes": result.read_bytes, "findings": result.findings})  # fmt: skip
    else:
        _print_findings(result.findings, below=False)
        depth = f"{format_size(result.read_bytes)} read" if read_data else "sizes only: --read-data reads every byte"
        wrong = sum(finding.severity == "fatal" for finding in result.findings)
        print(
            f"{count(len(result.checkpoints), 'checkpoint')}, {count(result.objects, 'object')} ({depth}): "
            + (f"{count(wrong, 'fatal finding')}" if wrong else "sound")
        )
    return 0 if result.sound else Corrupt.exit_code


def _facts(checkpoint: LaminarCheckpoint) -> dict[str, Any]:
    names = ("kind", "checkpoint_id", "epoch", "created_at_ms", "size_bytes", "parent_id", "sound")
    facts = {name: getattr(checkpoint, name) for name in names}
    return {**facts, "form": checkpoint.place.form, "key": checkpoint.place.document}


def _content(checkpoint: LaminarCheckpoint) -> dict[str, Any]:
    """What the document says, in LaminarDB's own words; the text of a failed commit may hold secrets, and stays out."""
    import msgspec  # noqa: PLC0415

    document = msgspec.to_builtins(checkpoint.document)
    for status in (document or {}).get("sink_commit_statuses", {}).values():
        status.pop("error", None)
    for state in (document or {}).get("operator_states", {}).values():
        state.pop("state_b64", None)
    return {"document": document}


def _rows(folder: Folder) -> list[list[str]]:
    return [
        [
            checkpoint.checkpoint_id,
            checkpoint.kind + (" (beside its folder)" if checkpoint.place.form == "defective" else ""),
            "?" if checkpoint.epoch is None else str(checkpoint.epoch),
            "?" if checkpoint.created_at_ms is None else format_time(checkpoint.created_at_ms),
            format_size(checkpoint.size_bytes),
            checkpoint.parent_id or "none",
            _tally(checkpoint.findings),
        ]
        for checkpoint in folder.checkpoints
    ]


def _tally(findings: list[Finding]) -> str:
    severities = [finding.severity for finding in findings]
    counted = {severity: severities.count(severity) for severity in ("fatal", "warning", "note")}
    words = {"fatal": "fatal", "warning": "warnings", "note": "notes"}
    return ", ".join(f"{n} {words[name] if n > 1 else name}" for name, n in counted.items() if n) or "none"


def _print_content(checkpoint: LaminarCheckpoint) -> None:
    document = checkpoint.document
    sources = [_source_row(name, source) for name, source in getattr(document, "source_offsets", {}).items()]
    operators = [
        [name, str(len(operator.partitions)), format_size(sum(p.size_bytes for p in operator.partitions))]
        for name, operator in getattr(document, "operators", {}).items()
    ]
    operators += [
        [name, "1", format_size(state.external_length) if state.external else "inline"]
        for name, state in getattr(document, "operator_states", {}).items()
    ]
    for columns, rows in ((["SOURCE", "TYPE", "OFFSETS"], sources), (["OPERATOR", ">PARTITIONS", ">STATE"], operators)):
        if rows:
            print()
            print_table(columns, rows)


def _source_row(name: str, source: Any) -> list[str]:
    """Say where a source stands: an incremental checkpoint has one number, and no type."""
    from ..laminar.manifest_v1 import ConnectorCheckpoint, source_type  # noqa: PLC0415

    if isinstance(source, int):
        return [name, "?", str(source)]
    kind = source_type(source) if isinstance(source, ConnectorCheckpoint) else source.source_type
    return [name, kind, format_offsets(source.offsets)]


def _print_findings(findings: list[FolderFinding], *, below: bool = True) -> None:
    if not findings:
        return
    if below:
        print()
    rows = [[f.severity, f.code, f.checkpoint_id or "-", f.where, f.message] for f in findings]
    print_table(["SEVERITY", "CODE", "CHECKPOINT", "WHERE", "FINDING"], rows)
    if not below:
        print()
