"""``slackwater list``: the checkpoints of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import make_settings, store_options, url_argument
from .text import format_age, format_size, format_time, format_way_back, note, print_json, print_table

if TYPE_CHECKING:
    from ..ops.checkpoints import CheckpointSummary

_SHORT_ID = 13  # The time in a UUIDv7: nearly always unique, and easy to tell apart.


@click.command("list")
@url_argument
@click.option("--long", is_flag=True, help="Read each checkpoint's manifest, too: its micro-batch, its size, damage.")
@store_options
def command(url: str, long: bool, as_json: bool, timeout_s: float) -> None:
    """List the checkpoints of a pipeline, the newest last.

    \b
    Examples:
      slackwater list s3://bucket/slackwater/orders
      slackwater list s3://bucket/slackwater/orders --long
      SLACKWATER_PIPELINE=./store/orders slackwater list --json
    """
    from ..ops.checkpoints import list_checkpoints  # noqa: PLC0415

    found = list_checkpoints(url, long=long, settings=make_settings(timeout_s))
    if as_json:
        print_json(found)
    elif found.checkpoints:
        unique = {summary.checkpoint_id for summary in found.checkpoints}
        width = next(n for n in range(_SHORT_ID, 37) if len({known[:n] for known in unique}) == len(unique))
        more = [">MICRO-BATCH", ">STATE"] if long else []
        columns = [">EPOCH", "ID", "MADE", "AGE", *more, "LABELS", "NOTES"]
        print_table(columns, [_row(summary, width, long) for summary in found.checkpoints])
    else:
        note("no checkpoint yet")


def _row(summary: CheckpointSummary, width: int, long: bool) -> list[str]:
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
        *(["?" if summary.micro_batch is None else str(summary.micro_batch)] if long else []),
        *([format_size(summary.size_bytes)] if long else []),
        ", ".join(summary.labels),
        ", ".join(notes),
    ]
