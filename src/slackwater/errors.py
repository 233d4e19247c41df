"""The tree of errors: one class for each reaction (fix the input, stop, try again), a stable code for the detail."""

from __future__ import annotations

from typing import Any


class SlackwaterError(Exception):
    """The root. ``str()`` begins with ``[code]``, because text is all that survives a trip through ``foreachBatch``.

    >>> str(NotFound("no checkpoint 7", code="checkpoint.not_found", hint="slackwater list URL"))
    '[checkpoint.not_found] no checkpoint 7 (hint: slackwater list URL)'
    """

    exit_code = 1

    def __init__(self, message: str, *, code: str, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
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
