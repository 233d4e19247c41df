"""Delivery: what sources and sinks give together, and that no more is promised."""

from __future__ import annotations

import pytest

from slackwater.errors import Unsupported
from slackwater.sinks.function import FunctionSink
from slackwater.streaming.delivery import check_delivery


def test_what_a_source_promises_is_told_and_a_bare_socket_is_told_why():
    assert check_delivery(["inbox", "file"], {}, "exactly-once") == "exactly once from the receiver on"
    assert check_delivery(["file"], {}, None) == "exactly once"
    assert check_delivery(["textsocket"], {}, None).startswith("at most once (the source textsocket cannot replay")
    with pytest.raises(Unsupported, match=r"delivery\.weaker"):
        check_delivery(["socket", "inbox"], {}, "exactly-once")


def test_a_function_makes_it_at_least_once_and_is_named():
    sinks = {"seen": FunctionSink(print)}
    assert check_delivery(["file"], sinks, "at-least-once") == "at least once (the sink seen)"
    with pytest.raises(Unsupported, match=r"delivery\.weaker.*at-least-once \(the sink seen\), not exactly-once"):
        check_delivery(["file"], sinks, "exactly-once")
