"""``slackwater repair``: go on from the record before a damaged newest one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import make_settings, store_options, tell_passed_over, url_argument
from .plans import format_span, print_effects, tell_outcome
from .text import count, format_time, note, print_fields, print_json

if TYPE_CHECKING:
    from ..ops.repair import RepairPlan


@click.command("repair")
@url_argument
@click.option("--keep", multiple=True, metavar="SINK", help="Leave this sink's rows as they are. May be repeated.")
@click.option("--keep-older", is_flag=True, help="Nobody else is at work on the pipeline: keep older checkpoints, too.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only the plan is shown.")
@store_options
def command(url: str, *, keep: tuple[str, ...], keep_older: bool, yes: bool, as_json: bool, timeout_s: float) -> None:
    """Pass by a damaged newest record of a pipeline's log.

    Shows the plan; --yes acts. What the damaged record said is given up: the pipeline goes on from the record before
    it, by a new record. The pipeline's next start takes rows of later epochs back out of the sinks, and reads the
    sources again from there. A driver that runs is fenced. Savepoints stay; other checkpoints leave, for the damaged
    record may have retired them. Where the newest record is sound, nothing is done.

    \b
    Examples:
      slackwater repair s3://bucket/slackwater/orders
      slackwater repair s3://bucket/slackwater/orders --yes
      slackwater repair s3://bucket/slackwater/orders --keep alerts --keep-older --yes
    """
    from ..ops.repair import repair  # noqa: PLC0415

    plan = repair(url, keep=keep, keep_older=keep_older, dry_run=not yes, settings=make_settings(timeout_s))
    if as_json:
        print_json({"url": url, "acted": yes and plan is not None, "plan": plan})
    elif plan is None:
        note("nothing to repair: the newest record is sound")
    else:
        _print(plan, keep_older)
        tell_outcome(plan, "repaired; start the pipeline: it brings the sinks there first" if yes else None)


def _print(plan: RepairPlan, keep_older: bool) -> None:
    numbers, labels = plan.damaged_records, ", ".join(plan.labels)
    undone, leaving = plan.undone_epochs, [retired.epoch for retired in plan.retired]
    print_fields(
        {
            "damaged": f"record {numbers[-1]}" if len(numbers) == 1 else f"records {numbers[0]} to {numbers[-1]}",
            "it was": f"perhaps {' or '.join(plan.may_have_been)}",
            "from": f"record {plan.from_number}, which ends at epoch {plan.head_epoch}",
            "to": f"epoch {plan.to_epoch} of {format_time(plan.to_created_at_ms)}, every byte verified",
            "because": plan.why,
            "as": f"epoch {plan.epoch}, above all that a sink may have seen",
            **({"undone": f"{count(len(undone), 'epoch')}: {format_span(undone)}"} if undone else {}),
            **({"retired": f"{count(len(leaving), 'checkpoint')}: {format_span(leaving)}"} if leaving else {}),
            **({"savepoints": f"{labels}: kept"} if labels else {}),
            "driver": "one may be running; it will be fenced",
        }
    )
    print_effects(plan)
    tell_passed_over(plan.passed_over)
    if plan.unsettled:
        note(f"not every sink may have epoch {plan.to_epoch}: the next start commits it there first")
    for reason in sorted({retired.reason for retired in plan.retired}):
        epochs = [retired.epoch for retired in plan.retired if retired.reason == reason]
        note(f"retired: {format_span(epochs)}: {reason}")
    if leaving and not keep_older:
        note("--keep-older keeps those of them that are whole; only when nobody else is at work on the pipeline")
    for label in plan.damaged_labels:
        note(f"bytes of the savepoint {label} are missing: it stays, and can be restored from a copy")
