"""What all sinks that stage Parquet share: identity, discarding, and what an undo says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from ..errors import Code, Conflict, Corrupt, InvalidInput
from .staging import Staging
from .target import shared


class Identity(msgspec.Struct, frozen=True):
    """The one sink of one pipeline that an object is; ``uid`` tells pipelines of one name in two stores apart."""

    pipeline: str
    sink: str
    uid: str


class StagingSink(ABC):
    """What every sink that stages Parquet does alike."""

    can_undo = True
    delivery = "exactly-once"
    address: str
    _identity: Identity | None = None
    _bound: Staging | None = None

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Take the identity under which epochs are remembered; refuse a second one, and a target that knows another."""
        identity = Identity(pipeline, sink, uid)
        self._refuse_shared(identity)
        # Nothing is written yet: the pipeline may still lose its claim.
        opened = self._open(identity)
        opened.used = self._bound is not None and self._bound.used
        self._bound, self._identity = opened, identity

    def _refuse_shared(self, wanted: Identity) -> None:
        """Refuse to be two sinks at once: the epochs of one would count for the other, and its rows be lost."""
        mine = self._identity
        if mine is None or mine == wanted:
            return
        renamed = (mine.pipeline, mine.sink) != (wanted.pipeline, wanted.sink)
        # A claim learns the uid late, when another driver was faster to begin the pipeline.
        if renamed or self._staging.used:
            pipeline = f"the pipeline {mine.pipeline!r}" + ("" if renamed else ", in another store,")
            raise shared(f"the sink object for {self.address} is {mine.sink!r} of {pipeline}")

    @abstractmethod
    def _open(self, identity: Identity) -> Staging:
        """Take the identity, unless the target knows another uid under its names; write nothing."""

    @property
    def _staging(self) -> Staging:
        if self._bound is None:
            raise InvalidInput(
                "the sink was not bound to a pipeline yet", code="sink.invalid", hint="call bind() first"
            )
        return self._bound

    def check_bound(self) -> None:
        """Refuse to answer for no pipeline."""
        self._staging  # noqa: B018 - raises

    def staged(self) -> list[str]:
        """List the attempts whose staged output is there and not committed."""
        return self._staging.staged()

    def discard(self, attempts: Iterable[str]) -> None:
        """Delete the staged output of these attempts; what was committed, or is unknown, is left alone."""
        self._staging.discard(attempts)

    def undo(self, to_epoch: int, epoch: int) -> None:
        """Take back what was committed after ``to_epoch``, and remember ``epoch``."""
        self._roll_back(to_epoch, epoch)

    def keep(self, epoch: int) -> None:
        """Remember the epoch and leave every row as it is."""
        self._roll_back(None, epoch)

    @abstractmethod
    def _roll_back(self, to_epoch: int | None, epoch: int) -> None:
        """Remember a rollback's epoch, with what it takes back; to None is to take nothing back."""


def staged_missing(url: str, missing: list[str], epoch: int) -> Corrupt:
    return Corrupt(
        f"{len(missing)} staged files of epoch {epoch} are gone from {url}, or cut; the first is {missing[0]}",
        code="sink.damaged",
        hint="restore them from a copy; the epoch counts, so the pipeline cannot go on without them",
    )


def undo_refused(reason: str) -> Conflict:
    return Conflict(
        f"what was committed since cannot be taken back: {reason}",
        code=Code.SINK_UNDO_REFUSED,
        hint="slackwater rollback URL --to REF --keep NAME leaves this sink's rows as they are; "
        "before or after it the target can be put right by hand",
    )


def format_output(files: int, rows: int | None) -> str:
    """Format an amount of output; rows that nobody has counted are left out.

    >>> format_output(1, 4031)
    '1 file, 4,031 rows'
    """
    return _count(files, "file") + ("" if rows is None else f", {_count(rows, 'row')}")


def format_undone(files: int, rows: int | None, epochs: int) -> str:
    """Format what is taken back.

    >>> format_undone(2, None, 3), format_undone(0, 0, 0)
    ('2 files of 3 epochs', 'nothing')
    """
    return f"{format_output(files, rows)} of {_count(epochs, 'epoch')}" if files else "nothing"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
