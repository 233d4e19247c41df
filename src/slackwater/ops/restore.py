"""Restore: a checkpoint of a Spark query, a program or a keyed state as a new directory, every byte verified."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import Corrupt, InvalidInput, NotFound, Unsupported
from ..extras import needed_for
from ..formats.manifest import Kind, Manifest, kind_of
from ..formats.state import LiveCheckpoint, State
from ..keyed.restore_check import check_restored
from ..protocol.directory import write_directory
from ..protocol.pipeline import Pipeline
from ..protocol.state import LeftOut
from ..protocol.verified_reads import load_manifest
from ..settings import Settings
from ..spark.hydrate import hydrate
from .pipelines import read_pipeline, refuse_own_folders
from .refs import LATEST_REF, NEWEST_VERIFIED, passed_over, resolve
from .rollback import get_newest_verified

# Beside a driver that retires checkpoints faster than they can be read, only a savepoint can be had.
_MAX_TRIES = 10


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, and which checkpoints were passed over on the way to it, newest first."""

    pipeline: str
    url: str
    epoch: int
    checkpoint_id: str
    created_at_ms: int
    micro_batch: int
    kind: Kind
    directory: str
    files: int
    size_bytes: int
    passed_over: list[LeftOut]


def restore(
    url: str | os.PathLike[str],
    to: str | os.PathLike[str],
    at: str | int = LATEST_REF,
    *,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Restored:
    """Restore the checkpoint that ``at`` names into the directory ``to``, which is new or empty.

    ``at`` is a REF, or ``newest-verified``. A query's checkpoint becomes a ``checkpointLocation`` of Spark; that of a
    program or a keyed state, or one that was imported, becomes its files. The pipeline is not changed.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> restored = restore(f"{store}/orders", f"{store}/restored", at=2)
    >>> restored.epoch, restored.kind, (Path(store) / "restored" / "offsets.json").read_text()
    (2, 'program', '{"rows":{"row":"1"}}')
    """
    target, ref = _as_directory(to), str(at)
    pipeline = read_pipeline(url, settings, storage_options)
    refuse_own_folders(pipeline, str(target), hint="name a directory elsewhere: --to DIR")
    with needed_for("the restore of a keyed state", "keyed"):
        for tries_left in reversed(range(_MAX_TRIES)):
            state = pipeline.state
            try:
                entry, passed, manifest = _restore(pipeline, state, ref, target)
                break
            except NotFound:
                # What it named may have been retired while it was read: then something else is that now.
                if not tries_left or pipeline.state is state:
                    raise
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    return Restored(
        pipeline=pipeline.name,
        url=pipeline.url,
        epoch=entry.epoch,
        checkpoint_id=entry.checkpoint_id,
        created_at_ms=entry.created_at_ms,
        micro_batch=manifest.micro_batch,
        kind=kind_of(manifest),
        directory=str(target),
        files=len(sizes),
        size_bytes=sum(sizes),
        passed_over=passed,
    )


def _as_directory(to: str | os.PathLike[str]) -> Path:
    text = os.fspath(to) if isinstance(to, os.PathLike) else to
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(f"{text!r:.100} is not a path", code="option.invalid", hint="name a directory: --to DIR")
    if not text.strip():
        raise InvalidInput(
            "the directory to restore into is empty text",
            code="option.invalid",
            hint="for the folder of this process write --to .",
        )
    if "://" in text:  # as a path it would be ./s3:/…
        raise InvalidInput(
            f"{text} is a URL; a directory of this machine is needed",
            code="option.invalid",
            hint="name a local one, --to DIR, and copy that",
        )
    return Path(text).absolute()


def _restore(
    pipeline: Pipeline, state: State, ref: str, target: Path
) -> tuple[LiveCheckpoint, list[LeftOut], Manifest]:
    """Restore what ``ref`` names in this state."""
    manifests: dict[str, Manifest] = {}

    def write(entry: LiveCheckpoint) -> None:
        with pipeline.log.unless_retired(entry):
            manifest = manifests[entry.checkpoint_id] = load_manifest(pipeline.store, entry)
            _write(pipeline, manifest, target)

    if ref == NEWEST_VERIFIED:
        # A directory that is not empty is InvalidInput, and no damage.
        entry, passed = get_newest_verified(state, state.live, write, damage=(Corrupt, Unsupported))
    else:
        entry = resolve(state, ref)
        passed = passed_over(state, ref, entry)
        write(entry)
    return entry, passed, manifests[entry.checkpoint_id]


def _write(pipeline: Pipeline, manifest: Manifest, target: Path) -> None:
    """Write the files, and check them as whoever goes on from them would."""
    store, settings, kind = pipeline.store, pipeline.settings, kind_of(manifest)
    if kind == "spark":
        hydrate(store, manifest, target, settings, durable=True)
    else:
        check = check_restored if kind == "keyed" else None
        write_directory(store, manifest, target, settings, durable=True, check=check)
