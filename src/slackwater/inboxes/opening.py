"""What is found where an inbox is opened: the one that is there, a new one, or what is refused."""

from __future__ import annotations

from pathlib import Path

from ..clock import Clock
from ..errors import Corrupt, InvalidInput, NotFound
from ..rocks.database import Rocks
from . import format as documents
from . import layout
from .documents import read_description, read_document
from .format import COVERED_FILE, PUBLISHED_FILE, Description, Published


def describe(rocks: Rocks, clock: Clock) -> Description:
    """Read what is known of an inbox; make a new one in an empty folder."""
    empty = not any(rocks.scan(b"", b"\xff"))
    return Description(uid=clock.random_id()) if empty else read_description(rocks)


def refuse_other_folder(folder: Path) -> None:
    """Refuse to make an inbox among other things: nobody would find it there, nor dare to remove it."""
    if (folder / layout.DATABASE).exists() or not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder", code="inbox.not_empty", hint="name one, or a new name")
    if any(path.name not in (PUBLISHED_FILE, COVERED_FILE) for path in folder.iterdir()):
        raise InvalidInput(
            f"{folder} is no inbox, and not empty",
            code="inbox.not_empty",
            hint="name a folder that does not exist yet, or that a receiver has written to before",
        )


def refuse_other_database(folder: Path, found: Description) -> None:
    """Refuse a database that is not, or no longer, the one of which readers were told."""
    try:
        data = read_document(folder / PUBLISHED_FILE)
    except NotFound:
        return
    if not data.strip(b"\0"):
        return  # it is not synced with every message, and a power loss may leave a name without content
    try:
        published = documents.decode(data, Published)
    except Corrupt as error:
        raise Corrupt(
            f"{error.message}, in {folder / PUBLISHED_FILE}",
            code=error.code,
            hint="after a power loss, delete that file and start again: the messages are in the database beside it; "
            "else restore the folder from a copy",
        ) from None
    if published.inbox != found.uid or published.position > found.last:
        raise Corrupt(
            f"the inbox in {folder} has acknowledged all up to message {published.position}, and its database "
            f"{'ends at ' + str(found.last) if published.inbox == found.uid else 'is another one'}",
            code="inbox.went_back" if published.inbox == found.uid else "inbox.swapped",
            hint=f"put back {folder / layout.DATABASE} from a copy; or, to begin anew without what was received, name "
            "another folder",
        )
