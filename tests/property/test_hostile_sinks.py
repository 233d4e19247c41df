"""Whatever a sink's folder, or a manifest, gives back to a sink: a document, or an error of ours, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slackwater.errors import Corrupt
from slackwater.formats import sealed
from slackwater.sinks import descriptors, staging
from slackwater.sinks.files import log as files_log
from slackwater.sinks.files.sink import FileSink
from slackwater.sinks.target import Target
from slackwater.store import Listed, open_store
from tests.property.hostile import JSON, ends_soon, large, survives

ID, UID = "0192d3f0-7b7c-7000-8000-0123456789ab", "0" * 32
HOME = f"_slackwater/{UID}/totals/"
EPOCH = 7
FOLDER = f"{HOME}data/{ID}/"
STAGED = descriptors.Staged(
    attempt=ID,
    files=[descriptors.StagedFile(path=f"{FOLDER}abcd/part-0.parquet", size_bytes=10, rows=1)],
    schema={"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]},
    key=["n"],
    mode="upsert",
)


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2, 3]}), sink)
    return sink.getvalue()


ENTRY = files_log.draw_up([STAGED], EPOCH, "01234567")
assert ENTRY is not None
GOOD = {
    "entry": sealed.encode(ENTRY),
    "undo": sealed.encode(files_log.UndoEntry(version=1, epoch=EPOCH, to_epoch=3, attempts=[ID])),
    "note": msgspec.json.encode([ID]),
    "owner": msgspec.json.encode({"uid": UID}),
    "descriptors": msgspec.json.encode([descriptors.encode(STAGED)]),
    "footer": parquet(),
}


class Folder:
    """A sink's folder in which one object is whatever a test puts there."""

    def __init__(self, root: Path) -> None:
        self._memory = open_store("memory:")
        self._sink = FileSink(root)
        self._staging = staging.Staging(Target(root, {}), UID, "totals")
        self._store = open_store(str(root))
        self.decoders: dict[str, Callable[[bytes], object]] = {
            "entry": self.entry,
            "undo": self.undo,
            "note": self.note,
            "owner": self.owner,
            "descriptors": self.descriptors,
            "footer": self.footer,
        }

    def entry(self, data: bytes) -> object:
        key = files_log.format_entry_key(HOME, EPOCH)
        self._memory.put(key, data)
        return files_log.read_entry(self._memory, key)

    def undo(self, data: bytes) -> object:
        key = files_log.format_entry_key(HOME, EPOCH, undo=True)
        self._memory.put(key, data)
        return files_log.read_undo(self._memory, key)

    def note(self, data: bytes) -> object:
        self._store.put(f"{HOME}undone/{EPOCH:020d}", data)
        return self._staging.note_undone(EPOCH, [])

    def owner(self, data: bytes) -> None:
        self._store.put("_slackwater/owners/orders/totals.json", data)
        self._sink.bind("orders", "totals", UID)

    def descriptors(self, data: bytes) -> object:
        """A manifest's descriptors are JSON already when a sink gets them."""
        try:
            given: Any = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            return None
        return self._staging.parse(given)

    def footer(self, data: bytes) -> object:
        self._memory.put("part-0.parquet", data)
        return staging.count_rows(self._memory, Listed("part-0.parquet", len(data)))


@pytest.fixture(scope="module")
def folder() -> Iterator[Folder]:
    with TemporaryDirectory() as root:
        yield Folder(Path(root))


KINDS = st.sampled_from(sorted(GOOD))


def test_the_good_ones_are_good(folder: Folder) -> None:
    for kind, data in GOOD.items():
        folder.decoders[kind](data)
    assert folder.footer(GOOD["footer"]) == 3 and folder.descriptors(GOOD["descriptors"]) == [STAGED]


@given(kind=KINDS, data=st.binary(max_size=400))
@example(kind="owner", data=b'{"uid":"\xff"}')
@example(kind="note", data=b'["\xff"]')
@example(kind="owner", data=b'{"x":' + b"[" * 4000)
@example(kind="note", data=b"[" * 100_000)
@example(kind="footer", data=b"\xff\xff\xff\x7fPAR1")
@example(kind="footer", data=b"PAR1" + b"\x00" * 8 + b"PAR1")
def test_any_bytes(folder: Folder, kind: str, data: bytes) -> None:
    survives(folder.decoders[kind], data)


@given(kind=KINDS, data=st.data())
def test_a_good_document_with_a_part_replaced(folder: Folder, kind: str, data: st.DataObject) -> None:
    good = GOOD[kind]
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    survives(folder.decoders[kind], good[:start] + data.draw(st.binary(max_size=40)) + good[end:])


@given(kind=st.sampled_from(["entry", "undo", "note", "owner", "descriptors"]), data=st.data())
def test_a_good_document_with_one_value_replaced(folder: Folder, kind: str, data: st.DataObject) -> None:
    is_sealed = kind in ("entry", "undo")
    document = msgspec.json.decode(GOOD[kind])
    document = {"": document["body"] if is_sealed else document}
    places: list[tuple[Any, Any]] = [(document, "")]
    for holder, key in places:
        value = holder[key]
        inside = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
        places += [(value, name) for name in inside]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(JSON)
    body = msgspec.json.encode(document[""])
    survives(folder.decoders[kind], sealed.seal(body) if is_sealed else body)


@pytest.mark.parametrize("kind", sorted(GOOD))
@pytest.mark.parametrize("shape", sorted(large(b"x")))
def test_large_documents_take_bounded_memory_and_time(folder: Folder, kind: str, shape: str) -> None:
    data = large(GOOD[kind])[shape]
    survives(folder.decoders[kind], data)
    ends_soon(folder.decoders[kind], data)


@pytest.mark.parametrize(("kind", "code"), [("note", "sink.damaged"), ("owner", "sink.damaged")])
@pytest.mark.parametrize("data", [b'["\xff"]', b'{"uid":"\xff"}', b"", b"[" * 4000])
def test_what_is_no_text_is_told_as_damage(folder: Folder, kind: str, code: str, data: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        folder.decoders[kind](data)
    assert caught.value.code == code
