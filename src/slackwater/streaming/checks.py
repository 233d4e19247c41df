"""Checks before a start: refuse what can be refused before the claim, which fences a running driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import Unsupported
from ..formats.manifest import Manifest
from ..formats.query import Query, differences
from ..protocol.address import refuse_pipeline
from ..protocol.kinds import refuse_foreign
from ..protocol.pipeline import Pipeline
from ..protocol.sinks import Sink
from ..sources.query_inboxes import inboxes_of, refuse_dropped, refuse_others
from ..spark.logical import leaves_of, listed
from ..spark.plan import describe_query, pipeline_hash, source_types
from ..spark.session import check_session
from ..tables.table import Table, tables_of
from .delivery import check_delivery
from .options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("slackwater")


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for: all that a writer collects."""

    frame: Any
    writer: Any
    name: str
    url: str
    output_mode: str
    sinks: dict[str, Sink]
    options: Options


class QueryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a query before its pipeline is claimed: its plan says it."""

    description: Query
    hash: str
    source_types: list[str]
    inboxes: dict[str, Path]
    tables: dict[str, Table]
    delivery: str


def examine(definition: Definition) -> QueryFacts:
    """Read what a query's plan says; refuse a session that it cannot run in, and a delivery that it cannot give."""
    frame, mode, options = definition.frame, definition.output_mode, definition.options
    check_session(frame.sparkSession, options.settings)
    _refuse_clean_up(frame)
    sources, tables = source_types(frame), tables_of(frame)
    fed_from = [kind for table in tables.values() for kind in table.feed.source_types()]
    return QueryFacts(
        description=describe_query(frame, mode),
        hash=pipeline_hash(frame, mode, [f"{name}:{sink.kind}" for name, sink in definition.sinks.items()]),
        source_types=sources,
        inboxes=inboxes_of(frame),
        tables=tables,
        delivery=check_delivery([*sources, *fed_from], definition.sinks, options.delivery),
    )


def check_newest(definition: Definition, facts: QueryFacts, pipeline: Pipeline) -> None:
    """Refuse a pipeline, a query, a table or an inbox that cannot go on from the newest checkpoint."""
    for table in facts.tables.values():
        table.refuse_taken()
    options = definition.options
    before, state = refuse_foreign(pipeline, "spark"), pipeline.log.state
    if state is None:
        refuse_pipeline(options.store, options.settings, options.store_options)
    # Without a manifest there is no checkpoint yet, or it is damaged: recovery says what is wrong with it.
    if before is not None and state is not None and before.epoch == state.epoch:
        refuse_changed(definition, facts, before)
        refuse_dropped(facts.inboxes, before)
        for what in _sink_changes(before, definition.sinks):
            logger.warning("since epoch %d, %s", before.epoch, what)
        if before.pipeline_hash not in (None, facts.hash):
            logger.info("the query has changed since epoch %d, in ways that its state does not depend on", before.epoch)
    refuse_others(facts.inboxes, state.uid if state else None)


def refuse_changed(definition: Definition, facts: QueryFacts, before: Manifest) -> None:
    """Refuse a query that is not the one whose state it would take over."""
    changed = differences(before.query, facts.description) if before.query else []
    if changed and not definition.options.accept_changes:
        raise Unsupported(
            f"the query is not the one that made epoch {before.epoch}: {'; '.join(changed)}",
            code="query.changed",
            hint="change it back, or begin anew under another queryName and with new targets for its sinks, because "
            'all is read again; .option("accept_changes", True) lets Spark try it with the old state',
            differences=changed,
        )


def _sink_changes(before: Manifest, sinks: dict[str, Sink]) -> Iterator[str]:
    """Say what has become of sinks: each has rows of those epochs alone in which it was in the pipeline."""
    for name, output in before.sinks.items():
        if name not in sinks:
            yield f"the sink {name!r} has gone, and gets nothing of what comes from now on"
        elif output.can_undo and (sinks[name].kind, sinks[name].address) != (output.kind, output.address):
            yield f"the sink {name!r} has moved: what comes from now on goes to {sinks[name].address}"
    for name in sinks.keys() - before.sinks.keys():
        yield f"the sink {name!r} is new, and gets nothing of what came before"


def _refuse_clean_up(frame: DataFrame) -> None:
    """Refuse a source that drops what it has read when Spark commits: a checkpoint may need it for longer."""
    for leaf in leaves_of(frame):
        if leaf.getClass().getSimpleName() != "StreamingRelation":
            continue
        for option in listed(leaf.dataSource().options().toSeq()):
            if option._1().lower() == "cleansource" and option._2().lower() != "off":
                raise Unsupported(
                    f"cleanSource={option._2()} would take files away that a checkpoint may still need",
                    code="query.unsupported",
                    hint="read without cleanSource; clean up yourself, behind the oldest checkpoint that is kept",
                )
