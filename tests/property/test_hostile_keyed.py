"""Whatever bytes a database or a checkpoint gives back for what is known of a keyed state, a decoder ends well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import SlackwaterError
from slackwater.formats import keyed
from slackwater.formats.keyed import Description, Figures, Lineage, Snapshot
from tests.golden.samples import IDS, seal
from tests.property import hostile
from tests.property.hostile import JSON

DESCRIPTION = Description(vnode_count=256, key_count=3, watermark_ms=5, offsets={"orders": {"orders-0": "7"}})
LINEAGE = Lineage(uid="0" * 32, base_id=IDS[0], base_epoch=4, attempt_id=IDS[1])
# What each is encoded and decoded by, with one that is good.
CODECS: dict[str, tuple[Any, Any, Any]] = {
    "description": (keyed.encode_description, keyed.decode_description, DESCRIPTION),
    "snapshot": (keyed.encode_snapshot, keyed.decode_snapshot, Snapshot(wal_position=9, state=DESCRIPTION)),
    "lineage": (keyed.encode_lineage, keyed.decode_lineage, LINEAGE),
    "figures": (keyed.encode_figures, keyed.decode_figures, Figures(key_count=1, wal_position=9, watermark_ms=None)),
}
NAMES = st.sampled_from(sorted(CODECS))


@pytest.mark.parametrize("name", CODECS)
def test_what_is_encoded_comes_back_and_one_that_is_damaged_never_does(name: str) -> None:
    encode, decode, good = CODECS[name]
    data = encode(good)
    assert decode(data) == good
    for at in range(len(data)):
        for other in {data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]}:
            with pytest.raises(SlackwaterError):
                decode(other)


@given(NAMES, st.binary(max_size=400))
def test_any_bytes(name: str, data: bytes) -> None:
    hostile.survives(CODECS[name][1], data)


@given(NAMES, JSON | st.dictionaries(st.just("version"), st.sampled_from([1, 2, "1", None])))
def test_any_json_that_a_digest_vouches_for(name: str, document: Any) -> None:
    hostile.survives(CODECS[name][1], seal(msgspec.json.encode(document)))


@given(NAMES, st.data())
def test_a_good_document_with_one_value_replaced(name: str, data: st.DataObject) -> None:
    _, decode, good = CODECS[name]
    document = msgspec.to_builtins(good)
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JSON)
    hostile.survives(decode, seal(msgspec.json.encode(document)))


@pytest.mark.parametrize("name", CODECS)
def test_a_megabyte_of_anything_ends_soon(name: str) -> None:
    encode, decode, good = CODECS[name]
    for data in hostile.large(encode(good)).values():
        hostile.ends_soon(decode, data)
