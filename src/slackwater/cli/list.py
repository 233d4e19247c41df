"""``slackwater list``: the checkpoints of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import make_settings, read_pipeline, store_options, url_argument
from .text import format_age, format_size, format_time, format_way_back, note, print_json, print_table

if TYPE_CHECKING:
    from ..ops.checkpoints import CheckpointSummary

_SHORT_ID = 13  # The time in a UUIDv7: nearly always unique, and easy to tell apart.


@click.command("list")
@url_argument
@store_options
def command(url: str, as_json: bool, timeout_s: float) -> None:
    """List the checkpoints of a pipeline, the newest last.

    \b
    Examples:
      slackwater list s3://bucket/slackwater/orders
      SLACKWATER_PIPELINE=./store/orders slackwater list --json
    """
    from ..ops.checkpoints import checkpoints  # noqa: PLC0415

    pipeline = read_pipeline(url, timeout_s)
    found = checkpoints(pipeline, make_settings(timeout_s))
    if as_json:
        facts = {"pipeline": pipeline.name, "url": url, "uid": pipeline.state.uid, "epoch": pipeline.state.epoch}
        print_json({**facts, "generation": pipeline.state.generation, "checkpoints": found})
    elif found:
        unique = {summary.checkpoint_id for summary in found}
        width = next(n for n in range(_SHORT_ID, 37) if len({known[:n] for known in unique}) == len(unique))
        columns = [">EPOCH", "ID", "MADE", "AGE", ">MICRO-BATCH", ">STATE", "LABELS", "NOTES"]
        print_table(columns, [_row(summary, width) for summary in found])
    else:
        note("no checkpoint yet")


def _row(summary: CheckpointSummary, width: int) -> list[str]:
    notes = [
        *(["head"] if summary.head else []),
        *filter(None, [format_way_back(summary.rollback_to, summary.repair)]),
        *(["undone"] if summary.undone else [] if summary.settled else ["sinks not yet on record"]),
        *([f"damaged: {summary.problem.message}"] if summary.problem else []),
    ]
    return [
        str(summary.epoch),
        summary.checkpoint_id[:width],
        format_time(summary.created_at_ms),
        format_age(summary.created_at_ms),
        "?" if summary.micro_batch is None else str(summary.micro_batch),
        format_size(summary.size_bytes),
        ", ".join(summary.labels),
        ", ".join(notes),
    ]
