"""What a streaming DataFrame's plan tells before it runs: its sources, its state, a fingerprint of the query."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..formats.query import Query, cut
from .logical import NUMBER, leaves_of, neutral_text, read_plan, source_type
from .operators import describe_operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What Spark takes from the checkpoint, whatever the session says, and what it takes from the session, so that one
# state would mix two meanings.
_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.streaming.multipleWatermarkPolicy")
_TIME_ZONE = "spark.sql.session.timeZone"


def source_types(frame: DataFrame) -> list[str]:
    """List the kinds of the streaming sources as Spark's offset log has them: in this order, each time one is named."""
    leaves = [leaf for leaf in leaves_of(frame) if leaf.isStreaming()]
    return [source_type(leaf) for leaf in leaves if leaf.nodeName() != "CTERelationRef"]


def describe_query(frame: DataFrame, output_mode: str) -> Query:
    """Describe what the query's state rests on: not where sources read, nor what is computed without state.

    Without state no setting matters to it.
    """
    with neutral_text(frame) as text:
        operators = describe_operators(read_plan(frame), output_mode.lower(), text)
    settings = {key: str(frame.sparkSession.conf.get(key)) for key in _SETTINGS} | {_TIME_ZONE: _time_zone(frame)}
    return cut(
        Query(
            output_mode=output_mode.lower(),
            sources=source_types(frame),
            operators=operators,
            settings=settings if operators else {},
        )
    )


def pipeline_hash(frame: DataFrame, output_mode: str, sinks: Sequence[str]) -> str:
    """Hash what the query computes; an unchanged query has an equal hash in every run, on every machine.

    ``sinks`` are the sinks' names and kinds. Functions count by their names. Settings do not count: they differ between
    machines; nor does where the sources read.
    """
    numbers: dict[str, int] = {}
    with neutral_text(frame) as text:
        lines = [f"{depth} {text.node(node)}" for depth, node in read_plan(frame).walk()]
    # Expressions are numbered anew, from the first on, so that two columns of one name stay two.
    lines = [NUMBER.sub(lambda found: f"#{numbers.setdefault(found[1], len(numbers))}", line) for line in lines]
    return hashlib.sha256("\n".join([output_mode.lower(), *sorted(sinks), *lines]).encode()).hexdigest()


def _time_zone(frame: DataFrame) -> str:
    """Name the session's time zone; one with a fixed offset by that, so that Etc/UTC, GMT and Z are one."""
    jvm: Any = frame.sparkSession._jvm
    zones = jvm.java.time.ZoneId
    offset = str(zones.of(frame.sparkSession.conf.get(_TIME_ZONE), zones.SHORT_IDS).normalized().getId())
    return "UTC" if offset == "Z" else offset
