"""``slackwater rollback``: make an older checkpoint the one that the pipeline goes on from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import make_settings, store_options, tell_choice, url_argument
from .plans import format_span, print_effects, tell_outcome
from .text import count, format_time, note, print_fields, print_json

if TYPE_CHECKING:
    from ..ops.rollback import RollbackPlan


@click.command("rollback")
@url_argument
@click.option(
    "--to", metavar="REF", required=True, help="The checkpoint to go back to: epoch, id, label, @TIME, newest-verified."
)
@click.option("--keep", multiple=True, metavar="SINK", help="Leave this sink's rows as they are. May be repeated.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only the plan is shown.")
@store_options
def command(url: str, *, to: str, keep: tuple[str, ...], yes: bool, as_json: bool, timeout_s: float) -> None:
    """Roll a pipeline back to an older checkpoint.

    Shows the plan; --yes acts. History is not rewritten: the rollback is a new epoch with the older one's content. The
    pipeline's next start takes the rows of the epochs between back out of the sinks, and reads the sources again from
    there. A driver that runs is fenced. Every byte of the target is verified first.

    \b
    Examples:
      slackwater rollback s3://bucket/slackwater/orders --to 41
      slackwater rollback s3://bucket/slackwater/orders --to before-upgrade --yes
      slackwater rollback s3://bucket/slackwater/orders --to newest-verified --keep alerts --yes
    """
    from ..ops.rollback import rollback  # noqa: PLC0415

    plan = rollback(url, to, keep=keep, dry_run=not yes, settings=make_settings(timeout_s))
    acted = yes and not plan.done
    tell_choice(to, plan.to_epoch, plan.to_created_at_ms, plan.passed_over)
    if as_json:
        print_json({"url": url, "acted": acted, "plan": plan})
    elif plan.done:
        note(f"nothing to do: epoch {plan.head_epoch} is that checkpoint, or a rollback to it, already")
        if plan.running:
            note("a driver that runs was not stopped, and goes on from there")
    else:
        _print(plan)
        tell_outcome(plan, "rolled back; start the pipeline: it undoes in the sinks first" if acted else None)


def _print(plan: RollbackPlan) -> None:
    labels = ", ".join(plan.undone_labels)
    print_fields(
        {
            "from": f"epoch {plan.head_epoch}",
            "to": f"epoch {plan.to_epoch} of {format_time(plan.to_created_at_ms)}, every byte verified",
            "as": f"epoch {plan.epoch}",
            "undone": _format_undone(plan),
            **({"savepoints": f"{labels}: kept, and never again to be rolled back to"} if labels else {}),
            "driver": "one may be running; it will be fenced" if plan.running else "none is running",
        }
    )
    print_effects(plan)


def _format_undone(plan: RollbackPlan) -> str:
    """Name the epochs that are undone. Sinks hold rows of those, too, whose checkpoints have left."""
    kept = plan.undone_epochs
    if len(kept) == plan.head_epoch - plan.to_epoch:
        return f"{count(len(kept), 'epoch')}: {format_span(kept)}"
    return f"all that counts after epoch {plan.to_epoch}; checkpoints among it: {format_span(kept)}"
