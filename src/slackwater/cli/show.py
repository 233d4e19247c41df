"""``slackwater show``: what one checkpoint holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..errors import SlackwaterError
from .folders import folder_instead, show_folder
from .options import at_option, make_settings, store_options, tell_choice, url_argument
from .text import (
    count,
    format_age,
    format_offsets,
    format_size,
    format_time,
    format_way_back,
    print_fields,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from ..ops.checkpoints import CheckpointDetail, CheckpointSummary


@click.command("show")
@url_argument
@at_option
@store_options
def command(url: str, ref: str, as_json: bool, timeout_s: float) -> None:
    """Show what a checkpoint holds.

    Its sources with their offsets, its state, its sinks, and the objects that it needs. A folder of LaminarDB's
    checkpoints is shown as it is, with what is wrong with it.

    \b
    Examples:
      slackwater show s3://bucket/slackwater/orders
      slackwater show s3://bucket/slackwater/orders --at before-upgrade
      slackwater show ./store/orders --at @2026-11-15T10:00Z --json
      slackwater show ./laminardb/checkpoints
    """
    from ..ops.checkpoints import show  # noqa: PLC0415

    try:
        detail = show(url, ref, settings=make_settings(timeout_s))
    except SlackwaterError as error:
        show_folder(folder_instead(error, url, timeout_s), ref, as_json=as_json)
        return
    tell_choice(ref, detail.checkpoint.epoch, detail.checkpoint.created_at_ms, detail.passed_over)
    if as_json:
        print_json(detail)
    else:
        _print(detail)


def _print(detail: CheckpointDetail) -> None:
    checkpoint, origin = detail.checkpoint, detail.origin
    own, referenced = ([o.size_bytes for o in detail.objects if o.own is own] for own in (True, False))
    print_fields(
        {
            "pipeline": detail.pipeline,
            "epoch": f"{checkpoint.epoch}{_standing(checkpoint)}",
            "id": checkpoint.checkpoint_id,
            "parent": checkpoint.parent_id or "none",
            "made": f"{format_time(checkpoint.created_at_ms)} ({format_age(checkpoint.created_at_ms)} ago)",
            "labels": ", ".join(checkpoint.labels) or "none",
            "micro-batch": str(checkpoint.micro_batch),
            **({"imported from": f"{origin.format} checkpoint {origin.checkpoint_id}"} if origin else {}),
            "watermark": format_time(detail.watermark_ms) if detail.watermark_ms else "none",
            "sinks": "all committed" if checkpoint.settled else "not yet on record (the next record says)",
            "state": format_size(checkpoint.size_bytes),
            "stored": f"{count(len(own), 'object')} of its own, {format_size(sum(own))}; "
            f"{len(referenced)} of older checkpoints, {format_size(sum(referenced))}; "
            f"{count(detail.inline_files, 'file')} inline, {format_size(detail.inline_bytes)}; "
            f"manifest {format_size(detail.manifest_bytes)}",
        }
    )
    _section(
        ["SOURCE", "TYPE", "OFFSETS"],
        [[name, source["source_type"], format_offsets(source["offsets"])] for name, source in detail.sources.items()],
    )
    _section(
        ["TABLE", "FEED", "OFFSETS"],
        [[name, feed["source_type"], format_offsets(feed["offsets"])] for name, feed in detail.tables.items()],
    )
    _section(
        ["OPERATOR", "STORE", ">PARTITIONS", "KIND", ">SIZE"],
        [
            [
                name,
                operator["store"],
                str(len(operator["partitions"])),
                _kinds(operator),
                format_size(operator["size_bytes"]),
            ]
            for name, operator in detail.operators.items()
        ],
    )
    _section(
        ["SINK", "KIND", "ADDRESS", "STAGED", "CAN UNDO"],
        [
            [name, sink["kind"], sink["address"], _staged(sink), "yes" if sink["can_undo"] else "no"]
            for name, sink in detail.sinks.items()
        ],
    )
    _section(
        ["OBJECT", "KIND", ">SIZE", "OF"],
        [
            [entry.key, entry.kind, format_size(entry.size_bytes), "its own" if entry.own else "an older checkpoint"]
            for entry in detail.objects
        ],
    )


def _standing(checkpoint: CheckpointSummary) -> str:
    facts = [
        "head" if checkpoint.head else "",
        "undone" if checkpoint.undone else "",
        format_way_back(checkpoint.rollback_to, checkpoint.repair),
    ]
    return f" ({', '.join(filter(None, facts))})" if any(facts) else ""


def _section(columns: list[str], rows: list[list[str]]) -> None:
    if rows:
        print()
        print_table(columns, rows)


def _kinds(operator: dict[str, Any]) -> str:
    kinds = Counter(partition["kind"] for partition in operator["partitions"])
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))


def _staged(sink: dict[str, Any]) -> str:
    """Count the files that the descriptors name; one that names none is counted itself."""
    files = [descriptor.get("files") for descriptor in sink["descriptors"]]
    if all(isinstance(named, list) for named in files):
        return count(sum(map(len, files)), "file")
    return count(len(files), "descriptor")
