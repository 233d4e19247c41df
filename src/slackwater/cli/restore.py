"""``slackwater restore``: a checkpoint as a directory that plain Spark starts from."""

from __future__ import annotations

import json

import click

from .options import at_option, make_settings, open_pipeline, resolve, store_options, url_argument
from .text import count, format_size, plain, print_fields, print_json


@click.command("restore")
@url_argument
@click.option("--to", "directory", metavar="DIR", required=True, help="A directory that is new or empty.")
@at_option
@store_options
def command(url: str, directory: str, ref: str, as_json: bool, timeout_s: float) -> None:
    """Restore a checkpoint into a fresh directory.

    Every byte is verified. The directory is a checkpointLocation of Spark; a checkpoint that was copied in comes as
    its files. The pipeline itself is not changed.

    \b
    Examples:
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders --at before-upgrade
    """
    from pathlib import Path  # noqa: PLC0415

    from ..recovery import load_manifest  # noqa: PLC0415
    from ..spark.hydrate import hydrate, write_files  # noqa: PLC0415

    pipeline = open_pipeline(url, timeout_s)
    entry = resolve(pipeline, ref)
    target = Path(directory).absolute()
    manifest = load_manifest(pipeline.store, entry)
    foreign = manifest.origin is not None  # copied in: files, and nothing that Spark could start from
    (write_files if foreign else hydrate)(pipeline.store, manifest, target, make_settings(timeout_s))
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    if as_json:
        facts = {"pipeline": pipeline.name, "url": url, "epoch": entry.epoch, "checkpoint_id": entry.checkpoint_id}
        result = {"directory": str(target), "files": len(sizes), "size_bytes": sum(sizes)}
        print_json({**facts, "micro_batch": manifest.micro_batch, **result})
        return
    print_fields(
        {
            "restored": f"epoch {entry.epoch}, checkpoint {entry.checkpoint_id}",
            "micro-batch": f"{manifest.micro_batch}; "
            + ("copied in" if foreign else f"Spark goes on with {manifest.micro_batch + 1}"),
            "written": f"{count(len(sizes), 'file')}, {format_size(sum(sizes))}, every byte verified",
        }
    )
    if not foreign:
        print(f'\nto use it with plain Spark:\n  .option("checkpointLocation", {plain(json.dumps(target.as_uri()))})')
