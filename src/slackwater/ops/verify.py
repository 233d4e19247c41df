"""Verify: is everything that checkpoints need there, with its right size, or with its right bytes?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from ..errors import Corrupt
from ..formats import record as records
from ..formats.change import Repair
from ..formats.keys import CHECKPOINTS, LATEST, manifest_key, record_key
from ..formats.manifest import File, Manifest, Object, all_files, decode_inline
from ..formats.state import LiveCheckpoint, State
from ..parallel import Counted, OnProgress, in_parallel
from ..protocol.artifacts import check_object, read_batch
from ..protocol.latest import epoch_ahead, read_pointer
from ..protocol.log import list_records
from ..protocol.pipeline import Pipeline
from ..protocol.verified_reads import DAMAGE, load_manifest
from ..settings import Settings
from ..store import Store
from .pipelines import read_pipeline
from .refs import Choice, choose


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: the object that has it, and the epochs that need that object, undone ones among them.

    A note does not concern anything that can be restored.
    """

    severity: Literal["error", "note"]
    code: str
    key: str
    epochs: list[int]
    message: str
    undone: list[int] = []


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was verified, and what was found. ``at`` is the one checkpoint that was named; None: these are all."""

    pipeline: str
    url: str
    sound: bool
    read_data: bool
    at: Choice | None = None
    epochs: list[int]
    objects: int
    read_bytes: int
    findings: list[Finding]


class _Need(msgspec.Struct):
    """One object, the live epochs that need it, and the files in it that manifests name."""

    stored: Object
    epochs: list[int]
    files: dict[tuple[str, str], File]

    def fail(self, message: str, code: str = "object.damaged") -> Finding:
        return Finding(severity="error", code=code, key=self.stored.key, epochs=self.epochs, message=message)


class _Needs(dict[Object, _Need]):
    def add(self, manifest: Manifest, epochs: list[int]) -> None:
        for stored in manifest.objects:
            self.setdefault(stored, _Need(stored, [], {})).epochs.extend(epochs)
        for file in all_files(manifest):
            if file.object is not None:
                self[manifest.objects[file.object]].files[file.path, file.sha256] = file


def verify(
    url: str | os.PathLike[str],
    at: str | int | None = None,
    *,
    read_data: bool = False,
    progress: OnProgress | None = None,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Verification:
    """Verify the checkpoints of a pipeline, or the one that ``at`` names. Nothing is changed.

    Every object that they need must be there with its right size; with ``read_data``, with its right bytes.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> found = verify(f"{store}/orders", read_data=True)
    >>> found.sound, found.epochs, found.findings
    (True, [1, 2, 3], [])
    """
    pipeline = read_pipeline(url, settings, storage_options)
    if at is None:
        return verify_checkpoints(pipeline, pipeline.state.live, read_data=read_data, progress=progress)
    chosen = choose(pipeline.state, str(at))
    entries = [entry for entry in pipeline.state.live if entry.epoch == chosen.epoch]
    found = verify_checkpoints(pipeline, entries, read_data=read_data, progress=progress)
    return msgspec.structs.replace(found, at=chosen)


def verify_checkpoints(
    pipeline: Pipeline,
    entries: Iterable[LiveCheckpoint],
    *,
    read_data: bool = False,
    progress: OnProgress | None = None,
) -> Verification:
    """Check that every object of these checkpoints is there with its right size; or, reading all, with its right bytes.

    Each object is read once, however many checkpoints need it. What a running driver retires meanwhile is no finding.
    Reading all, the whole log is checked too; and when these are all live checkpoints, what is left of retired ones.
    """
    settings, store, state, entries = pipeline.settings, pipeline.store, pipeline.state, list(entries)
    jobs = [lambda entry=entry: _verify_manifest(store, entry, state.uid) for entry in entries]
    findings: list[Finding] = []
    needs = _Needs()
    for entry, (manifest, found) in zip(entries, in_parallel(jobs, settings.concurrency), strict=True):
        findings += found
        if manifest is not None:
            needs.add(manifest, [entry.epoch])
    sizes = {listed.key: listed.size_bytes for listed in store.list(CHECKPOINTS)}
    sound: list[_Need] = []
    for need in needs.values():
        size = sizes.get(need.stored.key)
        if size is None:
            findings.append(need.fail("the object is not there"))
        elif size != need.stored.size_bytes:
            findings.append(need.fail(f"it has {size} bytes, not {need.stored.size_bytes}"))
        else:
            sound.append(need)
    read_bytes = 0
    if read_data:
        read_bytes = sum(need.stored.size_bytes for need in sound)
        counted = Counted(progress, read_bytes)
        jobs_of_data = [lambda need=need: _verify_data(store, need, counted) for need in sound]
        findings += [finding for found in in_parallel(jobs_of_data, settings.concurrency) for finding in found]
        findings += _verify_history(store, settings, pipeline.log.kept_records)
        if entries == state.live:
            findings += _verify_retired(store, state, needs, settings)
    pointer = read_pointer(store)  # before the log, which a driver that runs may take ahead of what was read of it
    fresh = pipeline.log.read() or state
    live = {entry.epoch: entry for entry in fresh.live}
    findings = [
        msgspec.structs.replace(finding, undone=[e for e in finding.epochs if e in live and live[e].undone])
        for finding in findings
        if not finding.epochs or not live.keys().isdisjoint(finding.epochs)
    ]
    findings += _verify_pointer(store, fresh, pointer)
    return Verification(
        pipeline=pipeline.name,
        url=pipeline.url,
        sound=all(finding.severity != "error" for finding in findings),
        read_data=read_data,
        epochs=[entry.epoch for entry in entries],
        objects=len(needs),
        read_bytes=read_bytes,
        findings=findings,
    )


def _verify_manifest(store: Store, entry: LiveCheckpoint, uid: str) -> tuple[Manifest | None, list[Finding]]:
    try:
        manifest = load_manifest(store, entry)
        facts = (manifest.epoch, manifest.parent_id, manifest.uid)
        if facts != (entry.epoch, entry.parent_id, uid):
            raise Corrupt("the manifest is of another epoch, parent or pipeline", code="manifest.invalid")
        for file in all_files(manifest):
            if file.inline is not None:
                decode_inline(file)
    except DAMAGE as error:
        key = manifest_key(entry.checkpoint_id)
        return None, [Finding(severity="error", code=error.code, key=key, epochs=[entry.epoch], message=error.message)]
    return manifest, []


def _verify_data(store: Store, need: _Need, counted: Counted) -> list[Finding]:
    findings = []
    try:
        if need.stored.kind == "batch":
            inside = {(path, sha256) for path, _, sha256 in read_batch(store, need.stored)}
            findings += [
                need.fail(f"the batch does not hold {path} as the manifest names it")
                for path, sha256 in need.files
                if (path, sha256) not in inside
            ]
        else:
            check_object(store, need.stored, need.files.values())
    except DAMAGE as error:
        findings.append(need.fail(error.message, error.code))
    counted.add(need.stored.size_bytes)
    return findings


def _verify_retired(store: Store, state: State, needed: _Needs, settings: Settings) -> list[Finding]:
    """Check what is left of checkpoints that were retired, and whose deletion is not on record: notes, at the most."""
    findings: list[Finding] = []
    needs = _Needs()
    for entry in state.retired:
        try:
            needs.add(load_manifest(store, entry), [])
        except DAMAGE as error:
            key = manifest_key(entry.checkpoint_id)
            findings.append(Finding(severity="error", code=error.code, key=key, epochs=[], message=error.message))
    counted = Counted(None, 0)
    surplus = [need for stored, need in needs.items() if stored not in needed]
    jobs = [lambda need=need: _verify_data(store, need, counted) for need in surplus]
    findings += [finding for found in in_parallel(jobs, settings.concurrency) for finding in found]
    # What is not there was deleted, as it should be.
    there = {listed.key for listed in store.list(CHECKPOINTS)} if findings else set()
    return [
        msgspec.structs.replace(
            finding, severity="note", message=f"{finding.message}; it is left of a retired checkpoint"
        )
        for finding in findings
        if finding.key in there
    ]


def _verify_history(store: Store, settings: Settings, kept_records: int) -> list[Finding]:
    """Check the records that are never trimmed: each is there, sound, and names the digest of the one before.

    Older ones decide nothing: some are gone, and a writer that slept may have put another in the place of one.
    """

    def read(number: int) -> tuple[records.Record, str] | Finding:
        try:
            data = store.get(record_key(number), max_bytes=records.MAX_RECORD_BYTES)
            return records.decode(data, number=number), records.digest(data)
        except DAMAGE as error:
            return _of_record(number, error.message, code=error.code)

    numbers, _ = _list_kept(store, kept_records)
    jobs = [lambda number=number: read(number) for number in numbers]
    results = list(zip(numbers, in_parallel(jobs, settings.concurrency), strict=True))
    # A driver may have appended meanwhile, and trimmed what was among them.
    _, oldest = _list_kept(store, kept_records)
    numbers = [number for number in numbers if number >= oldest]
    findings: list[Finding] = []
    if numbers and numbers[0] > oldest:
        gone = f"records {oldest} to {numbers[0] - 1} are not there"
        findings.append(_of_record(numbers[0], gone, code="log.inconsistent"))
    previous: tuple[int, str] | None = None
    for number, result in results[-len(numbers) :] if numbers else []:
        if isinstance(result, Finding):
            findings.append(result)
            previous = None
            continue
        record, digest = result
        if isinstance(change := record.change, Repair):
            passed = {record_key(passed) for passed in range(change.from_number + 1, number)}
            findings = [_passed(finding, number) if finding.key in passed else finding for finding in findings]
            digests = {found: told[1] for found, told in results if not isinstance(told, Finding)}
            previous = number - 1, digests.get(change.from_number, record.previous_sha256 or "")
        if previous is not None and previous[0] != number - 1:
            gone = f"records {previous[0] + 1} to {number - 1} are not there"
            findings.append(_of_record(number, gone, code="log.inconsistent"))
        elif previous is not None and record.previous_sha256 != previous[1]:
            findings.append(_of_record(number, "it does not follow the record before it", code="log.inconsistent"))
        previous = number, digest
    return findings


def _passed(finding: Finding, by: int) -> Finding:
    """What a repair has passed by decides nothing any more."""
    message = f"{finding.message}; record {by} has passed it by"
    return msgspec.structs.replace(finding, severity="note", message=message)


def _list_kept(store: Store, kept_records: int) -> tuple[list[int], int]:
    """List the newest records, those that are never trimmed; and the number of the oldest that has to be there."""
    numbers = list_records(store)
    oldest = max(1, numbers[-1] - kept_records + 1) if numbers else 1
    return [number for number in numbers if number >= oldest], oldest


def _of_record(number: int, message: str, *, code: str) -> Finding:
    return Finding(severity="error", code=code, key=record_key(number), epochs=[], message=message)


def _verify_pointer(store: Store, state: State, pointer: str | None) -> list[Finding]:
    expected = state.head.checkpoint_id if state.head else None
    if pointer == expected:
        return []
    if pointer is not None and (lost := epoch_ahead(store, state, pointer)) is not None:
        message = f"it names epoch {lost}, and the log ends at {state.epoch}: newer records have been lost"
        return [Finding(severity="error", code="log.records_lost", key=LATEST, epochs=[], message=message)]
    message = "it does not name the head; it is a hint that decides nothing, and the next checkpoint writes it anew"
    return [Finding(severity="note", code="latest.stale", key=LATEST, epochs=[], message=message)]
