"""Delivery is decided here: the guarantee that a pipeline's sources and sinks really give together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from ..errors import Unsupported
from ..protocol.sinks import Sink
from ..sources.contracts import contract_of

# From the weakest on.
Level = Literal["at-most-once", "at-least-once", "exactly-once"]
_LEVELS = get_args(Level)


def check_delivery(source_types: Collection[str], sinks: Mapping[str, Sink], wanted: Level | None) -> str:
    """Say the delivery that these sources and sinks really give; refuse a stronger one that was asked for."""
    contracts = {source: contract_of(source) for source in sorted(source_types)}
    lossy = [source for source, contract in contracts.items() if contract.delivery == "at-most-once"]
    weak = sorted(name for name, sink in sinks.items() if sink.delivery != "exactly-once")
    level = "at-most-once" if lossy else "at-least-once" if weak else "exactly-once"
    if lossy:
        why = f" (the source {lossy[0]} {contracts[lossy[0]].why})"
    elif weak:
        why = f" (the sink {weak[0]})"
    else:
        why = "".join(f" {said}" for said in sorted({contract.why for contract in contracts.values()} - {""}))
    if wanted is not None and _LEVELS.index(wanted) > _LEVELS.index(level):
        raise Unsupported(
            f"this pipeline delivers {level}{why}, not {wanted}",
            code="delivery.weaker",
            hint="use a source that can replay, or a receiver: slackwater receive --help"
            if lossy
            else "write through sw.DeltaSink or sw.FileSink",
        )
    return level.replace("-", " ") + why
