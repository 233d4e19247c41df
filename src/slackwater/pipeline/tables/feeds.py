"""Feeds: where the changes of a reference table come from."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ...errors import InvalidInput, SlackwaterError
from ...settings import MIB
from ...store import Store, open_store
from .rows import DELETED

_MAX_FILE_BYTES = 512 * MIB
_SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson", ".csv")


class Changes(msgspec.Struct, frozen=True):
    """Changes in their order, where they come from in words, and the position that is reached when they are applied."""

    batches: list[Any]
    where: str
    position: dict[str, str]


class Feed(ABC):
    """A source of changes that can be read again from any position that it gave. ``kind`` is a word for tools."""

    kind: str

    @abstractmethod
    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        """Read what came after a position, empty for the beginning; None when there is nothing new.

        Each batch has the key's columns and the others, and may have ``_deleted``: true deletes the row with this key.
        """

    def start(self, folder: Path) -> None:  # noqa: B027 - most have nothing to begin, nor to end
        """Begin a run. In the folder are the files that ``files`` gave for the position to go on from."""

    def files(self, position: Mapping[str, str]) -> dict[str, bytes]:
        """Give what a checkpoint must hold, beside the position, to go on from there: bytes by relative path."""
        return {}

    def stop(self) -> None:  # noqa: B027
        """End the run; a second call does nothing."""


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

    def read(self, position: Mapping[str, str], schema: pa.Schema) -> Changes | None:
        """Read the first file after the position."""
        self._store = self._store or open_store(self.folder, **self._options)
        last = position.get("file", "")
        names = sorted(found.key for found in self._store.list("") if found.key > last and _is_meant(found.key))
        if not names:
            return None
        data = self._store.get(names[0], max_bytes=_MAX_FILE_BYTES)
        return Changes(_parse(names[0], data, schema), f"the file {names[0]}", {"file": names[0]})


def _is_meant(name: str) -> bool:
    return "/" not in name and not name.startswith((".", "_"))


def _parse(name: str, data: bytes, schema: pa.Schema) -> list[Any]:
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _SUFFIXES:
        raise InvalidInput(
            f"the file {name} in a table's feed is of no known kind",
            code="feed.bad_file",
            hint=f"kinds are {', '.join(_SUFFIXES)}; give others a name that begins with an underscore",
        )
    typed = schema if DELETED in schema.names else schema.append(pa.field(DELETED, pa.bool_()))
    try:
        batches: list[Any] = _read(suffix, data, typed).to_batches()
    except SlackwaterError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidInput(
            f"the file {name} in a table's feed cannot be read: {error}",
            code="feed.bad_file",
            hint="mend or remove it, and start again: nothing of it was applied",
        ) from None
    return batches


def _read(suffix: str, data: bytes, schema: pa.Schema) -> pa.Table:
    if not data.strip():
        return schema.empty_table()
    if suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415 - only what is used is loaded

        return parquet.read_table(io.BytesIO(data))
    if suffix == ".csv":
        from pyarrow import csv  # noqa: PLC0415

        types = {field.name: field.type for field in schema}
        return csv.read_csv(io.BytesIO(data), convert_options=csv.ConvertOptions(column_types=types))
    from pyarrow import json  # noqa: PLC0415

    return json.read_json(io.BytesIO(data), parse_options=json.ParseOptions(explicit_schema=schema))
