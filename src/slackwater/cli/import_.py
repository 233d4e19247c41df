"""``slackwater import``: a checkpoint of LaminarDB becomes the first one of a pipeline."""

from __future__ import annotations

import click

from .entry import remove_when_interrupted
from .options import at_option, make_settings, remember_url, store_options, url_argument
from .progress_bar import progress_bar
from .text import count, format_size, note, print_fields, print_json


@click.command("import")
@click.argument("folder")
@url_argument
@at_option
@store_options
def command(folder: str, url: str, ref: str, as_json: bool, timeout_s: float) -> None:
    """Import a checkpoint of LaminarDB into a new pipeline.

    What FOLDER is, its content tells: LaminarDB's checkpoints, of manifest version 1 or 2. It is only read. Every byte
    is verified before the pipeline is touched, and a checkpoint with a fatal finding is refused. An import that was
    interrupted is run again; one that is done already does nothing.

    \b
    Examples:
      slackwater import ./laminardb s3://bucket/slackwater/orders
      slackwater import s3://bucket/laminar ./store/orders --at 0192d3f0
    """
    from ..ops.import_ import import_folder  # noqa: PLC0415

    remember_url(url)
    remove_when_interrupted(lambda: None)  # what is on the local disk meanwhile goes then by itself
    with progress_bar("reading") as progress:
        imported = import_folder(folder, url, at=ref, settings=make_settings(timeout_s), progress=progress)
    if as_json:
        print_json({"folder": folder, "url": url, "imported": imported})
        return
    origin, state = imported.origin, count(imported.operators, "operator")
    print_fields(
        {
            "imported": f"{origin.format} checkpoint {origin.checkpoint_id}, epoch {origin.epoch}",
            "as": f"epoch {imported.epoch} of {imported.pipeline}, checkpoint {imported.checkpoint_id}",
            "state": f"{state}, {format_size(imported.size_bytes)}, every byte verified",
        }
    )
    if imported.done:
        note("nothing to do: it had been imported already")
