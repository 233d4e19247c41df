"""``slackwater verify``: are a pipeline's checkpoints sound?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Corrupt, SlackwaterError
from .folders import folder_instead, verify_folder
from .options import make_settings, store_options, tell_choice, url_argument
from .progress_bar import progress_bar
from .text import count, format_size, print_json, print_table

if TYPE_CHECKING:
    from ..ops.verify import Finding, Verification


@click.command("verify")
@url_argument
@click.option("--at", "ref", metavar="REF", help="One checkpoint: epoch, id, label or @TIME.  [default: all]")
@click.option("--read-data", is_flag=True, help="Read every byte and check its SHA-256, and the whole log.")
@store_options
def command(url: str, ref: str | None, read_data: bool, as_json: bool, timeout_s: float) -> int:
    """Verify the checkpoints of a pipeline.

    Nothing is changed. Manifests are read and checked, and every object that they need must be there with its right
    size. With --read-data each such object is read, once. Exit code 13 says that something is damaged or missing. A
    folder of LaminarDB's checkpoints is verified as far as its own digests go.

    \b
    Examples:
      slackwater verify s3://bucket/slackwater/orders
      slackwater verify s3://bucket/slackwater/orders --read-data
      slackwater verify ./store/orders --at latest --json
      slackwater verify ./laminardb/checkpoints --read-data
    """
    from ..ops.verify import verify  # noqa: PLC0415

    try:
        with progress_bar("reading") as progress:
            result = verify(url, ref, read_data=read_data, progress=progress, settings=make_settings(timeout_s))
    except SlackwaterError as error:
        return verify_folder(folder_instead(error, url, timeout_s), ref, read_data=read_data, as_json=as_json)
    if ref is not None and result.at is not None:
        tell_choice(ref, result.at.epoch, result.at.created_at_ms, result.at.passed_over)
    if as_json:
        print_json(result)
    else:
        _print(result)
    return 0 if result.sound else Corrupt.exit_code


def _print(result: Verification) -> None:
    if result.findings:
        rows = [
            [finding.severity, finding.code, finding.key, _name_epochs(finding), finding.message]
            for finding in result.findings
        ]
        print_table(["SEVERITY", "CODE", "OBJECT", "EPOCHS", "PROBLEM"], rows)
        print()
    errors = sum(finding.severity == "error" for finding in result.findings)
    depth = f"{format_size(result.read_bytes)} read" if result.read_data else "sizes only: --read-data reads every byte"
    print(
        f"{count(len(result.epochs), 'checkpoint')}, {count(result.objects, 'object')} ({depth}): "
        + (f"{count(errors, 'error')}" if errors else "sound")
    )


def _name_epochs(finding: Finding) -> str:
    """Name the epochs that need an object; a pipeline does not go on from one that was undone."""
    return ", ".join(f"{epoch} (undone)" if epoch in finding.undone else str(epoch) for epoch in finding.epochs) or "-"
