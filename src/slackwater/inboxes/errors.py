"""The errors of an inbox for what may happen to its folder and to the database in it."""

from __future__ import annotations

from functools import partial

from ..errors import Code, Conflict, Corrupt, Unavailable, Unsupported
from ..rocks import errors as rocks

_COPY = "restore the folder from a copy; what was received since then is lost"

OWNER = rocks.Owner(
    taken=partial(Conflict, code="inbox.taken", hint="stop the other receiver; one runs for each folder"),
    unavailable=partial(Unavailable, code="inbox.unavailable", hint="see that this user may read and write there"),
    full=partial(Unavailable, code=Code.INBOX_DISK_FULL, hint="free some space: a receiver then goes on by itself"),
    removed=partial(Corrupt, code=Code.INBOX_SWAPPED, hint="stop the receiver, then put the folder back"),
    damaged=partial(Corrupt, code="inbox.damaged", hint=_COPY),
    log_damaged=partial(Corrupt, code="inbox.damaged", hint=_COPY),
    log_missing=partial(Corrupt, code="inbox.damaged", hint=_COPY),
    unreadable=partial(Unsupported, code="inbox.unsupported", hint="name the folder that a receiver writes to"),
    closed=partial(Unavailable, code="inbox.unavailable", hint="send it again once a receiver runs"),
)

disk_errors = partial(rocks.disk_errors, owner=OWNER)
