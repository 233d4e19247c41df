"""The description of a query that is kept with a checkpoint, and compared at the next start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Annotated

import msgspec
from msgspec import Meta

from .ids import Name

MAX_OPERATORS = 8
MAX_ITEMS = 64
MAX_LIST_BYTES = 1_500
MAX_TEXT = 200

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
# One more than is kept: the last may stand for those that were cut.
Texts = Annotated[list[Text], Meta(max_length=MAX_ITEMS + 1)]


class QueryOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stateful operator: what its state is kept by, and what is kept, each with its type."""

    keys: Texts
    name: Name
    values: Texts


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sources in the order of Spark's offset log, operators in the order of Spark's operator ids."""

    operators: Annotated[list[QueryOperator], Meta(max_length=MAX_OPERATORS + 1)]
    output_mode: Name
    settings: Annotated[dict[Name, Text], Meta(max_length=MAX_ITEMS)]
    sources: Annotated[list[Name], Meta(max_length=MAX_ITEMS + 1)]


def cut(query: Query) -> Query:
    """Cut a description of any size to its bounds; a digest stands for what is cut, so no change in it is lost."""
    operators = [
        QueryOperator(name=_cut_text(operator.name), keys=_cut_list(operator.keys), values=_cut_list(operator.values))
        for operator in query.operators[:MAX_OPERATORS]
    ]
    if rest := query.operators[MAX_OPERATORS:]:
        everything = [repr(msgspec.to_builtins(operator)) for operator in rest]
        operators.append(QueryOperator(name=_stand_in(everything), keys=[], values=[]))
    return Query(
        output_mode=_cut_text(query.output_mode),
        sources=_cut_list(query.sources),
        operators=operators,
        settings={key: _cut_text(value) for key, value in query.settings.items()},
    )


def _cut_list(items: list[str]) -> list[str]:
    kept: list[str] = []
    room = MAX_LIST_BYTES
    for item in map(_cut_text, items):
        room -= len(item.encode())
        if room < 0 or len(kept) == MAX_ITEMS:
            return [*kept, _stand_in(items[len(kept) :])]
        kept.append(item)
    return kept


def _cut_text(text: str) -> str:
    if len(text) > MAX_TEXT:
        return f"{text[: MAX_TEXT - 30]}… ({_digest([text])})"
    return text or "(nameless)"


def _stand_in(items: list[str]) -> str:
    return f"{len(items)} more ({_digest(items)})"


def _digest(items: Iterable[str]) -> str:
    # The repr, because two lists must not join to one text.
    return f"sha256 {hashlib.sha256(repr(list(items)).encode()).hexdigest()[:16]}"


def differences(before: Query, now: Query) -> list[str]:
    """Say, a line each, what makes ``before``'s state unfit for ``now``; empty when nothing does.

    Only settings that both have are compared: a release that begins to look at one must not refuse older checkpoints.
    """
    lines = []
    if before.output_mode != now.output_mode:
        lines.append(f"output mode was {before.output_mode}, is {now.output_mode}")
    lines += _sources(before.sources, now.sources)
    lines += _operators(before.operators, now.operators)
    for key in sorted(before.settings.keys() & now.settings.keys()):
        if before.settings[key] != now.settings[key]:
            lines.append(f"setting {key} was {before.settings[key]}, is {now.settings[key]}")
    return lines


def _sources(before: list[str], now: list[str]) -> list[str]:
    both = enumerate(zip(before, now, strict=False))
    return [
        *(f"source {i} was {old}, is {new}" for i, (old, new) in both if old != new),
        *(f"source {i} ({name}) is gone" for i, name in enumerate(before) if i >= len(now)),
        *(f"source {i} ({name}) is new" for i, name in enumerate(now) if i >= len(before)),
    ]


def _operators(before: list[QueryOperator], now: list[QueryOperator]) -> list[str]:
    """Compare by kind first: one operator more in front of the others should read as that, not as all changed."""
    kinds = SequenceMatcher(None, [op.name for op in before], [op.name for op in now], autojunk=False)
    lines = []
    for what, i, i_end, j, j_end in kinds.get_opcodes():
        if what == "equal":
            for k, (old, new) in enumerate(zip(before[i:i_end], now[j:j_end], strict=True)):
                lines += _operator(f"operator {j + k} ({new.name})", old, new)
            continue
        pairs = min(i_end - i, j_end - j)
        lines += [f"operator {j + k} was {before[i + k].name}, is {now[j + k].name}" for k in range(pairs)]
        lines += [f"operator {k} ({before[k].name}) is gone" for k in range(i + pairs, i_end)]
        lines += [f"operator {k} ({now[k].name}) is new" for k in range(j + pairs, j_end)]
    return lines


def _operator(title: str, before: QueryOperator, now: QueryOperator) -> list[str]:
    lines = []
    if before.keys != now.keys:
        verb = "grouped" if "aggregate" in now.name else "keyed"
        lines.append(f"{title} was {verb} by {_join(before.keys)}; now by {_join(now.keys)}")
    if before.values != now.values:
        gone = [f"{value} is gone" for value in before.values if value not in now.values]
        new = [f"{value} is new" for value in now.values if value not in before.values]
        order = [f"{_join(before.values)} became {_join(now.values)}"]
        lines.append(f"{title}: {_join([*gone, *new] or order)}")
    return lines


def _join(items: list[str]) -> str:
    return ", ".join(items) or "nothing"
