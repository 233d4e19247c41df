"""``slackwater pipelines``: what a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Code
from .options import make_settings, store_options
from .text import format_age, format_time, note, print_json, print_table

if TYPE_CHECKING:
    from ..ops.pipelines import PipelineSummary, Problem


@click.command("pipelines")
@click.argument("store")
@store_options
def command(store: str, as_json: bool, timeout_s: float) -> None:
    """List the pipelines in a STORE.

    One that is damaged or cannot be read is listed too, with what is wrong.

    \b
    Examples:
      slackwater pipelines s3://bucket/slackwater
      slackwater pipelines ./store --json | jq -r '.pipelines[].url'
    """
    from ..ops.pipelines import pipelines  # noqa: PLC0415

    found = pipelines(store, settings=make_settings(timeout_s))
    if as_json:
        print_json({"store": store, "pipelines": found})
    elif found:
        columns = ["PIPELINE", ">EPOCH", "UPDATED", "AGE", ">CHECKPOINTS", ">SAVEPOINTS", "DRIVER", "URL"]
        print_table(columns, [_row(summary) for summary in found])
        for summary in found:
            if summary.problem is not None:
                note(f"note: {summary.name}: [{summary.problem.code}] {summary.problem.message}")
    else:
        note(f"no pipelines in {store}")


def _row(summary: PipelineSummary) -> list[str]:
    if summary.problem is not None:
        return [summary.name, "?", "?", "?", "?", "?", f"{_word(summary.problem)}: {summary.problem.code}", summary.url]
    updated_at_ms = summary.updated_at_ms or 0
    return [
        summary.name,
        str(summary.epoch or "none"),
        format_time(updated_at_ms),
        format_age(updated_at_ms),
        str(summary.checkpoints),
        str(summary.savepoints),
        "ended" if summary.released else "running or crashed",
        summary.url,
    ]


def _word(problem: Problem) -> str:
    """Tell what a store did not give from what it gave and is damaged."""
    return "not read" if problem.code in (Code.STORE_UNAVAILABLE, Code.STORE_DENIED, Code.LOG_BUSY) else "damaged"
