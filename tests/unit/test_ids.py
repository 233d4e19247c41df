"""Checkpoint ids, digests and bounded numbers."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock import SystemClock
from slackwater.errors import InvalidInput
from slackwater.formats.ids import CheckpointId, Count, RandomId, Sha256, parse_checkpoint_id

ID = "0192d3f0-7b7c-7000-8000-0123456789ab"


def test_a_minted_id_parses_and_is_new_every_time():
    ids = [SystemClock().checkpoint_id() for _ in range(1000)]
    assert [parse_checkpoint_id(text) for text in ids] == ids
    assert len(set(ids)) == 1000


def test_a_random_id_has_128_bits_and_is_new_every_time():
    ids = {SystemClock().random_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(msgspec.convert(text, RandomId) == text for text in ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ID.upper(),
        ID + "\n",
        "\n" + ID,
        ID.replace("-", ""),
        ID.replace("-7000", "-4000"),
        ID.replace("-8000", "-c000"),
        ID[:-1],
        ID + "0",
        "{" + ID + "}",
        "../../etc",
        "\u0660" + ID[1:],
    ],
)
def test_only_the_canonical_text_of_a_uuid7_is_an_id(text):
    with pytest.raises(InvalidInput) as caught:
        parse_checkpoint_id(text)
    assert caught.value.code == "ref.invalid" and "is not a checkpoint id" in str(caught.value)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, CheckpointId)


@pytest.mark.parametrize("kind", [RandomId, Sha256])
@pytest.mark.parametrize("change", ["", "0", "\n", " ", "A", "g"])
def test_a_digest_is_lower_case_hex_of_its_length_and_nothing_more(kind, change):
    size = 32 if kind is RandomId else 64
    assert msgspec.convert("a" * size, kind) == "a" * size
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("a" * (size - 1) + change if change in ("", "A", "g") else "a" * size + change, kind)


def test_C12_counts_stay_where_no_json_tool_alters_them():
    assert msgspec.json.decode(str(2**53 - 1), type=Count) == 2**53 - 1
    for wrong in ("9007199254740992", "-1", "1.5", "1.0", '"1"', "true", "1e3"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=Count)
