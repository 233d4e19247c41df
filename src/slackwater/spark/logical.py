"""A logical plan as a tree of nodes, whose text is the same in every run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVERYTHING = 2**31 - 1

# Nodes that change no row.
TRANSPARENT = {"CTERelationDef", "CTERelationRef", "CollectMetrics", "SubqueryAlias", "View", "WithCTE"}

# The number of an expression stands after its name; a literal such as '#112233' has none before it.
NUMBER = re.compile(r"(?<=[^\s(\[,=])#(\d+)(?=L?\b)")
_MARKS = re.compile(NUMBER.pattern + r"L?(-T\d+ms)?")

# What differs between two runs of an unchanged query, or on another machine.
_NOISE = [
    (re.compile(r"^(~?EventTimeWatermark) [0-9a-f-]{36}"), r"\1"),
    # Seeds, drawn anew unless they are given; and, in Some(2), how many cores there are.
    (re.compile(r"^(~?Sample \S+, \S+, \w+), -?\d+"), r"\1"),
    (re.compile(r"\b(randn?)\(-?\d+\)"), r"\1()"),
    (re.compile(r"\b((?:randstr|uniform)\([^()]*), -?\d+, (?=true|false)"), r"\1, "),
    (re.compile(r"\bSome\(-?\d+\)"), "Some()"),
    # The variables of Python lambdas are counted through the process.
    (re.compile(r"\blambda (\w+?)_\d+(?=#)"), r"lambda \1"),
    # Where things lie in memory.
    (re.compile(r"\b((?:[a-z][\w$]*\.){2,}[\w$]+)@[0-9a-f]+\b"), r"\1"),
    (re.compile(r"\$Lambda[^\s,)\]]*"), "lambda"),
]


@dataclass(frozen=True)
class Node:
    """One node; ``plan`` is Spark's own."""

    plan: Any
    name: str
    children: list[Node]
    subqueries: list[Node]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield what changes rows, each node before those below it."""
        seen = self.name not in TRANSPARENT
        if seen:
            yield depth, self
        for child in [*self.subqueries, *self.children]:
            yield from child.walk(depth + seen)


def read_plan(frame: DataFrame) -> Node:
    """Read the analyzed plan: as the program says it, while the optimizer's is another with each release."""
    return _read(frame._jdf.queryExecution().analyzed(), {})


def _read(plan: Any, definitions: dict[int, Any]) -> Node:
    name = plan.nodeName()
    if name == "WithCTE":
        definitions = {**definitions, **{each.id(): each for each in listed(plan.cteDefs())}}
        children = [plan.plan()]
    elif name == "CTERelationRef":
        # A common table expression stands wherever it is used, as Spark will run it.
        children = [definitions[plan.cteId()]]
    else:
        children = listed(plan.children())
    subqueries = [] if name in TRANSPARENT else listed(plan.subqueries())
    return Node(
        plan, name, [_read(each, definitions) for each in children], [_read(each, definitions) for each in subqueries]
    )


def leaves_of(frame: DataFrame) -> list[Any]:
    """List the leaves of the analyzed plan: what it reads."""
    return listed(frame._jdf.queryExecution().analyzed().collectLeaves())


def listed(sequence: Any) -> list[Any]:
    """List what a Scala sequence holds."""
    return [sequence.apply(i) for i in range(sequence.size())]


def unnumbered(words: str) -> str:
    """Take the numbers and watermarks out of the text of a plan.

    >>> unnumbered("(amount#1L > 3) AND isnotnull(at#2-T600000ms)")
    '(amount > 3) AND isnotnull(at)'
    """
    return _MARKS.sub("", words)


def source_type(leaf: Any) -> str:
    """Name the kind of a streaming source, as in ``readStream.format``."""
    name: str = leaf.sourceName() if leaf.nodeName().startswith("StreamingRelation") else leaf.nodeName()
    return name.partition("[")[0].lower().removesuffix("source")


@dataclass(frozen=True)
class Text:
    """How the parts of a plan read."""

    time_zone: str

    def node(self, node: Node) -> str:
        """Write a node; of a source, nothing about where it reads and how."""
        if not node.children and node.plan.isStreaming():
            schema, columns = node.plan.schema().catalogString(), node.plan.output().mkString(", ")
            return f"source {source_type(node.plan)} {schema} {columns}"
        return self.clean(node.plan.simpleString(_EVERYTHING))

    def expression(self, expression: Any) -> str:
        return unnumbered(self.clean(expression.toString()))

    def typed(self, expression: Any) -> str:
        return f"{self.expression(expression)} {expression.dataType().catalogString()}"

    def clean(self, text: str) -> str:
        """Take out of Spark's text what is not the query's."""
        for pattern, replacement in _NOISE:
            text = pattern.sub(replacement, text)
        return text.replace(f"Some({self.time_zone})", "Some(zone)")


@contextmanager
def neutral_text(frame: DataFrame) -> Iterator[Text]:
    """Have Spark write, in this thread, every time in UTC and every list in full."""
    session = frame.sparkSession
    sessions = session._get_j_spark_session_class(session._jvm)
    before, neutral = sessions.getActiveSession(), session._jsparkSession.newSession()
    neutral.conf().set("spark.sql.session.timeZone", "UTC")
    neutral.conf().set("spark.sql.debug.maxToStringFields", str(_EVERYTHING))
    sessions.setActiveSession(neutral)
    try:
        yield Text(str(session.conf.get("spark.sql.session.timeZone")))
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
