"""The stateful operators of a plan, each with what its state is kept by and what is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..formats.query import QueryOperator
from .logical import NUMBER, TRANSPARENT, Node, Text, listed, unnumbered

# Nodes whose output is that of the nodes below.
_PASSING = (TRANSPARENT - {"CTERelationRef"}) | {
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "EventTimeWatermark",
    "Filter",
    "GlobalLimit",
    "Join",
    "LocalLimit",
    "Repartition",
    "RepartitionByExpression",
    "Sample",
}
_BREAK = "\x01"

# Spark has turned a window into arithmetic on microseconds, and a session's gap into a sum, by the time it is analyzed.
_SLIDE = re.compile(r" - (\d+)\) % (\d+)\)")
_WIDTH = re.compile(r"\) \+ (\d+)\), LongType, Timestamp")
_GAP = re.compile(r" \+ (?:cast\()?(.+?)(?: as interval\))? as timestamp(?:_ntz)?\), Timestamp")


def describe_operators(root: Node, output_mode: str, text: Text) -> list[QueryOperator]:
    """Describe every stateful operator in the order of Spark's operator ids."""
    return list(_describe(root, _Live(None, frozenset()), output_mode, text))


def _describe(node: Node, live: _Live, output_mode: str, text: Text) -> Iterator[QueryOperator]:
    # In complete mode all rows come each time, so the first few need no memory of those before.
    if node.plan.isStateful() and not (node.name == "GlobalLimit" and output_mode == "complete"):
        yield _DESCRIBE.get(node.name, _unknown)(node, live, text)
    below = _below(node, live)
    for child in node.children:
        yield from _describe(child, below, output_mode, text)


# --- what each kind keeps


def _aggregate(node: Node, live: _Live, text: Text) -> QueryOperator:
    grouping = listed(node.plan.groupingExpressions())
    functions = [
        text.typed(function)
        for expression in listed(node.plan.aggregateExpressions())
        if live.has(own := _own(expression.toString())) or own in live.filtered
        for function in _functions(expression)
    ]
    return QueryOperator(
        name="session aggregate" if any(_is_window(key, "session") for key in grouping) else "aggregate",
        keys=[_key(key, node, text) for key in grouping],
        # Spark keeps a function once, however often it is used.
        values=list(dict.fromkeys(functions)),
    )


def _functions(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression
    else:
        for child in listed(expression.children()):
            yield from _functions(child)


def _deduplicate(node: Node, live: _Live, text: Text) -> QueryOperator:
    within = " within watermark" if node.name == "DeduplicateWithinWatermark" else ""
    keys = [_key(key, node, text) for key in listed(node.plan.keys())]
    return QueryOperator(name=f"deduplicate{within}", keys=keys, values=[])


def _distinct(node: Node, live: _Live, text: Text) -> QueryOperator:
    keys = [_key(key, node, text) for key in listed(node.plan.output())]
    return QueryOperator(name="distinct", keys=keys, values=[])


def _join(node: Node, live: _Live, text: Text) -> QueryOperator:
    used = None if live.used is None else live.used | _across(node)
    keys = []
    for equality in _conjuncts(node):
        if equality.getClass().getSimpleName() in ("EqualTo", "EqualNullSafe") and _sides(node, equality) == {0, 1}:
            pair = [equality.left(), equality.right()]
            pair.sort(key=lambda side: 1 in _sides(node, side))
            keys.append(f"{text.expression(pair[0])} = {text.typed(pair[1])}")
    values = [
        f"{side} {text.typed(column)}"
        for side, child in zip(("left", "right"), node.children, strict=True)
        for column in listed(child.plan.output())
        if used is None or column.exprId().id() in used
    ]
    return QueryOperator(name=f"{node.plan.joinType().sql().lower()} join", keys=keys, values=values)


def _with_state(node: Node, live: _Live, text: Text) -> QueryOperator:
    """Describe a user's function; what its processor keeps, ``transformWithState`` tells only when it runs."""
    plan, pandas = node.plan, "InPandas" in node.name
    if node.name == "TransformWithStateInPySpark":
        keys = listed(node.children[0].plan.output())[: plan.groupingAttributesLen()]
    else:
        keys = listed(plan.groupingAttributes())
    if "TransformWithState" in node.name:
        name, values = "transformWithState", [f"output mode {plan.outputMode()}", f"time mode {plan.timeMode()}"]
    else:
        name = "applyInPandasWithState" if pandas else "flatMapGroupsWithState"
        fields = (plan.stateType() if pandas else plan.stateEncoder().schema()).fields()
        values = [f"{field.name()} {field.dataType().catalogString()}" for field in fields]
        values.append(f"timeout {plan.timeout()}")
    return QueryOperator(name=name, keys=[_key(key, node, text) for key in keys], values=values)


def _unknown(node: Node, live: _Live, text: Text) -> QueryOperator:
    return QueryOperator(name="limit" if node.name == "GlobalLimit" else node.name, keys=[], values=[])


_DESCRIBE: dict[str, Callable[[Node, _Live, Text], QueryOperator]] = {
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
    "Distinct": _distinct,
    "FlatMapGroupsInPandasWithState": _with_state,
    "FlatMapGroupsWithState": _with_state,
    "Join": _join,
    "TransformWithState": _with_state,
    "TransformWithStateInPySpark": _with_state,
}


# --- keys


def _key(expression: Any, node: Node, text: Text) -> str:
    """Write a key with its type, and a window with its width: the type is the same for all."""
    key = text.typed(expression)
    if _is_window(expression, "time") or _is_window(expression, "session"):
        number = expression.exprId().id()
        for _, below in node.walk():
            if below.name in ("Project", "Expand") and number in _numbers(below.plan.output()):
                return key + _measure(unnumbered(text.node(below)))
    return key


def _is_window(expression: Any, kind: str) -> bool:
    column = expression.getClass().getSimpleName() == "AttributeReference"
    return column and bool(expression.metadata().contains(f"spark.{kind}Window"))


def _measure(words: str) -> str:
    """Say how wide a window is, from the expression that makes it.

    >>> _measure("((at#1 - 60000000) % 300000000) … - 0) + 600000000), LongType, TimestampType)")
    ' of 600 s every 300 s from 60 s'
    """
    if (slide := _SLIDE.search(words)) and (width := _WIDTH.search(words)):
        seconds = [f"{int(number) / 1e6:.15g} s" for number in (width[1], slide[2], slide[1])]
        every = f" every {seconds[1]}" if width[1] != slide[2] else ""
        return f" of {seconds[0]}{every}" + (f" from {seconds[2]}" if slide[1] != "0" else "")
    gap = _GAP.search(words)
    return f" of {gap[1]}" if gap else ""


# --- which columns are used


@dataclass(frozen=True)
class _Live:
    """The columns that the plan above a node uses, None for all, and those that it only filters by.

    The optimizer takes all others out of the state, and those of a filter where it can move that below.
    """

    used: frozenset[int] | None
    filtered: frozenset[int]

    def has(self, number: int) -> bool:
        return self.used is None or number in self.used


def _below(node: Node, live: _Live) -> _Live:
    """Say which columns of the nodes below are used."""
    if node.name in ("Project", "Aggregate"):
        expressions = node.plan.projectList() if node.name == "Project" else node.plan.aggregateExpressions()
        words = expressions.mkString(_BREAK).split(_BREAK)
        used = frozenset[int]().union(*(_found(each) for each in words if live.has(_own(each))))
        filtered = frozenset[int]().union(*(_found(each) for each in words if _own(each) in live.filtered))
        if node.name == "Project":
            return _Live(used, filtered)
        return _Live(used | filtered | _numbers(node.plan.groupingExpressions()), frozenset())
    if node.name not in _PASSING or live.used is None:
        return _Live(None, frozenset())
    if node.name == "Filter":
        return _Live(live.used, live.filtered | _numbers(node.plan.expressions()))
    return _Live(
        live.used | (_across(node) if node.name == "Join" else _numbers(node.plan.expressions())), live.filtered
    )


def _found(words: str) -> frozenset[int]:
    return frozenset(map(int, NUMBER.findall(words)))


def _numbers(expressions: Any) -> frozenset[int]:
    return _found(expressions.mkString(_BREAK))


def _own(words: str) -> int:
    """Tell an expression's own number, which comes last; a column's is its only one."""
    numbers = NUMBER.findall(words)
    return int(numbers[-1]) if numbers else -1


def _conjuncts(node: Node) -> list[Any]:
    condition = node.plan.condition()
    waiting, found = [condition.get()] if condition.isDefined() else [], []
    while waiting:
        expression = waiting.pop()
        if expression.getClass().getSimpleName() == "And":
            waiting += [expression.right(), expression.left()]
        else:
            found.append(expression)
    return found


def _sides(node: Node, expression: Any) -> set[int]:
    numbers = _found(expression.toString())
    return {side for side, child in enumerate(node.children) if numbers & _numbers(child.plan.output())}


def _across(node: Node) -> frozenset[int]:
    """Number the columns of a join's conditions that look at both sides; the others become filters below it."""
    both = [_found(each.toString()) for each in _conjuncts(node) if len(_sides(node, each)) == 2]
    return frozenset[int]().union(*both)
