"""What the plans of a rollback and of a repair have in common, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .text import format_offsets, note, print_table

if TYPE_CHECKING:
    from ..ops.rollback import Plan


def format_span(epochs: Sequence[int]) -> str:
    """Name epochs, in short where none is missing between them.

    >>> format_span([3, 4, 5]), format_span([3, 5])
    ('3 to 5', '3, 5')
    """
    without_gap = len(epochs) > 2 and epochs[-1] - epochs[0] == len(epochs) - 1
    return f"{epochs[0]} to {epochs[-1]}" if without_gap else ", ".join(map(str, epochs))


def print_effects(plan: Plan) -> None:
    """Print what each sink will do, and from where the sources will be read again."""
    print()
    print_table(
        ["SINK", "KIND", "ADDRESS", "WILL", "WHAT"],
        [[sink.name, sink.kind, sink.address, sink.action, sink.detail] for sink in plan.sinks],
    )
    print()
    print_table(
        ["SOURCE", "TYPE", "STANDS AT", "READ AGAIN FROM"],
        [
            [
                source.name,
                source.source_type,
                format_offsets(source.now) if source.now else "unknown",
                format_offsets(source.then),
            ]
            for source in plan.sources
        ],
    )


def tell_outcome(plan: Plan, done: str | None) -> None:
    """Say what was done; if nothing was, who would refuse it, or how to do it."""
    for sink in plan.refused:
        note(f"refused: the sink {sink.name}; --keep {sink.name} leaves its rows as they are")
    if done:
        note(done)
    elif plan.refused:
        note("nothing was changed; with --yes it would be refused")
    else:
        note("nothing was changed; add --yes to do it")
