"""The tree of errors: one class for each reaction (fix the input, stop, try again), a stable code for the detail."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """The codes that Slackwater itself branches on: where, and why. docs/errors.md has them all."""

    # protocol/driver: another driver has the pipeline: touch nothing, and tell this error rather than its consequence
    DRIVER_FENCED = "driver.fenced"
    # inboxes/receivers/http: HTTP 507
    INBOX_DISK_FULL = "inbox.disk_full"
    # inboxes/receivers/http: HTTP 429
    INBOX_FULL = "inbox.full"
    # inboxes/receivers/http: HTTP 422
    INBOX_KEY_REUSED = "inbox.key_reused"
    # inboxes/reader: another inbox does not become the right one by waiting
    INBOX_SWAPPED = "inbox.swapped"
    # cli/pipelines, protocol/driver: the store is away, so nothing is known of what was written
    LOG_BUSY = "log.busy"
    # ops/repair, protocol/recovery: the record is damaged, not the checkpoint: only a repair goes on from there
    LOG_CORRUPT = "log.corrupt"
    # cli/folders: there may be a folder of LaminarDB's instead
    LOG_MISSING = "log.missing"
    # cli/folders: there may be a folder of LaminarDB's instead
    PIPELINE_NOT_FOUND = "pipeline.not_found"
    # cli/run: somebody has asked for it, so it is no failure
    PIPELINE_STOPPING = "pipeline.stopping"
    # inboxes/receivers/http: HTTP 415, and no garbage
    RECEIVE_ENCODED = "receive.encoded"
    # inboxes/receivers/http: HTTP 413
    RECEIVE_TOO_LARGE = "receive.too_large"
    # inboxes/receivers/http: HTTP 408, and the connection is closed
    RECEIVE_TOO_SLOW = "receive.too_slow"
    # ops/rollback, protocol/recovery: a sink that would refuse is named in the plan
    SINK_UNDO_REFUSED = "sink.undo_refused"
    # cli/pipelines, protocol/address, protocol/driver, protocol/log, store/probe: no use in trying again; to a probe
    # it is an answer; whoever may not see the store may still have a pipeline in it
    STORE_DENIED = "store.denied"
    # protocol/driver, protocol/log: no use in trying again
    STORE_FULL = "store.full"
    # store/probe: the object is not there, but the store is
    STORE_NOT_FOUND = "store.not_found"
    # protocol/log_damage: the record is damaged for certain, though nobody has read it
    STORE_TOO_LARGE = "store.too_large"
    # cli/pipelines, protocol/driver: the store is away, so nothing is known of what was written
    STORE_UNAVAILABLE = "store.unavailable"


class SlackwaterError(Exception):
    """The root. ``str()`` begins with ``[code]``, because text is all that survives a trip through ``foreachBatch``.

    >>> str(NotFound("no checkpoint 7", code="checkpoint.not_found", hint="slackwater list URL"))
    '[checkpoint.not_found] no checkpoint 7 (hint: slackwater list URL)'
    """

    exit_code = 1

    def __init__(self, message: str, *, code: str, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = str(code)
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"[{self.code}] {self.message}{hint}"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.message, self.code, self.hint, self.details)


def _rebuild(kind: type[SlackwaterError], message: str, code: str, hint: str | None, details: dict[str, Any]) -> Any:
    return kind(message, code=code, hint=hint, **details)


class InvalidInput(SlackwaterError):
    """The caller must change what it asked for."""

    exit_code = 2


class NotFound(SlackwaterError):
    """What was named is not there."""

    exit_code = 10


class Conflict(SlackwaterError):
    """Somebody else was first, or has taken over: stop, touch nothing."""

    exit_code = 11


class Unavailable(SlackwaterError):
    """The store did not answer in time: the same call may succeed later. The outcome of a write is unknown."""

    exit_code = 12


class Corrupt(SlackwaterError):
    """Stored bytes are not what was written: never go on with them."""

    exit_code = 13


class Unsupported(SlackwaterError):
    """A newer format, or a setting that Slackwater cannot serve."""

    exit_code = 14
