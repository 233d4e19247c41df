"""What checkpoints say of inboxes: where they stand, and what they have let go."""

from __future__ import annotations

from slackwater.formats.manifest import SourcePosition
from slackwater.formats.positions import acknowledged_of, note_acknowledged, positions_of


def source(inbox: str = "a", position: str = "7", kind: str = "inbox", **metadata: str) -> SourcePosition:
    offsets = {"inbox": inbox, "position": position}
    return SourcePosition(source_type=kind, offsets=offsets, verbatim="", metadata=metadata)


def test_an_inbox_that_is_read_twice_stands_where_the_slower_one_does() -> None:
    assert positions_of({"0": source(position="9"), "1": source(position="7"), "2": source("b", "3")}) == {
        "a": 7,
        "b": 3,
    }


def test_other_sources_and_what_is_no_position_say_nothing() -> None:
    sources = {"0": source(kind="kafka"), "1": source(position="-1"), "2": source(position="7x")}
    assert positions_of(sources) == acknowledged_of(sources) == {}
    assert acknowledged_of({"0": source(acknowledged="x"), "1": source(kind="kafka", acknowledged="3")}) == {}


def test_what_was_let_go_is_noted_with_each_source_of_that_inbox_and_found_again() -> None:
    sources = {"0": source(topic="t"), "1": source("b"), "2": source(kind="kafka")}
    noted = note_acknowledged(sources, {"a": 7, "c": 9})
    assert noted["0"].metadata == {"topic": "t", "acknowledged": "7"}
    assert (noted["1"], noted["2"]) == (sources["1"], sources["2"])
    assert acknowledged_of(noted) == {"a": 7}
    assert acknowledged_of({"0": source(acknowledged="3"), "1": source(acknowledged="11")}) == {"a": 11}
