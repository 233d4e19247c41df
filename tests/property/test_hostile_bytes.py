"""Whatever bytes a store gives back, a decoder answers with a document or with an error of ours, in bounded memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from functools import partial

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.errors import Corrupt, SlackwaterError
from slackwater.formats import batch, sealed
from slackwater.formats.keys import check_path, parse_key, parse_name
from tests.golden.broken import decode
from tests.golden.lcb1 import Item, write
from tests.golden.samples import FOLDER, seal
from tests.property import hostile
from tests.property.hostile import JSON

GOOD = {
    "batches": (FOLDER / "good" / "batch-mixed.lcb").read_bytes(),
    "records": (FOLDER / "good" / "record-checkpoint.json").read_bytes(),
    "manifests": (FOLDER / "good" / "manifest.json").read_bytes(),
}
KINDS = st.sampled_from(sorted(GOOD))
U64 = st.integers(0, 2**64 - 1) | st.integers(0, 400)


def survives(kind: str, data: bytes) -> None:
    if kind == "batches":  # what is packed has a bound of its own, below
        with contextlib.suppress(SlackwaterError):
            decode(kind, data)
    else:
        hostile.survives(partial(decode, kind), data)


@given(KINDS, st.binary(max_size=400))
@example("records", b'{"body":1,"sha256":"\xb1' + b"1" * 63 + b'"}')
def test_any_bytes(kind, data):
    survives(kind, data)


@given(KINDS, st.data())
def test_a_good_document_with_a_part_replaced(kind, data):
    good = GOOD[kind]
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    survives(kind, good[:start] + data.draw(st.binary(max_size=40)) + good[end:])


@given(JSON | st.dictionaries(st.just("version"), st.sampled_from([1, 3, 4, "1", None])))
def test_any_json_that_a_digest_vouches_for(document):
    body = msgspec.json.encode(document)
    survives("records", seal(body))
    survives("manifests", body)


@given(st.sampled_from(["records", "manifests"]), st.data())
def test_a_good_document_with_one_value_replaced(kind, data):
    document = msgspec.json.decode(GOOD[kind])
    document = document["body"] if kind == "records" else document
    places = [(document, key) for key in document]
    for holder, key in places:
        value = holder[key]
        places += [
            (value, k)
            for k in (value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0))
        ]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(JSON)
    body = msgspec.json.encode(document)
    survives(kind, seal(body) if kind == "records" else body)


@given(st.sampled_from(["records", "manifests"]), st.integers(1, 5000))
def test_deeply_nested_json(kind, depth):
    body = b'{"version":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    survives(kind, seal(body) if kind == "records" else body.replace(b"1", b"3", 1))


def open_sealed(data: bytes) -> None:
    damaged = partial(Corrupt, code="object.damaged")
    sealed.decode(data, dict, version=1, what="the document", damaged=damaged)


@given(st.binary(max_size=400) | JSON.map(lambda document: seal(msgspec.json.encode(document))))
def test_any_sealed_document(data):
    hostile.survives(open_sealed, data)


@pytest.mark.parametrize("shape", sorted(hostile.large(b"x")))
@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("kind", ["records", "manifests", "sealed"])
def test_large_documents_take_bounded_memory_and_time(kind, vouched, shape):
    """Also as a value inside of a document whose digest is right, where anything may stand: a sink's descriptors."""
    data = hostile.large(GOOD.get(kind, GOOD["records"]))[shape]
    if vouched:
        document = msgspec.json.decode(GOOD["manifests"])
        document["sinks"]["totals"]["descriptors"] = [{"value": msgspec.Raw(data)}]
        data = msgspec.json.encode(document)
        data = data if kind == "manifests" else seal(data.replace(b'"version":3', b'"version":1'))
    read = open_sealed if kind == "sealed" else partial(decode, kind)
    hostile.survives(read, data)
    hostile.ends_soon(read, data)


ITEMS = st.builds(
    Item,
    key=st.binary(max_size=6),
    stored=st.binary(max_size=30),
    codec=st.integers(0, 3),
    size=st.none() | U64,
    sha256=st.none() | st.binary(min_size=32, max_size=32),
    offset=st.none() | U64,
    stored_bytes=st.none() | U64,
)
LIES = st.fixed_dictionaries(
    {},
    optional={"count": st.integers(0, 2**32 - 1), "index_bytes": U64, "body_bytes": U64, "version": st.integers(2, 4)},
)


@settings(max_examples=300)
@given(st.lists(ITEMS, max_size=4), LIES, st.binary(max_size=3))
def test_D4_a_batch_that_lies_is_refused_in_bounded_memory(items, lies, tail):
    data = write(items, tail=tail, **lies)
    tracemalloc.start()
    try:
        survives("batches", data)
        # LZ4 packs 255 bytes into one at the best: nothing larger is ever allocated for these few bytes.
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024 + 255 * len(data)
    finally:
        tracemalloc.stop()


@given(st.lists(ITEMS, min_size=1, max_size=4))
def test_a_batch_that_is_accepted_says_what_its_bytes_say(items):
    data = write(items)
    try:
        found = batch.decode(data)
    except SlackwaterError:
        return
    assert list(found) == [item.key.decode() for item in items]
    assert all(found[item.key.decode()] == item.stored for item in items if item.codec == 0)


@given(st.text() | st.text(alphabet="log/checkpoints.json0123456789abcdef-%_~\n"))
def test_any_text_as_key_path_or_name(text):
    for parse in (parse_key, check_path, parse_name):
        with contextlib.suppress(SlackwaterError):
            parse(text)
