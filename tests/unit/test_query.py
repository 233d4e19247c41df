"""The description of a query: bounded, and compared in words."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.formats.query import MAX_ITEMS, MAX_OPERATORS, MAX_TEXT, Query, QueryOperator, cut, differences

AGGREGATE = QueryOperator(name="aggregate", keys=["merchant string"], values=["sum(amount) bigint", "count(1) bigint"])
DEDUPLICATE = QueryOperator(name="deduplicate", keys=["id bigint", "at timestamp"], values=[])
QUERY = Query(
    output_mode="append",
    sources=["kafka", "file"],
    operators=[AGGREGATE, DEDUPLICATE],
    settings={"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"},
)


def changed(**fields) -> Query:
    return msgspec.structs.replace(QUERY, **fields)


def aggregate(**fields) -> Query:
    return changed(operators=[msgspec.structs.replace(AGGREGATE, **fields), DEDUPLICATE])


LIMIT = QueryOperator(name="limit", keys=[], values=[])
SAID = [
    (changed(output_mode="update"), ["output mode was append, is update"]),
    (changed(sources=["kafka", "kafka"]), ["source 1 was file, is kafka"]),
    (changed(sources=["file", "kafka"]), ["source 0 was kafka, is file", "source 1 was file, is kafka"]),
    (changed(sources=["kafka"]), ["source 1 (file) is gone"]),
    (changed(sources=["kafka", "file", "rate"]), ["source 2 (rate) is new"]),
    (
        aggregate(keys=["merchant string", "country string"]),
        ["operator 0 (aggregate) was grouped by merchant string; now by merchant string, country string"],
    ),
    (aggregate(keys=[]), ["operator 0 (aggregate) was grouped by merchant string; now by nothing"]),
    (
        aggregate(values=["count(1) bigint", "max(amount) bigint"]),
        ["operator 0 (aggregate): sum(amount) bigint is gone, max(amount) bigint is new"],
    ),
    (
        # Spark finds values by their place, and these have one type: it would mix them up without a word.
        aggregate(values=AGGREGATE.values[::-1]),
        ["operator 0 (aggregate): sum(amount) bigint, count(1) bigint became count(1) bigint, sum(amount) bigint"],
    ),
    (changed(operators=[AGGREGATE]), ["operator 1 (deduplicate) is gone"]),
    (changed(operators=[DEDUPLICATE]), ["operator 0 (aggregate) is gone"]),
    (changed(operators=[LIMIT, AGGREGATE, DEDUPLICATE]), ["operator 0 (limit) is new"]),
    (changed(operators=[LIMIT, DEDUPLICATE]), ["operator 0 was aggregate, is limit"]),
    (
        changed(operators=[AGGREGATE, msgspec.structs.replace(DEDUPLICATE, keys=["id string"])]),
        ["operator 1 (deduplicate) was keyed by id bigint, at timestamp; now by id string"],
    ),
    (
        changed(operators=[]),
        ["operator 0 (aggregate) is gone", "operator 1 (deduplicate) is gone"],
    ),
    (
        changed(settings={**QUERY.settings, "spark.sql.shuffle.partitions": "8"}),
        ["setting spark.sql.shuffle.partitions was 4, is 8"],
    ),
]


@pytest.mark.parametrize(("now", "lines"), SAID)
def test_a_change_is_said_in_words(now, lines):
    assert differences(QUERY, now) == lines


def test_a_setting_that_an_older_release_did_not_note_is_no_difference():
    assert differences(changed(settings={}), QUERY) == differences(QUERY, changed(settings={})) == []


texts = st.sampled_from(["a bigint", "b bigint", "c string"])
operators = st.builds(
    QueryOperator,
    name=st.sampled_from(["aggregate", "limit", "inner join"]),
    keys=st.lists(texts, max_size=3),
    values=st.lists(texts, max_size=3),
)
queries = st.builds(
    Query,
    output_mode=st.sampled_from(["append", "update"]),
    sources=st.lists(st.sampled_from(["kafka", "file"]), max_size=3),
    operators=st.lists(operators, max_size=4),
    settings=st.just({}),
)


@given(queries, queries)
def test_equal_queries_and_no_others_have_no_differences(before, now):
    assert (differences(before, now) == []) == (before == now)


def huge(last: str) -> Query:
    """Make a query too large in every list and every text; ``last`` stands where all is cut."""
    many = [f"column_{i} struct<{'x' * 50 * (i % 9)}>" for i in range(500)]
    operator = QueryOperator(name="aggregate" * 40, keys=[*many, last], values=["y" * 100_000 + last])
    return Query(
        output_mode="append",
        sources=[*["file"] * 500, last],
        operators=[*[operator] * 60, msgspec.structs.replace(operator, name=last)],
        settings={"spark.sql.session.timeZone": "z" * 10_000 + last},
    )


def test_a_query_of_any_size_is_cut_to_some_kilobytes():
    query = cut(huge("end"))
    data = msgspec.json.encode(query)
    assert msgspec.json.decode(data, type=Query) == query
    assert len(data) < 32 * 1024
    assert len(query.operators) == MAX_OPERATORS + 1
    assert len(cut(changed(sources=["f"] * 1000)).sources) == MAX_ITEMS + 1
    assert all(len(item) <= MAX_TEXT for operator in query.operators for item in [*operator.keys, *operator.values])


def test_a_change_in_what_was_cut_is_still_a_difference():
    lines = differences(cut(huge("end")), cut(huge("other")))
    for part in ("source", "operator 0", "operator 8 was 53 more (sha256 ", "setting"):
        assert any(line.startswith(part) for line in lines), part
    assert cut(huge("end")) == cut(huge("end"))


def test_a_query_within_the_bounds_is_left_as_it_is():
    assert cut(QUERY) == QUERY


@pytest.mark.parametrize(
    "fields",
    [
        {"sources": ["f"] * (MAX_ITEMS + 2)},
        {"sources": [""]},
        {"output_mode": "x" * 201},
        {"operators": [LIMIT] * (MAX_OPERATORS + 2)},
        {"operators": [msgspec.structs.replace(LIMIT, keys=["k" * (MAX_TEXT + 1)])]},
        {"settings": {"spark.sql.shuffle.partitions": 4}},
        {"surplus": 1},
    ],
)
def test_a_query_out_of_bounds_is_not_read(fields):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({**msgspec.to_builtins(QUERY), **fields}), type=Query)
