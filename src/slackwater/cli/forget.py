"""``slackwater forget``: drop old checkpoints, and free their bytes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from .options import VARIABLE, make_settings, remember_url, store_options
from .text import count, format_size, format_time, note, print_json, print_table

if TYPE_CHECKING:
    from ..ops.forget import Forgetting

_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:min|[shdw]))+")


class _Number(click.IntRange):
    """A number from 1 on. Python would take the digits of every script, and underscores."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"-?[0-9]+", value):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


_NUMBER = _Number(min=1)


def _parse_duration(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Parse a duration like ``7d`` or ``1d12h``."""
    if text is None:
        return None
    parts = re.findall(r"([0-9]+)([a-z]+)", text) if _DURATION.fullmatch(text) else []
    duration_s = sum(int(number) * _UNITS_S[unit] for number, unit in parts)
    if duration_s == 0:
        raise click.BadParameter(f"{text!r} is not a duration; write 36h or 1d12h, of the units {', '.join(_UNITS_S)}")
    return duration_s


@click.command("forget")
@click.argument("names", nargs=-1, metavar="[URL] [REF]")
@click.option("--keep-last", type=_NUMBER, metavar="N", help="Keep the newest N.")
@click.option("--keep-hourly", type=_NUMBER, metavar="N", help="Keep the newest of each of the last N hours with one.")
@click.option("--keep-daily", type=_NUMBER, metavar="N", help="Keep the newest of each of the last N days with one.")
@click.option(
    "--keep-within",
    metavar="DURATION",
    callback=_parse_duration,
    help="Keep all made within this time before the newest: 90min, 36h, 7d, 1d12h.",
)
@click.option(
    "--keep-label", multiple=True, metavar="LABEL", help="See that this savepoint is there. All of them stay anyhow."
)
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, and change nothing.")
@store_options
def command(
    names: tuple[str, ...],
    *,
    keep_last: int | None,
    keep_hourly: int | None,
    keep_daily: int | None,
    keep_within: int | None,
    keep_label: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Forget checkpoints: all that no rule keeps, or the one that REF names.

    A checkpoint stays if any rule keeps it. Hours and days are those of UTC. The newest checkpoint and savepoints
    always stay. A driver that runs is not disturbed. Interrupted at any point, the same command goes on.

    \b
    Examples:
      slackwater forget s3://bucket/slackwater/orders --keep-last 5 --keep-hourly 24 --keep-daily 7 --dry-run
      slackwater forget s3://bucket/slackwater/orders --keep-within 36h
      slackwater forget s3://bucket/slackwater/orders 41
    """
    from ..ops.forget import forget  # noqa: PLC0415

    any_rule = any((keep_last, keep_hourly, keep_daily, keep_within, keep_label))
    url, ref = _split_names(names, any_rule=any_rule)
    remember_url(url)
    done = forget(
        url,
        ref,
        keep_last=keep_last,
        keep_hourly=keep_hourly,
        keep_daily=keep_daily,
        keep_within=keep_within,
        keep_labels=keep_label,
        dry_run=dry_run,
        settings=make_settings(timeout_s),
    )
    if as_json:
        print_json({"url": url, "acted": not dry_run, "forget": done})
    else:
        _print(done, dry_run)


def _split_names(names: tuple[str, ...], *, any_rule: bool) -> tuple[str, str | None]:
    """Take URL and REF; URL may be left out when the variable names the pipeline, REF must be when there are rules."""
    url = os.environ.get(VARIABLE)
    if len(names) == 2 and not any_rule:
        return names[0], names[1]
    if len(names) == 1 and url and not any_rule and "://" not in names[0]:
        return url, names[0]
    if len(names) == 1:
        return names[0], None
    if not names and url:
        return url, None
    raise click.UsageError(f"give URL and REF, or URL and rules; URL may be left out when {VARIABLE} is set")


def _print(done: Forgetting, dry_run: bool) -> None:
    rows = [
        [
            str(verdict.epoch),
            verdict.checkpoint_id,
            format_time(verdict.created_at_ms),
            "keep" if verdict.keep else "forget",
            ", ".join(verdict.reasons),
        ]
        for verdict in done.checkpoints
    ]
    print_table([">EPOCH", "ID", "MADE", "WHAT", "WHY"], rows)
    size, would = format_size(done.freed_bytes), "would be " if dry_run else ""
    note(f"{count(len(done.forgotten_epochs), 'checkpoint')} {would}forgotten, {size} {would}freed")
    if done.deleted_epochs:
        note(f"with the bytes of {count(len(done.deleted_epochs), 'checkpoint')} that had been waiting for it")
    if dry_run:
        note("nothing was changed")
