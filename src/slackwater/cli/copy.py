"""``slackwater copy``: a checkpoint of LaminarDB becomes the first one of a pipeline."""

from __future__ import annotations

import click

from .options import at_option, make_settings, remember_url, store_options, url_argument
from .text import count, format_size, note, print_fields, print_json


@click.command("copy")
@click.argument("folder")
@url_argument
@at_option
@store_options
def command(folder: str, url: str, ref: str, as_json: bool, timeout_s: float) -> None:
    """Copy a checkpoint of the LaminarDB FOLDER into a new pipeline.

    Every byte is verified before the pipeline is touched, and a checkpoint with a fatal finding is refused. The folder
    is only read. A copy that was interrupted is run again; one that is done already does nothing.

    \b
    Examples:
      slackwater copy ./laminardb s3://bucket/slackwater/orders
      slackwater copy s3://bucket/laminar ./store/orders --at 0192d3f0
    """
    from ..ops.import_ import copy_in  # noqa: PLC0415

    remember_url(url)
    copied = copy_in(folder, url, ref=ref, settings=make_settings(timeout_s))
    if as_json:
        print_json({"folder": folder, "url": url, "copied": copied})
        return
    print_fields(
        {
            "copied": f"{copied.origin.format} checkpoint {copied.origin.checkpoint_id}, epoch {copied.origin.epoch}",
            "as": f"epoch {copied.epoch} of {copied.pipeline}, checkpoint {copied.checkpoint_id}",
            "state": f"{count(copied.operators, 'operator')}, {format_size(copied.size_bytes)}, every byte verified",
        }
    )
    if copied.done:
        note("nothing to do: it had been copied already")
