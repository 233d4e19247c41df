"""Whatever bytes a database or a checkpoint gives back for what is known of a keyed state, a decoder ends well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import SlackwaterError
from slackwater.keyed import documents as keyed
from slackwater.keyed.documents import Description, Figures, Lineage, Snapshot
from tests.golden.samples import IDS, seal
from tests.property import hostile
from tests.property.hostile import JSON

DESCRIPTION = Description(vnode_count=256, key_count=3, watermark_ms=5, offsets={"orders": {"orders-0": "7"}})
LINEAGE = Lineage(uid="0" * 32, base_id=IDS[0], base_epoch=4, attempt_id=IDS[1])
GOOD: list[Any] = [
    DESCRIPTION,
    Snapshot(wal_position=9, state=DESCRIPTION),
    LINEAGE,
    Figures(key_count=1, wal_position=9, watermark_ms=None),
]
DOCUMENTS = st.sampled_from(GOOD)


def decoder(document: Any) -> Any:
    return lambda data: keyed.decode(data, type(document))


@pytest.mark.parametrize("good", GOOD)
def test_what_is_encoded_comes_back_and_one_that_is_damaged_never_does(good: Any) -> None:
    data, decode = keyed.encode(good), decoder(good)
    assert decode(data) == good
    for at in range(len(data)):
        for other in {data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]}:
            with pytest.raises(SlackwaterError):
                decode(other)


@given(DOCUMENTS, st.binary(max_size=400))
def test_any_bytes(good: Any, data: bytes) -> None:
    hostile.survives(decoder(good), data)


@given(DOCUMENTS, JSON | st.dictionaries(st.just("version"), st.sampled_from([1, 2, "1", None])))
def test_any_json_that_a_digest_vouches_for(good: Any, document: Any) -> None:
    hostile.survives(decoder(good), seal(msgspec.json.encode(document)))


@given(DOCUMENTS, st.data())
def test_a_good_document_with_one_value_replaced(good: Any, data: st.DataObject) -> None:
    document = msgspec.to_builtins(good)
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JSON)
    hostile.survives(decoder(good), seal(msgspec.json.encode(document)))


@pytest.mark.parametrize("good", GOOD)
def test_a_megabyte_of_anything_ends_soon(good: Any) -> None:
    for data in hostile.large(keyed.encode(good)).values():
        hostile.ends_soon(decoder(good), data)
