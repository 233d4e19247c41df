"""One write of an inbox, prepared in full before it is written: a group's messages, and what is dropped with them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import msgspec

from ..errors import Code, Conflict, Corrupt, SlackwaterError, Unavailable
from ..rocks.database import Change, Rocks
from ..settings import MIB
from . import documents, layout
from .documents import Description, Gap

KILLED = "the receiver ended without a word: it was killed, or its machine went down"
_KEYS_AT_ONCE = 10_000
_MAX_GAPS = 1_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an inbox takes before it lets senders wait."""

    max_messages: int = 100_000_000
    max_bytes: int = 16 * 1024 * MIB
    # Of what waits to become durable.
    max_waiting_bytes: int = 64 * MIB
    max_keys: int = 10_000_000
    # A key is known for at least so long, in the time that receivers ran, and until what it names is covered.
    keep_keys_s: float = 3600.0
    # When nothing comes, that the receiver is there is written down so often.
    heartbeat_s: float = 5.0

    def refuse(self, known: Description, messages: int, size_bytes: int, *, keyed: bool) -> Unavailable | None:
        """Tell why messages have to wait, if they have to."""
        if known.held + messages > self.max_messages or known.held_bytes + size_bytes > self.max_bytes:
            return full(f"{known.held} messages of {known.held_bytes} bytes wait for a pipeline to cover them")
        if keyed and known.keys_held >= self.max_keys:
            return full(
                f"as many keys are remembered as may be ({known.keys_held})",
                hint=f"send it again later: a key is forgotten {self.keep_keys_s:g} s after it came, once what it "
                "names is covered; --keep-keys and --max-keys of the receiver are the limits",
            )
        return None


class Appended(msgspec.Struct, frozen=True):
    """Where messages are. ``repeated``: they had been there before."""

    first: int
    last: int
    repeated: bool = False


class Session:
    """Appends that must not overtake each other: after one that has failed, those behind it fail, too."""

    def __init__(self) -> None:
        self.broken = False


class Append(msgspec.Struct, kw_only=True):
    messages: Sequence[bytes]
    size_bytes: int
    key: bytes | None
    token: str | None
    unique: bool
    session: Session | None
    done: Future[Appended]


class Presence(msgspec.Struct):
    """The receiver receives from now on (None), or does not, for a reason."""

    away: str | None
    done: Future[None]
    since_ms: int | None = None
    messages: ClassVar[Sequence[bytes]] = ()
    size_bytes: ClassVar[int] = 0


Work = Append | Presence


class GroupCommit:
    """The changes of one group, made up before any of them is written."""

    def __init__(self, rocks: Rocks, description: Description, limits: Limits, now_ms: int, uptime_ms: int) -> None:
        self._rocks, self._limits, self._now_ms = rocks, limits, now_ms
        self._before = description
        self.description = msgspec.structs.replace(description, now_ms=now_ms, uptime_ms=uptime_ms)
        self.dropped: tuple[bytes, bytes] | None = None
        self.results: list[Any] = []
        # The last of those that had no room.
        self.refusal: Unavailable | None = None
        self._changes: list[Change] = []
        self._keys: dict[bytes, layout.KeyEntry | None] = {}

    def _set(self, **changes: Any) -> None:
        self.description = msgspec.structs.replace(self.description, **changes)

    def find(self, appends: Sequence[Append]) -> None:
        """Look up all keys of the group at once."""
        keys = [work.key for work in appends if work.key is not None]
        found = self._rocks.get([layout.key_key(key) for key in keys])
        self._keys = {key: layout.decode_key(data) if data else None for key, data in zip(keys, found, strict=True)}

    def append(self, work: Append) -> None:
        self.results.append(self._append(work))

    def _append(self, work: Append) -> Appended | SlackwaterError:
        known = self.description
        if work.session is not None and work.session.broken:
            return Unavailable(
                "a message before this one was not taken", code="inbox.unavailable", hint="send both again"
            )
        digest = _digest(work.messages) if work.key is not None else b""
        entry = self._keys.get(work.key) if work.key is not None else None
        if entry is not None and entry.digest == digest:
            self._set(repeated=known.repeated + len(work.messages))
            return Appended(entry.first, entry.last, True)
        if entry is not None:
            return _reused()
        # Only now: what is known needs no room.
        refusal = self._limits.refuse(known, len(work.messages), work.size_bytes, keyed=work.key is not None)
        if refusal is not None:
            if work.session is not None:
                work.session.broken = True
            self.refusal = refusal
            return refusal
        first, last = known.last + 1, known.last + len(work.messages)
        total_bytes = known.total_bytes + work.size_bytes
        if work.messages:
            record = layout.encode_messages(self._now_ms, total_bytes, work.messages)
            self._changes.append((layout.messages_key(last), record))
        self._set(last=last, total_bytes=total_bytes)
        if work.token is not None:
            self._go_on(work.token, work.unique)
        if work.key is not None:
            self._remember(work.key, first, last, digest)
        return Appended(first, last)

    def _go_on(self, position: str, unique: bool) -> None:
        """Note where the upstream stands. A position that may have more messages is asked for once more."""
        known = self.description
        if unique:
            self._set(token=position, open_token=None)
        elif position != known.open_token:
            self._set(token=known.token if known.open_token is None else known.open_token, open_token=position)

    def _remember(self, key: bytes, first: int, last: int, digest: bytes) -> None:
        known = self.description
        entry = layout.KeyEntry(first, last, known.keys, known.uptime_ms, digest)
        self._keys[key] = entry
        self._changes.append((layout.key_key(key), layout.encode_key(entry)))
        self._changes.append((layout.index_key(known.keys), key))
        self._set(keys=known.keys + 1)

    def drop(self, position: int) -> None:
        """Drop all up to a position that was written before this batch."""
        known = self.description
        if position <= known.dropped:
            return
        found = next(self._rocks.scan(layout.messages_key(position), layout.MESSAGES_END), None)
        block = layout.decode_messages(*found) if found is not None else None
        if block is None or block.first > position:
            raise Corrupt(
                f"message {position} of the inbox in {self._rocks.folder} is missing",
                code="inbox.damaged",
                hint="restore the folder from a copy; what was received since then is lost",
            )
        self.dropped = (layout.messages_key(known.dropped + 1), layout.messages_key(position + 1))
        self._set(dropped=position, dropped_bytes=block.bytes_up_to(position))

    def set_presence(self, away: str | None, since_ms: int | None) -> None:
        known = self.description
        if away is not None:
            # Already away: since when, and why, stays. Heartbeats say that the receiver is there, not the upstream.
            if known.away is None:
                self._set(away=away, alive_at_ms=self._now_ms if since_ms is None else min(since_ms, self._now_ms))
        else:
            if known.alive_at_ms is not None:
                gap = Gap(from_ms=known.alive_at_ms, to_ms=self._now_ms, after=known.last, why=known.away or KILLED)
                self._changes.append((layout.gap_key(known.gaps), documents.encode(gap)))
                if known.gaps >= _MAX_GAPS:
                    self._changes.append((layout.gap_key(known.gaps - _MAX_GAPS), None))
                self._set(gaps=known.gaps + 1)
            self._set(away=None, alive_at_ms=self._now_ms)
        self.results.append(None)

    def stay(self) -> None:
        """Say that the receiver is there now."""
        self._set(alive_at_ms=self._now_ms)

    def forget_keys(self) -> None:
        """Forget keys that are old enough, oldest first, as far as what they name is dropped.

        Those at the open position are known for as long again: the upstream is asked for their messages once more.
        """
        known, keep_ms = self.description, round(1000 * self._limits.keep_keys_s)
        if known.keys == known.keys_dropped or known.dropped == 0:
            return
        most = min(known.keys, known.keys_dropped + _KEYS_AT_ONCE)
        count = 0
        for place, key in self._rocks.scan(layout.index_key(known.keys_dropped), layout.index_key(most)):
            number = known.keys_dropped + count
            entry = self._entry(key)
            # A key that was taken again belongs to a newer number, and goes with that one.
            if entry is not None and entry.number == number:
                young = known.uptime_ms - entry.uptime_ms < keep_ms
                if young or entry.last > known.dropped:
                    break
                if layout.is_at(key, known.open_token):
                    self._remember(key, entry.first, entry.last, entry.digest)
                else:
                    self._changes.append((layout.key_key(key), None))
            self._changes.append((place, None))
            count += 1
        self._set(keys_dropped=known.keys_dropped + count)

    def _entry(self, key: bytes) -> layout.KeyEntry | None:
        if key not in self._keys:
            (data,) = self._rocks.get([layout.key_key(key)])
            self._keys[key] = layout.decode_key(data) if data is not None else None
        return self._keys[key]

    def finish(self) -> list[Change]:
        before, known = self._before, self.description
        if self.refusal is not None:
            self._set(full=self.refusal.message[:300])
        elif known.last > before.last or known.dropped > before.dropped or known.keys_held < before.keys_held:
            self._set(full=None)  # something was taken, or room was made
        return [*self._changes, (layout.DESCRIPTION, documents.encode(self.description))]


def _digest(messages: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for message in messages:
        digest.update(len(message).to_bytes(8, "big"))
        digest.update(message)
    return digest.digest()


def _reused() -> Conflict:
    return Conflict(
        "this idempotency key was given to other messages before",
        code=Code.INBOX_KEY_REUSED,
        hint="give each request a key of its own, and a repeated one the same key and content",
    )


def full(why: str, hint: str = "send it again later; see that the pipeline runs and makes checkpoints") -> Unavailable:
    return Unavailable(f"the inbox takes no more at the moment: {why}", code=Code.INBOX_FULL, hint=hint)
