"""``slackwater savepoint``: checkpoints that people have given a label."""

from __future__ import annotations

import click

from .options import (
    at_option,
    read_pipeline,
    store_options,
    tell_choice,
    url_and,
    url_argument,
)
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
    from ..ops.refs import passed_over  # noqa: PLC0415
    from ..ops.savepoint import create_label  # noqa: PLC0415

    url, label = url_and_label
    pipeline = read_pipeline(url, timeout_s)
    savepoint = create_label(pipeline.log, label, ref)
    state = pipeline.log.state or pipeline.state
    entry = state.find(savepoint.epoch)
    checkpoint_id = entry.checkpoint_id if entry else None
    if entry:
        tell_choice(ref, entry.epoch, entry.created_at_ms, passed_over(state, ref, entry))
    if as_json:
        print_json({"label": label, "epoch": savepoint.epoch, "checkpoint_id": checkpoint_id,
                    "created_at_ms": savepoint.created_at_ms})  # fmt: skip
    else:
        print(plain(f"savepoint {label}: epoch {savepoint.epoch}, checkpoint {checkpoint_id}"))


@command.command("list")
@url_argument
@store_options
def list_all(url: str, as_json: bool, timeout_s: float) -> None:
    """List the savepoints of the pipeline at URL.

    \b
    Examples:
      slackwater savepoint list s3://bucket/slackwater/orders
    """
    state = read_pipeline(url, timeout_s).state
    entries = {entry.epoch: entry for entry in state.live}
    if as_json:
        documents = [
            {"label": s.label, "epoch": s.epoch, "checkpoint_id": entries[s.epoch].checkpoint_id,
             "created_at_ms": s.created_at_ms, "checkpoint_created_at_ms": entries[s.epoch].created_at_ms,
             "undone": entries[s.epoch].undone}
            for s in state.labels
        ]  # fmt: skip
        print_json({"url": url, "savepoints": documents})
    elif state.labels:
        rows = [
            [s.label, str(s.epoch), entries[s.epoch].checkpoint_id, format_time(entries[s.epoch].created_at_ms),
             format_time(s.created_at_ms), format_age(s.created_at_ms), "undone" if entries[s.epoch].undone else ""]
            for s in state.labels
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
    from ..ops.savepoint import delete_label, get_label  # noqa: PLC0415

    url, label = url_and_label
    pipeline = read_pipeline(url, timeout_s)
    savepoint = get_label(pipeline.state, label) if dry_run else delete_label(pipeline.log, label)
    if as_json:
        print_json({"label": label, "epoch": savepoint.epoch, "deleted": not dry_run})
    else:
        what = "would be deleted" if dry_run else "is deleted"
        print(plain(f"savepoint {label} {what}; retention then decides about epoch {savepoint.epoch}"))
