"""``slackwater export``: a checkpoint, written as LaminarDB reads it."""

from __future__ import annotations

import click

from .entry import remove_when_interrupted
from .options import at_option, make_settings, remember_url, store_options, url_and
from .progress_bar import progress_bar
from .text import count, format_size, print_fields, print_json


@click.command("export")
@url_and("FOLDER")
@at_option
@store_options
def command(url_and_folder: tuple[str, str], ref: str, as_json: bool, timeout_s: float) -> None:
    """Export a checkpoint into a FOLDER, as LaminarDB reads it.

    The checkpoint of a program or of a keyed state; those of Spark are refused. Every byte is verified before it is
    written. FOLDER is a path or a URL, and new or empty; an export that was interrupted is run again. The pipeline
    itself is not changed.

    \b
    Examples:
      slackwater export s3://bucket/slackwater/orders ./laminardb
      slackwater export ./store/orders s3://bucket/laminardb --at before-upgrade
    """
    from ..ops.export import export  # noqa: PLC0415

    url, folder = url_and_folder
    remember_url(url)
    remove_when_interrupted(lambda: None)  # what is on the local disk meanwhile goes then by itself
    with progress_bar("writing") as progress:
        exported = export(url, folder, at=ref, settings=make_settings(timeout_s), progress=progress)
    if as_json:
        print_json({"url": url, "folder": folder, "exported": exported})
        return
    parts = f"{count(exported.operators, 'operator')}, {count(exported.partitions, 'partition')}"
    print_fields(
        {
            "exported": f"epoch {exported.epoch} of {exported.pipeline}, checkpoint {exported.checkpoint_id}",
            "as": f"{exported.format} in {folder}",
            "state": f"{parts}, {format_size(exported.size_bytes)}, every byte verified",
        }
    )
