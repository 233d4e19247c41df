"""What a keyed pipeline alone has: checkpoints with LaminarDB's fields, and the bytes from outside kept with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ..errors import NotFound
from ..formats.state import LiveCheckpoint
from ..keyed.metadata import OUTSIDE_FILE, CheckpointMetadata, describe, describe_damaged, read_file
from ..parallel import in_parallel
from ..protocol.kinds import check_kind
from ..protocol.verified_reads import DAMAGE, load_manifest
from ..settings import Settings
from ..store import Store
from .pipelines import read_pipeline
from .refs import LATEST_REF, resolve


def keyed_checkpoints(
    url: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[CheckpointMetadata]:
    """List the checkpoints of a keyed pipeline, newest first; one that cannot be read is among them, with a problem.

    >>> import tempfile
    >>> import slackwater as sw
    >>> with sw.open_keyed(sw.CheckpointConfig(tempfile.mkdtemp() + "/counts")) as counts:
    ...     for state in (None, b"model 7"):
    ...         counts.put(b"a", b"1")
    ...         _ = counts.create_checkpoint(state)
    >>> [(made.epoch, made.key_count, made.has_state) for made in keyed_checkpoints(counts.url)]
    [(2, 1, True), (1, 1, False)]
    >>> outside_state(counts.url)
    b'model 7'
    """
    settings = settings or Settings()
    pipeline = read_pipeline(url, settings, storage_options)
    jobs = [partial(_describe, pipeline.store, entry) for entry in reversed(pipeline.state.live)]
    told = in_parallel(jobs, settings.concurrency)
    if any(made.problem for made in told):
        state = pipeline.log.read()
        live = {entry.checkpoint_id for entry in state.live} if state else set()
        told = [made for made in told if made.id in live]  # what was retired while it was read is not damaged
    return told


def _describe(store: Store, entry: LiveCheckpoint) -> CheckpointMetadata:
    try:
        manifest = load_manifest(store, entry)
    except DAMAGE as damage:
        return describe_damaged(entry, damage)
    check_kind(manifest, "keyed")
    try:
        return describe(store, entry, manifest)
    except DAMAGE as damage:
        return describe_damaged(entry, damage)


def outside_state(
    url: str | os.PathLike[str],
    at: int | str = LATEST_REF,
    *,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> bytes:
    """Load the bytes from outside that ``create_checkpoint(state)`` kept with the checkpoint ``at``, verified."""
    pipeline = read_pipeline(url, settings, storage_options)
    entry = resolve(pipeline.state, str(at))
    with pipeline.log.unless_retired(entry):
        manifest = load_manifest(pipeline.store, entry)
        check_kind(manifest, "keyed")
        if all(file.path != OUTSIDE_FILE for file in manifest.files):
            raise NotFound(
                f"epoch {entry.epoch} has no state from outside",
                code="checkpoint.none",
                hint="it was made by create_checkpoint() without state; "
                f"slackwater restore {pipeline.url} --at {entry.epoch} --to DIR has its keys",
            )
        return read_file(pipeline.store, manifest, OUTSIDE_FILE)
