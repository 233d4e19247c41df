"""``slackwater savepoint``: checkpoints that people have given a label."""

from __future__ import annotations

import click

from .options import at_option, make_settings, store_options, tell_choice, url_and, url_argument
from .text import format_age, format_time, note, plain, print_json, print_table


@click.group("savepoint")
def command() -> None:
    """Label checkpoints that are to stay.

    A savepoint is a checkpoint with a label; retention keeps it until the label is deleted.

    \b
    Examples:
      slackwater savepoint create s3://bucket/slackwater/orders before-upgrade
      slackwater savepoint list s3://bucket/slackwater/orders
      slackwater savepoint delete s3://bucket/slackwater/orders before-upgrade
    """


@command.command("create")
@url_and("LABEL")
@at_option
@store_options
def create(url_and_label: tuple[str, str], ref: str, as_json: bool, timeout_s: float) -> None:
    """Give a checkpoint a LABEL: 1 to 100 printable characters that are no epoch, no id and no time.

    \b
    Examples:
      slackwater savepoint create s3://bucket/slackwater/orders before-upgrade
      slackwater savepoint create s3://bucket/slackwater/orders monday --at @2026-11-16T00:00Z
    """
    from ..ops.savepoint import savepoint  # noqa: PLC0415

    url, label = url_and_label
    created = savepoint(url, label, ref, settings=make_settings(timeout_s))
    tell_choice(ref, created.epoch, created.checkpoint_created_at_ms, created.passed_over)
    if as_json:
        print_json(created)
    else:
        print(plain(f"savepoint {label}: epoch {created.epoch}, checkpoint {created.checkpoint_id}"))


@command.command("list")
@url_argument
@store_options
def list_all(url: str, as_json: bool, timeout_s: float) -> None:
    """List the savepoints of the pipeline at URL.

    \b
    Examples:
      slackwater savepoint list s3://bucket/slackwater/orders
    """
    from ..ops.savepoint import savepoints  # noqa: PLC0415

    found = savepoints(url, settings=make_settings(timeout_s))
    if as_json:
        print_json({"url": url, "savepoints": found})
    elif found:
        rows = [
            [s.label, str(s.epoch), s.checkpoint_id, format_time(s.checkpoint_created_at_ms),
             format_time(s.created_at_ms), format_age(s.created_at_ms), "undone" if s.undone else ""]
            for s in found
        ]  # fmt: skip
        print_table(["LABEL", ">EPOCH", "ID", "CHECKPOINT MADE", "LABELLED", "AGE", "NOTES"], rows)
    else:
        note("no savepoints")


@command.command("delete")
@url_and("LABEL")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@store_options
def delete(url_and_label: tuple[str, str], dry_run: bool, as_json: bool, timeout_s: float) -> None:
    """Delete a LABEL. Its checkpoint stays until retention drops it.

    \b
    Examples:
      slackwater savepoint delete s3://bucket/slackwater/orders before-upgrade --dry-run
      slackwater savepoint delete s3://bucket/slackwater/orders before-upgrade
    """
    from ..ops.savepoint import delete_savepoint  # noqa: PLC0415

    url, label = url_and_label
    deleted = delete_savepoint(url, label, dry_run=dry_run, settings=make_settings(timeout_s))
    if as_json:
        print_json({"label": label, "epoch": deleted.epoch, "deleted": not dry_run})
    else:
        what = "would be deleted" if dry_run else "is deleted"
        print(plain(f"savepoint {label} {what}; retention then decides about epoch {deleted.epoch}"))
