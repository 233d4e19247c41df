"""The options of a pipeline, in the forms in which users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

import slackwater as sw
from slackwater.settings import Settings
from slackwater.streaming.options import parse_options


def test_only_the_store_is_needed():
    options = parse_options({"store": "/x"})
    assert (options.store, options.settings, options.drop_sink, options.fallback) == ("/x", Settings(), [], None)
    assert options.accept_changes is False


def test_values_may_be_text_as_in_pyspark():
    given = {
        "store": Path("/x"),
        "workdir": Path("/w"),
        "keep_last": "3",
        "interval_s": "2.5",
        "accept_changes": "true",
        "metrics": 9109,
        "drop_sink": "totals, alerts",
        "store.region": "eu",
    }
    options = parse_options(given)
    assert (options.store, options.workdir, options.metrics) == ("/x", "/w", "9109")
    assert (options.settings.keep_last, options.settings.interval_s) == (3, 2.5)
    assert options.accept_changes is True
    assert options.drop_sink == ["totals", "alerts"]
    assert options.store_options == {"region": "eu"}
    assert parse_options({"store": "/x", "drop_sink": ["a,b"]}).drop_sink == ["a,b"]


@pytest.mark.parametrize(
    ("key", "value", "code", "words"),
    [
        ("fallback", "newest", "option.invalid", "fallback"),
        ("delivery", "once", "option.invalid", "delivery"),
        ("accept_changes", "maybe", "option.invalid", "accept_changes"),
        ("drop_sink", 7, "option.invalid", "drop_sink"),
        ("drop_sink", [".."], "name.invalid", "cannot be a name"),
        ("workdir", 7, "option.invalid", "workdir"),
        ("metrics", "here", "option.invalid", "is not an address to serve metrics at"),
        ("metrics", True, "option.invalid", "is not an address to serve metrics at"),
        ("interval_s", -1, "option.invalid", "the option interval_s cannot be"),
        ("interval_s", 86401, "option.invalid", "the option interval_s cannot be"),
        ("interval_s", "nan", "option.invalid", "the option interval_s cannot be"),
        ("interval_s", "5 seconds", "option.invalid", "the option interval_s cannot be"),
        ("interval_s", None, "option.invalid", "the option interval_s cannot be"),
        ("keep_last", "2.5", "option.invalid", "the option keep_last cannot be"),
        ("keep_last", "0", "option.invalid", "the option keep_last cannot be"),
        ("total_timeout_s", 0, "option.invalid", "the option total_timeout_s cannot be"),
    ],
)
def test_a_value_that_cannot_be_is_named(key, value, code, words):
    with pytest.raises(sw.InvalidInput) as raised:
        parse_options({"store": "/x", key: value})
    assert raised.value.code == code and words in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("fallback", "newest", "fallback can be newest-verified; or leave it out"),
        ("delivery", "once", "delivery can be at-least-once or at-most-once or exactly-once; or leave it out"),
        ("accept_changes", "maybe", "change the value, or leave it out"),
    ],
)
def test_an_option_that_has_but_some_values_is_told_with_them(key, value, hint):
    with pytest.raises(sw.InvalidInput) as raised:
        parse_options({"store": "/x", key: value})
    assert raised.value.hint == hint


def test_a_setting_is_refused_in_words_that_say_what_it_can_be():
    with pytest.raises(sw.InvalidInput) as raised:
        parse_options({"store": "/x", "interval_s": "5 seconds"})
    told = raised.value
    assert told.message == "the option interval_s cannot be '5 seconds': it is a number of seconds, from 0 to 86400"
    assert told.hint == 'write it without a unit, like .option("interval_s", 0), which is the default'
    with pytest.raises(sw.InvalidInput, match="a whole number of bytes, from 1 to 67108864"):
        parse_options({"store": "/x", "object_min_bytes": "1 MiB"})
    with pytest.raises(sw.InvalidInput, match="a number of seconds, from above 0 to 86400"):
        parse_options({"store": "/x", "total_timeout_s": "soon"})
