"""The errors of a keyed state for what may happen to its folder and to the database in it."""

from __future__ import annotations

from functools import partial

from ..errors import Conflict, Corrupt, InvalidInput, Unavailable, Unsupported
from ..rocks import errors as rocks

_OPEN_AGAIN = "see that this user may write there and that the disk has room, then open it again"
_NEWEST = "restore the newest checkpoint of it, or the folder from a copy; what came after that is lost"

OWNER = rocks.Owner(
    taken=partial(Conflict, code="keyed.taken", hint="stop the other one; two writers would spoil each other's work"),
    unavailable=partial(Unavailable, code="keyed.unavailable", hint=_OPEN_AGAIN),
    full=partial(Unavailable, code="keyed.full", hint=_OPEN_AGAIN),
    removed=partial(Corrupt, code="keyed.damaged", hint="stop what has it open, then put the folder back"),
    damaged=partial(Corrupt, code="keyed.damaged", hint="restore a checkpoint of it, or the folder from a copy"),
    log_damaged=partial(Corrupt, code="keyed.damaged", hint=_NEWEST),
    log_missing=partial(Corrupt, code="keyed.damaged", hint=_NEWEST),
    unreadable=partial(
        Unsupported, code="keyed.unsupported", hint="see that the folder is the one that a keyed state was in"
    ),
    closed=partial(InvalidInput, code="pipeline.ended", hint="open it again: it goes on with all that was written"),
)

disk_errors = partial(rocks.disk_errors, owner=OWNER)
