"""``slackwater restore``: a checkpoint as a directory, which plain Spark starts from if it is Spark's."""

from __future__ import annotations

import json

import click

from .entry import remove_when_interrupted
from .options import at_option, make_settings, store_options, tell_choice, tell_passed_over, url_argument
from .text import count, format_size, plain, print_fields, print_json


@click.command("restore")
@url_argument
@click.option("--to", "directory", metavar="DIR", required=True, help="A directory that is new or empty.")
@at_option
@store_options
def command(url: str, directory: str, ref: str, as_json: bool, timeout_s: float) -> None:
    """Restore a checkpoint into a fresh directory.

    Every byte is verified. The directory is a checkpointLocation of Spark; a checkpoint that was imported, or that a
    program without Spark made, comes as its files. The pipeline itself is not changed. REF may also be newest-verified:
    the newest checkpoint that can be restored. What was passed over is told, with the reason.

    \b
    Examples:
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders --at before-upgrade
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders --at newest-verified
    """
    from pathlib import Path  # noqa: PLC0415

    from ..ops.refs import LATEST_REF  # noqa: PLC0415
    from ..ops.restore import restore  # noqa: PLC0415
    from ..protocol.directory import remove_unfinished  # noqa: PLC0415
    from ..protocol.kinds import whose  # noqa: PLC0415
    from ..spark.hydrate import checkpoint_location  # noqa: PLC0415

    remove_when_interrupted(remove_unfinished)
    restored = restore(url, directory, ref, settings=make_settings(timeout_s))
    tell_choice(ref, restored.epoch, restored.created_at_ms, restored.passed_over)
    if ref == LATEST_REF:
        tell_passed_over(restored.passed_over)
    if as_json:
        print_json(restored)
        return
    is_sparks = restored.kind == "spark"
    then = f"Spark goes on with {restored.micro_batch + 1}" if is_sparks else whose(restored.kind)
    print_fields(
        {
            "restored": f"epoch {restored.epoch}, checkpoint {restored.checkpoint_id}",
            "micro-batch": f"{restored.micro_batch}; {then}",
            "written": f"{count(restored.files, 'file')}, {format_size(restored.size_bytes)}, every byte verified",
        }
    )
    if is_sparks:
        location = json.dumps(checkpoint_location(Path(restored.directory)), ensure_ascii=False)
        print(f'\nto use it with plain Spark:\n  .option("checkpointLocation", {plain(location)})')
