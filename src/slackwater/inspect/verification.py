"""Verification: is everything that checkpoints need there, with its right size, or with its right bytes?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from ..artifacts import in_parallel, read_batch, read_range
from ..errors import Corrupt, SlackwaterError
from ..formats import records
from ..formats.layout import CHECKPOINTS, LATEST, LOG, manifest_key, record_key, record_numbers
from ..formats.manifest import MAX_MANIFEST_BYTES, File, Manifest, Object, all_files, decode_inline
from ..formats.records import LiveCheckpoint, State
from ..recovery import DAMAGE, load_manifest
from ..settings import Settings
from ..store import Store
from .pipelines import Pipeline, open_pipeline

OnProgress = Callable[[int, int], None]  # bytes read so far, bytes to read


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: the object that has it, and the epochs that need that object. A note is no damage."""

    severity: Literal["error", "note"]
    code: str
    key: str
    epochs: list[int]
    message: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    epochs: list[int]
    objects: int
    read_bytes: int
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        return all(finding.severity != "error" for finding in self.findings)


class _Need(msgspec.Struct):
    """One object, the epochs that need it, and the files in it that their manifests name."""

    stored: Object
    epochs: list[int]
    files: dict[tuple[str, str], File]

    def fail(self, *, code: str, message: str) -> Finding:
        return Finding(severity="error", code=code, key=self.stored.key, epochs=self.epochs, message=message)


def verify(
    pipeline: Pipeline,
    entries: Iterable[LiveCheckpoint],
    *,
    read_data: bool = False,
    settings: Settings | None = None,
    progress: OnProgress | None = None,
) -> Verification:
    """Check that every object of these checkpoints is there with its right size; or, reading all, with its right bytes.

    Each object is read once, however many checkpoints need it. What a running driver retires meanwhile is no finding.
    """
    settings, entries, store = settings or Settings(), list(entries), pipeline.store
    jobs = [lambda entry=entry: _verify_manifest(pipeline, entry) for entry in entries]
    findings: list[Finding] = []
    needs: dict[Object, _Need] = {}
    for entry, (manifest, found) in zip(entries, in_parallel(jobs, settings.concurrency), strict=True):
        findings += found
        if manifest is not None:
            for stored in manifest.objects:
                needs.setdefault(stored, _Need(stored, [], {})).epochs.append(entry.epoch)
            for file in all_files(manifest):
                if file.object is not None:
                    needs[manifest.objects[file.object]].files[file.path, file.sha256] = file
    sizes = {listed.key: listed.size_bytes for listed in store.list(CHECKPOINTS)}
    sound: list[_Need] = []
    for need in needs.values():
        size = sizes.get(need.stored.key)
        if size is None:
            findings.append(need.fail(code="object.missing", message="the object is not there"))
        elif size != need.stored.size_bytes:
            findings.append(
                need.fail(code="object.wrong_size", message=f"it has {size} bytes, not {need.stored.size_bytes}")
            )
        else:
            sound.append(need)
    read_bytes = 0
    if read_data:
        read_bytes = sum(need.stored.size_bytes for need in sound)
        counted = _Counted(progress, read_bytes)
        jobs_of_data = [lambda need=need: _verify_data(store, need, counted) for need in sound]
        findings += [finding for found in in_parallel(jobs_of_data, settings.concurrency) for finding in found]
        findings += _verify_history(store, settings)
    fresh = open_pipeline(pipeline.url, settings).state
    live = {entry.epoch for entry in fresh.live}
    findings = [finding for finding in findings if not finding.epochs or live.intersection(finding.epochs)]
    return Verification(
        epochs=[entry.epoch for entry in entries],
        objects=len(needs),
        read_bytes=read_bytes,
        findings=[*findings, *_verify_pointer(store, fresh)],
    )


def _verify_manifest(pipeline: Pipeline, entry: LiveCheckpoint) -> tuple[Manifest | None, list[Finding]]:
    try:
        manifest = load_manifest(pipeline.store, entry)
        facts = (manifest.epoch, manifest.parent_id, manifest.uid)
        if facts != (entry.epoch, entry.parent_id, pipeline.state.uid):
            raise Corrupt("the manifest is of another epoch, parent or pipeline", code="manifest.wrong_place")
        for file in all_files(manifest):
            if file.inline is not None:
                decode_inline(file)
    except DAMAGE as error:
        key = manifest_key(entry.checkpoint_id)
        return None, [Finding(severity="error", code=error.code, key=key, epochs=[entry.epoch], message=error.message)]
    return manifest, []


class _Counted:
    """Bytes read so far, told from several threads."""

    def __init__(self, progress: OnProgress | None, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._done += size_bytes
            if self._progress:
                self._progress(self._done, self._total)


def _verify_data(store: Store, need: _Need, counted: _Counted) -> list[Finding]:
    findings = []
    try:
        if need.stored.kind == "batch":
            inside = {(path, sha256) for path, _, sha256 in read_batch(store, need.stored)}
            findings += [
                need.fail(code="artifact.missing", message=f"the batch does not hold {path} as the manifest names it")
                for path, sha256 in need.files
                if (path, sha256) not in inside
            ]
        else:
            for file in need.files.values():
                read_range(store, need.stored, file)
    except DAMAGE as error:
        findings.append(need.fail(code=error.code, message=error.message))
    counted.add(need.stored.size_bytes)
    return findings


def _verify_history(store: Store, settings: Settings) -> list[Finding]:
    """Check every record that is still there, and that each names the digest of the one before."""

    def read(number: int) -> tuple[records.Record, str] | Finding:
        try:
            data = store.get(record_key(number), max_bytes=records.MAX_RECORD_BYTES)
            return records.decode(data, number=number), records.digest(data)
        except DAMAGE as error:
            return _of_record(number, code=error.code, message=error.message)

    numbers = record_numbers(listed.key for listed in store.list(LOG))
    findings: list[Finding] = []
    previous: tuple[int, str] | None = None
    jobs = [lambda number=number: read(number) for number in numbers]
    for number, result in zip(numbers, in_parallel(jobs, settings.concurrency), strict=True):
        if isinstance(result, Finding):
            findings.append(result)
            previous = None
            continue
        record, digest = result
        if previous is not None and previous[0] != number - 1:
            findings.append(
                _of_record(number, code="log.gap", message=f"records {previous[0] + 1} to {number - 1} are not there")
            )
        elif previous is not None and record.previous_sha256 != previous[1]:
            findings.append(
                _of_record(number, code="log.broken_chain", message="it does not follow the record before it")
            )
        previous = number, digest
    return findings


def _of_record(number: int, *, code: str, message: str) -> Finding:
    return Finding(severity="error", code=code, key=record_key(number), epochs=[], message=message)


def _verify_pointer(store: Store, state: State) -> list[Finding]:
    expected = state.head.checkpoint_id if state.head else None
    try:
        pointer = store.get(LATEST, max_bytes=100).decode("ascii", "replace")
    except DAMAGE:
        pointer = None
    if pointer == expected:
        return []
    if pointer is not None and (lost := _epoch_after(store, state, pointer)) is not None:
        # The pointer is written after the record, and never goes ahead of it.
        message = f"it names epoch {lost}, and the log ends at {state.epoch}: newer records have been lost"
        return [Finding(severity="error", code="log.records_lost", key=LATEST, epochs=[], message=message)]
    message = "it does not name the head; it is a hint that decides nothing, and the next checkpoint mends it"
    return [Finding(severity="note", code="latest.stale", key=LATEST, epochs=[], message=message)]


class _OfEpoch(msgspec.Struct):
    epoch: int


def _epoch_after(store: Store, state: State, checkpoint_id: str) -> int | None:
    """Read the epoch of a checkpoint that the log does not know; None when it is not after all that the log knows."""
    if checkpoint_id in state.checkpoint_ids:
        return None
    try:
        data = store.get(manifest_key(checkpoint_id), max_bytes=MAX_MANIFEST_BYTES)
        epoch = msgspec.json.decode(data, type=_OfEpoch).epoch
    except (SlackwaterError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return epoch if epoch > state.epoch else None
