"""Adoption: the checkpoint of a plain Spark query becomes the first one of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..clock import this_process
from ..errors import Conflict, InvalidInput, NotFound
from ..formats.keys import format_name
from ..formats.state import LiveCheckpoint, State
from ..protocol.address import as_text, join_url, refuse_pipeline
from ..protocol.driver import make_first
from ..protocol.pipeline import locate
from ..settings import Settings
from ..spark.capture import capture
from ..store import local_folder


def adopt(
    directory: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str],
    pipeline: str,
    storage_options: Mapping[str, str] | None = None,
) -> LiveCheckpoint:
    """Make the newest committed micro-batch of a plain Spark query the first checkpoint of a pipeline.

    Stop the query first. ``directory`` is its ``checkpointLocation``, which is only read. The pipeline then starts from
    there instead of reading everything again::

        sw.adopt("checkpoints/orders", store="s3://bucket/slackwater", pipeline="orders")
        sw.writeStream(counts).queryName("orders").option("store", "s3://bucket/slackwater").to(…).start()

    What the query wrote for micro-batches that it did not commit stays where it is, and is written again.
    """
    settings = Settings()
    store_url = as_text(store)
    url = join_url(store_url, format_name(pipeline))
    root = _local(as_text(directory))
    newest = _newest_commit(root)
    # Read before anything is claimed: a directory that cannot be adopted changes nothing.
    cut = capture(root, newest)
    if _newest_commit(root) != newest:
        raise Conflict(
            f"the query that uses {root} has committed another micro-batch meanwhile",
            code="pipeline.running",
            hint="stop it first, then adopt its directory",
        )
    refuse_pipeline(store_url, settings, storage_options)
    place = locate(url, settings, storage_options)

    def refuse_old(state: State | None) -> None:
        if state is not None and state.head is not None:
            raise Conflict(
                f"the pipeline {pipeline!r} has checkpoints of its own already, up to epoch {state.epoch}",
                code="pipeline.not_new",
                hint="start it: it goes on from there; or adopt under another pipeline's name",
            )

    make_first(place, this_process("adopt"), cut, refuse_old)
    return place.state.live[-1]


def _local(text: str) -> Path:
    root = local_folder(text)
    if root is None:
        raise InvalidInput(
            f"{text} is not a local directory",
            code="folder.unusable",
            hint="copy the checkpoint to a local disk, and adopt the copy",
        )
    if not (root / "offsets").is_dir() or not (root / "commits").is_dir():
        raise NotFound(
            f"{root} is not the checkpointLocation of a Spark query: it has no offsets and commits",
            code="checkpoint.none",
            hint="name the directory that the query's option checkpointLocation names",
        )
    return root


def _newest_commit(root: Path) -> int:
    numbers = [int(path.name) for path in (root / "commits").iterdir() if path.name.isdecimal()]
    if not numbers:
        raise NotFound(
            f"the query of {root} has not committed a micro-batch yet",
            code="checkpoint.none",
            hint="start the pipeline without adopting: there is nothing to go on from",
        )
    return max(numbers)
