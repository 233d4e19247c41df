"""``slackwater restore``: a checkpoint as a directory, which plain Spark starts from if it is Spark's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from .entry import remove_when_interrupted
from .options import at_option, make_settings, open_pipeline, resolve, store_options, tell_passed_over, url_argument
from .text import count, format_size, plain, print_fields, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from ..formats.manifest import Manifest
    from ..formats.state import LiveCheckpoint
    from ..ops.pipelines import Pipeline
    from ..ops.refs import LeftOut

# Beside a driver that retires checkpoints faster than they can be read, only a savepoint can be had.
_MAX_TRIES = 10


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

    from ..formats.manifest import kind_of  # noqa: PLC0415
    from ..protocol.kinds import whose  # noqa: PLC0415
    from ..protocol.recovery import load_manifest  # noqa: PLC0415
    from ..spark.hydrate import checkpoint_location, hydrate, remove_unfinished, write_files  # noqa: PLC0415

    if not directory.strip():
        raise click.BadParameter("it is empty; the folder of this process is .", param_hint="--to")
    if "://" in directory:  # as a path it would be ./s3:/…
        raise click.BadParameter(f"{directory} is a URL; a directory of this machine is needed.", param_hint="--to")
    pipeline, target = open_pipeline(url, timeout_s), Path(directory).absolute()
    if _is_inside(target, pipeline.store.url):
        raise click.BadParameter(f"{target} is inside the pipeline's own folder.", param_hint="--to")
    remove_when_interrupted(remove_unfinished)
    manifests: dict[str, Manifest] = {}

    def restore(entry: LiveCheckpoint) -> None:
        with pipeline.log.unless_retired(entry):
            manifest = load_manifest(pipeline.store, entry)
            write = hydrate if kind_of(manifest) == "spark" else write_files
            write(pipeline.store, manifest, target, make_settings(timeout_s))
        manifests[entry.checkpoint_id] = manifest

    entry, passed = _restore_one(pipeline, ref, restore)
    manifest = manifests[entry.checkpoint_id]
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    if as_json:
        facts = {"pipeline": pipeline.name, "url": url, "epoch": entry.epoch, "checkpoint_id": entry.checkpoint_id}
        result = {"directory": str(target), "files": len(sizes), "size_bytes": sum(sizes), "passed_over": passed}
        print_json({**facts, "micro_batch": manifest.micro_batch, **result})
        return
    is_sparks = kind_of(manifest) == "spark"
    then = f"Spark goes on with {manifest.micro_batch + 1}" if is_sparks else whose(manifest)
    print_fields(
        {
            "restored": f"epoch {entry.epoch}, checkpoint {entry.checkpoint_id}",
            "micro-batch": f"{manifest.micro_batch}; {then}",
            "written": f"{count(len(sizes), 'file')}, {format_size(sum(sizes))}, every byte verified",
        }
    )
    if is_sparks:
        location = json.dumps(checkpoint_location(target), ensure_ascii=False)
        print(f'\nto use it with plain Spark:\n  .option("checkpointLocation", {plain(location)})')


def _restore_one(
    pipeline: Pipeline, ref: str, restore: Callable[[LiveCheckpoint], None]
) -> tuple[LiveCheckpoint, list[LeftOut]]:
    """Restore what ``ref`` names; when that is retired while it is read, what ``ref`` names then."""
    import msgspec  # noqa: PLC0415

    from ..errors import Corrupt, NotFound, Unsupported  # noqa: PLC0415
    from ..ops.refs import LATEST_REF, NEWEST_VERIFIED  # noqa: PLC0415
    from ..protocol.rollback import get_newest_verified  # noqa: PLC0415

    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            if ref == NEWEST_VERIFIED:
                # A directory that is not empty is InvalidInput, and no damage.
                damage, state = (Corrupt, Unsupported), pipeline.state
                entry, passed = get_newest_verified(state, state.live, restore, damage=damage)
            else:
                entry, passed = resolve(pipeline, ref)
                restore(entry)
        except NotFound:
            fresh = pipeline.log.state
            if not tries_left or fresh is None or fresh is pipeline.state:
                raise
            pipeline = msgspec.structs.replace(pipeline, state=fresh)
        else:
            if ref in (LATEST_REF, NEWEST_VERIFIED):  # of the others it has been told
                tell_passed_over(passed)
            return entry, passed
    raise AssertionError("the last try returns or raises")


def _is_inside(target: Path, store_url: str) -> bool:
    """Tell whether a directory lies in a store: what is there may be taken for the store's own."""
    from ..store import local_folder  # noqa: PLC0415

    folder = local_folder(store_url)
    return folder is not None and target.resolve().is_relative_to(folder.resolve())
