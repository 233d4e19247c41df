"""A sink that adds Parquet files to a folder, each epoch exactly once.

An entry in the sink's own create-only log is the commit; moving the files into the folder follows it, is idempotent,
and is repeated by every re-drive of the newest entry. So a plain listing never shows an uncommitted row.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...artifacts import in_parallel
from ...errors import Conflict, Corrupt, NotFound, Unsupported
from ...failpoints import reach
from ...formats.ids import CheckpointId, Count, Sha256
from ...formats.layout import check_path, format_name
from ...store import Store
from .staging import HOME, Staged, Staging, StagingSink, format_tag, staged_missing
from .target import CONCURRENCY, Target, other_pipeline, unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION: Literal[1] = 1
# The newest entry decides; older ones are for people, and a bounded listing.
_ENTRIES_KEPT = 100
_MAX_ENTRY_BYTES = 16 * 1024 * 1024
_MAX_LISTINGS = 20
_ENTRY = re.compile(rf"({HOME}[^/]+/[^/]+/log/)(\d{{20}})\.json")
_PUBLISHED = re.compile(r"\d{20}-\d{5,}-[0-9a-f-]{36}-[0-9a-f]{8}\.parquet")


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    staged: str
    published: str
    size_bytes: Count
    rows: Count


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed epoch: which staged files it has, and the names under which they are published."""

    version: Literal[1]
    epoch: Count
    attempt: CheckpointId
    files: list[PublishedFile]


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body: msgspec.Raw
    sha256: Sha256


class _Versioned(msgspec.Struct):
    version: int


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    uid: str


class FileSink(StagingSink):
    """Parquet files in a folder. ``take_over`` lets a new pipeline go on under the name of one whose store is lost."""

    kind = "files"

    def __init__(self, path: str | os.PathLike[str], *, take_over: bool = False, **store_options: str) -> None:
        self._target = Target(path, store_options)
        self._store = self._target.store
        self._take_over = take_over
        self.address = self._target.url

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Take the identity under which epochs are remembered; refuse a folder that knows another uid."""
        # Nothing is written yet: the pipeline may still lose its claim.
        self._uid, self._pipeline = uid, pipeline
        self._owner_key = f"{HOME}owners/{format_name(pipeline)}/{format_name(sink)}.json"
        self._bound, self._tag = Staging(self._target, uid, sink), format_tag(uid, sink)
        self._log = f"{self._bound.home}log/"
        self._check_owner()

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        self.check_bound()
        return max(self._epochs(), default=0)

    def stage(self, frame: DataFrame, attempt: str) -> dict[str, Any]:
        """Write the frame, in one Spark action, durably and invisibly, and describe it."""
        self._staging.tick(attempt)
        reach("files.ticket.after")
        return self._staging.write(frame, attempt)

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Make staged output visible, once: the entry is the commit, publishing follows."""
        parsed = self._staging.parse(descriptors)
        self._staging.untick({staged.attempt for staged in parsed})
        reach("files.untick.after")
        entry = _draw_up(parsed, epoch, self._tag)
        if entry is None:
            return
        epochs = self._epochs()
        newest = max(epochs, default=0)
        if newest < epoch:
            newest = self._create(entry, parsed)
        if newest > epoch:
            return
        self._publish(self._get(epoch, entry.attempt))
        reach("files.publish.after")
        self._store.delete([self._entry_key(old) for old in epochs if old <= epoch - _ENTRIES_KEPT])

    def _create(self, entry: Entry, parsed: list[Staged]) -> int:
        """Commit, unless another driver has; return the newest epoch."""
        self._take_ownership()
        if missing := self._staging.missing(parsed):
            if (newest := self.epoch()) < entry.epoch:
                raise staged_missing(self.address, missing, entry.epoch)
            return newest  # they are missing because another driver has begun to publish them
        self._store.create(self._entry_key(entry.epoch), _encode(entry))
        reach("files.entry.after")
        return entry.epoch

    def _publish(self, entry: Entry) -> None:
        """Move what is still staged. The rest was moved before, and a consumer may have taken it away since."""
        there = {listed.key for listed in self._store.list(self._staging.folder(entry.attempt))}
        left = [file for file in entry.files if file.staged in there]

        def move(file: PublishedFile) -> None:
            # Staged a moment ago: if it is at neither place now, another driver was faster, and a consumer too.
            with suppress(NotFound):
                self._store.move(file.staged, file.published)

        for file in left[:1]:
            move(file)
            reach("files.publish.between")
        in_parallel([lambda file=file: move(file) for file in left[1:]], CONCURRENCY)  # type: ignore[misc]

    def _entry_key(self, epoch: int) -> str:
        return f"{self._log}{epoch:020d}.json"

    def _epochs(self) -> list[int]:
        keys = (listed.key for listed in self._store.list(self._log))
        return [int(match[2]) for match in map(_ENTRY.fullmatch, keys) if match]

    def _get(self, epoch: int, attempt: str) -> Entry:
        entry = _read(self._store, self._entry_key(epoch))
        if entry.attempt != attempt:
            raise Conflict(
                f"{self.address} has epoch {epoch} from attempt {entry.attempt}, not from {attempt}",
                code="sink.epoch_taken",
                hint="the pipeline's log and the sink have parted: was the store restored from a backup?",
            )
        return entry

    def _check_owner(self) -> str | None:
        try:
            data = self._store.get(self._owner_key, max_bytes=4096)
        except NotFound:
            return None
        try:
            owner = msgspec.json.decode(data, type=_Owner).uid
        except msgspec.DecodeError as error:
            raise Corrupt(f"{self._owner_key} does not decode: {error}", code="sink.entry_malformed") from None
        if owner != self._uid and not self._take_over:
            raise other_pipeline(self.address, self._pipeline)
        return owner

    def _take_ownership(self) -> None:
        if self._check_owner() == self._uid:
            return
        data = msgspec.json.encode(_Owner(uid=self._uid))
        if not self._store.create(self._owner_key, data) and self._check_owner() != self._uid:
            self._store.put(self._owner_key, data)


def read_committed(path: str | os.PathLike[str], **store_options: str) -> list[str]:
    """List the files that hold exactly the committed rows of every pipeline that writes to the folder.

    One that is listed where it was staged may be published before it is opened, and then is not found: list again.
    """
    target = Target(path, store_options)
    keys, entries = _look(target.store)
    for _ in range(_MAX_LISTINGS):
        before, (keys, entries) = (keys, entries), _look(target.store)
        # A file on its way can be missed by one listing, never by two that are equal.
        if (keys, entries) == before:
            unpublished = [f.staged for e in entries for f in e.files if f.staged in keys and f.published not in keys]
            found = sorted(filter(_PUBLISHED.fullmatch, keys)) + unpublished
            return [str(target.local / key) if target.local else f"{target.url}/{key}" for key in found]
    raise unavailable(target.url, f"it changed during each of {_MAX_LISTINGS} listings")


def _look(store: Store) -> tuple[set[str], list[Entry]]:
    """List the published and staged files, and read the newest entry of each log."""
    keys = [listed.key for listed in store.list("")]
    newest = {match[1]: key for key in keys if (match := _ENTRY.fullmatch(key))}
    data = {key for key in keys if _PUBLISHED.fullmatch(key) or (key.startswith(HOME) and "/data/" in key)}
    return data, [_read(store, key) for key in newest.values()]


def _draw_up(parsed: list[Staged], epoch: int, tag: str) -> Entry | None:
    files = [file for staged in parsed for file in staged.files]
    if not files:
        return None
    attempt = parsed[0].attempt
    published = [
        PublishedFile(
            staged=file.path,
            published=f"{epoch:020d}-{number:05d}-{attempt}-{tag}.parquet",
            size_bytes=file.size_bytes,
            rows=file.rows,
        )
        for number, file in enumerate(files)
    ]
    return Entry(version=VERSION, epoch=epoch, attempt=attempt, files=published)


def _encode(entry: Entry) -> bytes:
    body = msgspec.json.encode(entry, order="sorted")
    return msgspec.json.encode(_Envelope(body=msgspec.Raw(body), sha256=hashlib.sha256(body).hexdigest()))


def _read(store: Store, key: str) -> Entry:
    data = store.get(key, max_bytes=_MAX_ENTRY_BYTES)
    try:
        body = msgspec.json.decode(data, type=_Envelope).body
        if (version := msgspec.json.decode(body, type=_Versioned).version) != VERSION:
            raise Unsupported(
                f"the entry {key} has version {version}, this release reads {VERSION}",
                code="sink.entry_unknown_version",
                hint="use the release that wrote it, or a newer one",
            )
        entry = msgspec.json.decode(body, type=Entry)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"the entry {key} does not decode: {error}", code="sink.entry_malformed") from None
    # The bytes are canonical and hold their own digest, so to write them again is to check them.
    whole = _encode(entry) == data and key.endswith(f"/{entry.epoch:020d}.json")
    if not whole or not all(_PUBLISHED.fullmatch(file.published) and check_path(file.staged) for file in entry.files):
        raise Corrupt(
            f"the entry {key} is not what was written",
            code="sink.entry_malformed",
            hint="restore it from a copy; without it the newest epoch of this sink is unknown",
        )
    return entry
