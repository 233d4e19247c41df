"""A folder of LaminarDB's checkpoints, recognised by its objects and read with findings. Nothing is changed in it."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from typing import Any

import msgspec

from ..errors import Corrupt, InvalidInput, NotFound, Unsupported
from ..formats import manifest as manifests
from ..store import Store
from . import incremental, manifest_v1, manifest_v2, serde
from .findings import Finding, Findings, fatal
from .incremental import IncrementalCheckpointMetadata
from .layout import CheckpointPaths, Kind, Place, Surveyed, artifact, may_hold, object_key, survey
from .manifest_v1 import CheckpointManifest
from .manifest_v2 import CheckpointManifestV2

Document = CheckpointManifest | CheckpointManifestV2 | IncrementalCheckpointMetadata
# What is wrong with one document, as opposed to a store that does not answer.
_DAMAGE = (Corrupt, InvalidInput, NotFound, Unsupported)
_MAX_POINTER_BYTES = 4096


class LaminarCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of the folder. Without a document it could not be read, and its one finding says why."""

    place: Place
    kind: Kind
    checkpoint_id: str
    epoch: int | None = None
    created_at_ms: int | None = None
    size_bytes: int | None = None
    parent_id: str | None = None
    document: Document | None
    manifest_sha256: str
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        return not fatal(self.findings)


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of LaminarDB: its checkpoints by epoch, and what is wrong with the folder itself."""

    url: str
    store: Store
    sizes: dict[str, int]
    checkpoints: list[LaminarCheckpoint]
    batches: dict[str, int]
    latest: str | None
    findings: list[Finding]

    @property
    def newest(self) -> LaminarCheckpoint:
        """The one with the greatest epoch: neither a pointer nor an id decides that."""
        return self.checkpoints[-1]


def open_folder(store: Store) -> Folder | None:
    """Look at a folder; None when it is none of LaminarDB's."""
    if not may_hold(store.list_folders("")):
        return None
    sizes = {listed.key: listed.size_bytes for listed in store.list("")}
    found = survey(sizes)
    if any(key.startswith("log/") for key in sizes) or not (found.places or found.batches):
        return None
    places = _once(found.places)
    loaded = [_load(store, place, sizes) for place in places]
    checkpoints = [checkpoint for checkpoint in loaded if checkpoint is not None]
    # One manifest of ours makes it a pipeline's folder that has lost its log: that is another error.
    ours = any(checkpoint is None and place.name for place, checkpoint in zip(places, loaded, strict=True))
    if ours or not (checkpoints or found.batches):
        return None
    checkpoints.sort(key=lambda checkpoint: (checkpoint.epoch or 0, checkpoint.checkpoint_id))
    findings = Findings()
    _check_forms(store, found, findings)
    _check_strays(found, findings)
    latest = _read_latest(store, found, checkpoints, findings)
    return Folder(
        url=store.url,
        store=store,
        sizes=sizes,
        checkpoints=checkpoints,
        batches=found.batches,
        latest=latest,
        findings=findings,
    )


def resolve(folder: Folder, ref: str) -> LaminarCheckpoint:
    """Find a checkpoint by ``latest``, by its epoch, or by its id or the beginning of it."""
    if not folder.checkpoints:
        raise NotFound(f"{folder.url} holds batches and no checkpoint", code="checkpoint.not_found")
    if ref == "latest":
        return folder.newest
    found = [c for c in folder.checkpoints if ref in (c.checkpoint_id, str(c.epoch))]
    if not found and re.fullmatch(r"[0-9a-f-]{4,36}", ref):
        found = [c for c in folder.checkpoints if c.checkpoint_id.startswith(ref)]
    if len(found) > 1:
        raise InvalidInput(
            f"{ref!r} names {len(found)} checkpoints: {', '.join(c.checkpoint_id for c in found[:5])}",
            code="ref.invalid",
            hint="give the whole id",
        )
    if not found:
        raise NotFound(
            f"no checkpoint {ref!r} in {folder.url}", code="checkpoint.not_found", hint="slackwater show FOLDER"
        )
    return found[0]


def _once(places: list[Place]) -> list[Place]:
    """List a checkpoint once, though its manifest may be there in both forms; the documented one is taken (B12)."""
    kept: dict[tuple[str | None, str], Place] = {}
    for place in places:
        key = (place.kind, place.name)
        if key not in kept or place.form == "documented":
            kept[key] = place
    return list(kept.values())


def _load(store: Store, place: Place, sizes: dict[str, int]) -> LaminarCheckpoint | None:
    """Load one checkpoint; None when its document is none of LaminarDB's."""
    findings, kind, data = Findings(), place.kind, b""
    try:
        data = store.get(place.document, max_bytes=serde.MAX_DOCUMENT_BYTES)
        if kind != "incremental":
            version = serde.version_of(serde.parse(data, Findings()))
            if version == manifests.VERSION or (kind is None and version not in (1, 2)):
                return None
            kind = kind or ("v1" if version == 1 else "v2")
        document, findings = _decode(kind, data)
    except _DAMAGE as error:
        if kind is None or not place.name:  # A file of this name alone makes no folder of LaminarDB's.
            return None
        findings.append(Finding(code=error.code, severity="fatal", message=error.message, where=place.document))
        return _describe(place, kind, None, data, findings)
    _check_place(place, document, sizes, findings)
    return _describe(place, kind, document, data, findings)


def _decode(kind: Kind, data: bytes) -> tuple[Document, Findings]:
    if kind == "v1":
        return manifest_v1.decode(data)
    return manifest_v2.decode(data) if kind == "v2" else incremental.decode(data)


def _check_place(place: Place, document: Document, sizes: dict[str, int], findings: Findings) -> None:
    """Check what only the folder can tell: the id in the name, and the sizes of what the document names."""
    said = str(document.id if isinstance(document, IncrementalCheckpointMetadata) else document.checkpoint_id)
    if place.name and place.name != said:
        findings.damaged(f"the document says {said}, its name says {place.name}", where=place.document)
    if isinstance(document, CheckpointManifest):
        manifest_v1.check_sidecar_size(document, sizes.get(place.sidecar), findings)
    elif isinstance(document, IncrementalCheckpointMetadata):
        incremental.check_state_size(document, sizes.get(place.sidecar), findings)
    else:
        _check_artifacts(place, document, sizes, findings)


def _check_artifacts(place: Place, document: CheckpointManifestV2, sizes: dict[str, int], findings: Findings) -> None:
    seen: set[str] = set()
    for name, operator in document.operators.items():
        for partition in operator.partitions:
            where = f"operators.{name}.partition-{partition.partition_id}"
            key = artifact_key(sizes, place, document.checkpoint_id, name, partition)
            if key is None:
                findings.damaged("the object is not there", where=where)
                continue
            if key in seen:
                findings.inconsistent("another partition has the same object", where=where)
            seen.add(key)
            if sizes[key] != partition.size_bytes:
                findings.damaged(f"{key} has {sizes[key]} bytes, not {partition.size_bytes}", where=where)


def artifact_key(
    sizes: dict[str, int],
    place: Place,
    checkpoint_id: str,
    operator: str,
    partition: manifest_v2.PartitionSnapshotEntry,
) -> str | None:
    """Find the object of a partition, in the folder or beside it; None when it is not there.

    The manifest's own path only says which of its checkpoint's artifacts is meant: it is never followed (B11).
    """
    rest = artifact(operator, partition.partition_id, delta=partition.is_delta)
    base = place.inside.rstrip("/").removesuffix(checkpoint_id)
    for form in ("documented", "defective"):
        paths = CheckpointPaths(base, "documented" if form == "documented" else "defective")
        key = object_key(paths.manifest(checkpoint_id).removesuffix("manifest.json") + rest)
        if key in sizes:
            return key
    # A checkpoint's own folder, looked at by itself.
    alone = object_key(rest)
    return alone if not place.name and alone in sizes else None


def _describe(
    place: Place, kind: Kind, document: Document | None, data: bytes, findings: Findings
) -> LaminarCheckpoint:
    facts: dict[str, Any] = {"checkpoint_id": place.name}
    if isinstance(document, CheckpointManifestV2):
        sizes = [p.size_bytes for operator in document.operators.values() for p in operator.partitions]
        facts = {"checkpoint_id": document.checkpoint_id, "epoch": document.epoch, "parent_id": document.parent_id}
        facts |= {"created_at_ms": document.timestamp_ms, "size_bytes": sum(sizes)}
    elif isinstance(document, CheckpointManifest):
        facts = {"checkpoint_id": str(document.checkpoint_id), "epoch": document.epoch}
        facts |= {"created_at_ms": document.timestamp_ms, "size_bytes": _state_size(document)}
    elif isinstance(document, IncrementalCheckpointMetadata):
        parent = None if document.parent_id is None else str(document.parent_id)
        facts = {"checkpoint_id": str(document.id), "epoch": document.epoch, "parent_id": parent}
        facts |= {"created_at_ms": 1000 * document.timestamp, "size_bytes": document.size_bytes}
    return LaminarCheckpoint(
        place=place,
        kind=kind,
        document=document,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        findings=findings,
        **facts,
    )


def _state_size(document: CheckpointManifest) -> int:
    total = 0
    for state in document.operator_states.values():
        with suppress(Corrupt):
            place = state.place()
            total += len(place) if isinstance(place, bytes) else place.length
    return total


def _check_forms(store: Store, found: Surveyed, findings: Findings) -> None:
    documents: dict[str, list[Place]] = {}
    for place in found.places:
        if place.kind == "v2":
            documents.setdefault(place.name, []).append(place)
    for name, places in documents.items():
        if len(places) > 1 and _differ(store, places):
            findings.damaged(
                f"checkpoint {name} has two manifests, {places[0].document} and {places[1].document}, that differ",
                where=name,
            )
    defective = sum(place.form == "defective" for place in found.places)
    if defective:
        findings.note(
            f"{defective} of the checkpoints lie beside their folders: LaminarDB joins paths without a slash", where="/"
        )


def _differ(store: Store, places: list[Place]) -> bool:
    return len({store.get(place.document, max_bytes=serde.MAX_DOCUMENT_BYTES) for place in places}) > 1


def _check_strays(found: Surveyed, findings: Findings) -> None:
    for key in found.strays[:20]:
        findings.warn("its name is none that LaminarDB gives to a checkpoint", where=key)
    for name in found.partial[:20]:
        findings.warn("the checkpoint was begun and has no document", where=name)


def _read_latest(store: Store, found: Surveyed, checkpoints: list[LaminarCheckpoint], findings: Findings) -> str | None:
    """Read the pointer, strictly, as a hint: what it says is compared with what is there, and decides nothing (B8)."""
    latest = None
    for key in found.pointers:
        text = ""
        with suppress(*_DAMAGE):
            text = store.get(key, max_bytes=_MAX_POINTER_BYTES).decode("utf-8", "replace").strip()
        match = re.fullmatch(r"(?:checkpoint_0*)?([0-9]+|[0-9a-f-]{36})|\{\s*\"checkpoint_id\":\s*([0-9]+)\s*\}", text)
        latest = next(filter(None, match.groups()), None) if match else None
        named = [c for c in checkpoints if c.checkpoint_id == latest]
        if not named:
            findings.warn("it names no checkpoint of the folder; the newest is found without it", where=key)
        elif named[0] is not checkpoints[-1]:
            findings.note("it does not name the checkpoint of the greatest epoch", where=key)
    return latest


def read_sidecar(folder: Folder, checkpoint: LaminarCheckpoint) -> bytes:
    """Read ``state.bin`` whole: its digest covers all of it or nothing (C5)."""
    if not isinstance(checkpoint.document, CheckpointManifest) or not manifest_v1.has_sidecar(checkpoint.document):
        return b""
    return folder.store.get(checkpoint.place.sidecar, max_bytes=manifest_v1.MAX_SIDECAR_BYTES)
