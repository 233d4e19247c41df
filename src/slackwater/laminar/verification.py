"""Verification of a LaminarDB folder: is everything there that its checkpoints need, with its right bytes?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from ..errors import SlackwaterError, Unavailable
from ..parallel import OnProgress
from . import lcb1, manifest_v1
from .findings import Findings, Severity
from .folder import Folder, LaminarCheckpoint, artifact_key, read_sidecar
from .manifest_v1 import CheckpointManifest
from .manifest_v2 import CheckpointManifestV2, PartitionSnapshotEntry


class FolderFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, and the checkpoint that has it; None when it is the folder's or a batch's."""

    checkpoint_id: str | None
    severity: Severity
    code: str
    where: str
    message: str


class FolderVerification(msgspec.Struct, frozen=True, kw_only=True):
    checkpoints: list[str]
    batches: int
    objects: int
    read_bytes: int
    findings: list[FolderFinding]

    @property
    def sound(self) -> bool:
        return all(finding.severity != "fatal" for finding in self.findings)


def findings_of(folder: Folder, checkpoints: Iterable[LaminarCheckpoint]) -> list[FolderFinding]:
    """List the findings of the folder itself, then those of the checkpoints."""
    found = _named(None, folder.findings)
    for checkpoint in checkpoints:
        found += _named(checkpoint.checkpoint_id, checkpoint.findings)
    return found


def verify_folder(
    folder: Folder,
    checkpoints: Iterable[LaminarCheckpoint],
    *,
    read_data: bool = False,
    progress: OnProgress | None = None,
) -> FolderVerification:
    """Report what is wrong with the checkpoints and with the batches; or, reading all, with their bytes too."""
    checkpoints = list(checkpoints)
    findings = findings_of(folder, checkpoints)
    needs = {checkpoint.checkpoint_id: _objects(folder, checkpoint) for checkpoint in checkpoints}
    keys = {key for objects in needs.values() for key in objects}
    total = sum(folder.sizes.get(key, 0) for key in {*keys, *folder.batches})
    read_bytes = 0
    if read_data:
        for checkpoint in checkpoints:
            wrong = _read(folder, checkpoint, needs[checkpoint.checkpoint_id])
            findings += _named(checkpoint.checkpoint_id, wrong)
            if checkpoint.kind != "incremental":  # which has no digest to compare with
                read_bytes += sum(folder.sizes[key] for key in needs[checkpoint.checkpoint_id])
            if progress is not None:
                progress(read_bytes, total)
        for key in folder.batches:
            findings += _named(None, _read_batch(folder, key))
            read_bytes += folder.sizes[key]
    return FolderVerification(
        checkpoints=[checkpoint.checkpoint_id for checkpoint in checkpoints],
        batches=len(folder.batches),
        objects=len(keys) + len(folder.batches),
        read_bytes=read_bytes,
        findings=findings,
    )


def _named(checkpoint_id: str | None, findings: Iterable[msgspec.Struct]) -> list[FolderFinding]:
    return [FolderFinding(checkpoint_id=checkpoint_id, **msgspec.structs.asdict(finding)) for finding in findings]


def _objects(folder: Folder, checkpoint: LaminarCheckpoint) -> dict[str, PartitionSnapshotEntry | None]:
    """Name the objects of a checkpoint that are there, each with what its manifest says of it."""
    document = checkpoint.document
    found: dict[str, PartitionSnapshotEntry | None] = {}
    if isinstance(document, CheckpointManifestV2):
        for name, operator in document.operators.items():
            for entry in operator.partitions:
                key = artifact_key(folder.sizes, checkpoint.place, document.checkpoint_id, name, entry)
                if key is not None:
                    found[key] = entry
    elif checkpoint.place.sidecar in folder.sizes:
        found[checkpoint.place.sidecar] = None
    return found


def _read(folder: Folder, checkpoint: LaminarCheckpoint, objects: dict[str, PartitionSnapshotEntry | None]) -> Findings:
    findings = Findings()
    document = checkpoint.document
    try:
        if isinstance(document, CheckpointManifest) and objects:
            manifest_v1.check_sidecar(document, read_sidecar(folder, checkpoint), findings)
        for key, entry in objects.items():
            if entry is None or entry.sha256 is None or folder.sizes[key] != entry.size_bytes:
                continue  # Another finding says so.
            data = folder.store.get(key, max_bytes=entry.size_bytes)
            if hashlib.sha256(data).hexdigest() != entry.sha256.lower():
                findings.damaged("its SHA-256 is not the one that the manifest names", where=key)
    except SlackwaterError as error:
        _unless_away(error, checkpoint.place.document, findings)
    return findings


def _read_batch(folder: Folder, key: str) -> Findings:
    findings = Findings()
    try:
        data = folder.store.get(key, max_bytes=lcb1.MAX_BATCH_BYTES + lcb1.HEADER_BYTES)
        _, found = lcb1.decode(data, allow_unchecked=True)
    except SlackwaterError as error:
        _unless_away(error, key, findings)
    else:
        for finding in found:
            findings.append(msgspec.structs.replace(finding, where=key))
    return findings


def _unless_away(error: SlackwaterError, where: str, findings: Findings) -> None:
    if isinstance(error, Unavailable):
        raise error
    findings.damaged(f"it could not be read: {error.message}", where=where)
