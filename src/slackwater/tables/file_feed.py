"""A folder of files as the feed of a reference table."""

from __future__ import annotations

import io
import logging
import os
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ..errors import InvalidInput, NotFound
from ..settings import MIB
from ..store import Store, open_store
from .feeds import Changes, Feed
from .rows import DELETED

logger = logging.getLogger("slackwater")

_MAX_FILE_BYTES = 512 * MIB
# How often it is looked for files that came too late, and in a folder of how many.
_LOOK_BACK_S, _MOST_LOOKED_AT = 60.0, 100_000
_SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson", ".csv")


class FileFeed(Feed):
    """A folder of files with changes: Parquet, JSON lines or CSV, read in the order of their names, each once.

    A file must appear whole (write it beside, then rename it), never change, and have a name after those that are
    there: ``00000042.parquet``. Names that begin with ``.`` or ``_`` are left alone. It may be in an object store.
    """

    kind = "files"

    def __init__(self, folder: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        self.folder = os.fspath(folder)
        self._options = dict(storage_options or {})
        self._store: Store | None = None
        # The file that was read last, and those that were listed after it.
        self._last, self._names = "", deque[str]()
        # The files up to that one, and when it was looked for others among them.
        self._passed: set[str] | None = None
        self._looked_at_s: float | None = None
        # Those that were read since.
        self._read = set[str]()

    def start(self, folder: Path) -> None:
        self._open()
        self._names.clear()
        self._passed = self._looked_at_s = None

    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        """Read the first file after the position."""
        store, last = self._open(), position.get("file", "")
        # What was found serves until all of it is read, or the feed is read again from elsewhere.
        if last != self._last or not self._names:
            self._last, self._names = last, deque(_list_whole(store, last))
        if not self._names:
            self._look_back(store, last)
            return None
        name = self._names[0]
        batches = _parse(name, store.get(name, max_bytes=_MAX_FILE_BYTES), schema)
        self._last = self._names.popleft()
        self._read.add(name)
        return Changes(batches, f"the file {name}", {"file": name})

    def _look_back(self, store: Store, last: str) -> None:
        """Tell of files that came too late to be read, now and then: a whole folder is listed for it."""
        now = time.monotonic()
        if self._looked_at_s is not None and now - self._looked_at_s < _LOOK_BACK_S:
            return
        self._looked_at_s = now
        read, self._read = self._read, set()
        listed = list(islice(store.list_names(""), _MOST_LOOKED_AT + 1))
        if len(listed) > _MOST_LOOKED_AT:
            return
        passed = {name for name in listed if name <= last and _is_meant(name)}
        if self._passed is not None and (late := passed - self._passed - read):
            logger.warning(
                "%d files came to %s with names before %s, which was read already: they are not read; the first is %s",
                len(late),
                self.folder,
                last,
                min(late),
            )
        self._passed = passed

    def _open(self) -> Store:
        self._store = self._store or open_store(self.folder, **self._options)
        url = urlsplit(self._store.url)
        # A store takes a folder that is not there for an empty one, and the table would stand still without a word.
        if url.scheme == "file" and not os.path.isdir(unquote(url.path)):
            raise NotFound(
                f"the folder {self.folder} that feeds a table is not there",
                code="folder.not_found",
                hint="make it, mount it, or name the right one, and start again",
            )
        return self._store


def _list_whole(store: Store, last: str) -> list[str]:
    """List the files after the last one that was read, none left out before the newest that is listed.

    The listing of a large folder takes several calls, and of two files that come meanwhile it may have the second
    alone. But the first one was there by then, and is in the next listing.
    """
    found = list(filter(_is_meant, store.list_names("", after=last or None)))
    return found and [name for name in filter(_is_meant, store.list_names("", after=last or None)) if name <= found[-1]]


def _is_meant(name: str) -> bool:
    return not name.startswith((".", "_"))


def _parse(name: str, data: bytes, schema: pa.Schema) -> list[Any]:
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _SUFFIXES:
        raise InvalidInput(
            f"the file {name} in a table's feed is of no known kind",
            code="feed.invalid",
            hint=f"kinds are {', '.join(_SUFFIXES)}; give others a name that begins with an underscore",
        )
    typed = schema if DELETED in schema.names else schema.append(pa.field(DELETED, pa.bool_()))
    try:
        batches: list[Any] = _read(suffix, data, typed).to_batches()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidInput(
            f"the file {name} in a table's feed cannot be read: {error}",
            code="feed.invalid",
            hint="fix or remove it, and start again: nothing of it was applied",
        ) from None
    return batches


def _read(suffix: str, data: bytes, schema: pa.Schema) -> pa.Table:
    """Read a file as one block, for no row may be longer than a block."""
    if not data.strip():
        return schema.empty_table()
    if suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415 - only what is used is loaded

        return parquet.read_table(io.BytesIO(data))
    if suffix == ".csv":
        from pyarrow import csv  # noqa: PLC0415

        types = {field.name: field.type for field in schema}
        return csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(block_size=len(data)),
            convert_options=csv.ConvertOptions(column_types=types),
        )
    from pyarrow import json  # noqa: PLC0415

    # This reader takes numbers for dates, and no text; who encodes the changes makes dates of that.
    written = [pa.field(each.name, pa.string() if pa.types.is_date(each.type) else each.type) for each in schema]
    return json.read_json(
        io.BytesIO(data),
        read_options=json.ReadOptions(block_size=len(data)),
        parse_options=json.ParseOptions(explicit_schema=pa.schema(written), unexpected_field_behavior="ignore"),
    )
