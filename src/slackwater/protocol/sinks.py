"""The contract of a sink; how an epoch is committed in every sink, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec

from ..errors import Conflict, SlackwaterError
from ..failpoints import reach
from ..formats.change import MAX_REASON, NOTHING_PACKED, Settlement, SinkStatus
from ..formats.manifest import Manifest, RolledBack, SinkOutput


class CommittingSink(Protocol):
    """What the protocol asks of a sink; ``docs/spec/sinks.md`` says what it must hold to."""

    @property
    def kind(self) -> str: ...

    @property
    def address(self) -> str:
        """Where the output goes, without secrets: it is kept in manifests and shown."""
        ...

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        """Take the identity under which epochs are remembered; refuse output that knows another uid."""
        ...

    def epoch(self) -> int:
        """Tell the newest epoch that was committed under this identity, 0 for none."""
        ...

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        """Make staged output visible in one atomic step with the epoch; ignore an epoch that was passed."""
        ...

    def staged(self) -> list[str]:
        """List the attempts whose staged output is there and not committed."""
        ...

    def discard(self, attempts: Iterable[str]) -> None: ...

    def undo(self, to_epoch: int, epoch: int) -> None:
        """Take back all that was committed after ``to_epoch``, in one atomic step that also remembers ``epoch``."""
        ...

    def keep(self, epoch: int) -> None:
        """Remember ``epoch`` and leave every row as it is."""
        ...

    def plan_undo(self, to_epoch: int) -> str:
        """Say in a few words what an undo would take back; refuse, as it would, what it cannot."""
        ...

    @property
    def can_undo(self) -> bool: ...


class Sink(CommittingSink, Protocol):
    """What a pipeline asks of a sink; ``docs/spec/sinks.md`` says what it must hold to."""

    @property
    def delivery(self) -> str:
        """The guarantee that holds: ``exactly-once`` or ``at-least-once``."""
        ...

    def serve(self, output_mode: str) -> None:
        """Take the query's output mode (append, update, complete); refuse one that the sink cannot serve."""
        ...

    def stage(self, frame: Any, attempt: str, micro_batch: int) -> dict[str, Any]:
        """Write the frame, in exactly one Spark action, durably and invisibly; return what ``commit`` will need.

        An attempt may stage several frames, one micro-batch after the other. Before a query's first frame the sink was
        bound and took the output mode.
        """
        ...


def describe_output(sink: CommittingSink, descriptors: list[dict[str, Any]]) -> SinkOutput:
    """Put what a sink has staged into a manifest's words."""
    return SinkOutput(kind=sink.kind, address=sink.address, can_undo=sink.can_undo, descriptors=descriptors)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What the sinks have staged for one epoch, under the id that its checkpoint will have."""

    checkpoint_id: str
    outputs: dict[str, SinkOutput]


class SinkFailed(SlackwaterError):
    """A sink did not commit an epoch that counts, or not undo what it undoes; the next start drives it again."""

    @classmethod
    def because(cls, cause: Exception, document: Manifest, name: str, statuses: dict[str, SinkStatus]) -> SinkFailed:
        # Only our own words go on record: a foreign message may hold credentials.
        reason = str(cause) if isinstance(cause, SlackwaterError) else type(cause).__name__
        undo = document.rollback
        what = f"follow the rollback to epoch {undo.to_epoch}" if undo else f"commit epoch {document.epoch}"
        failed = SinkStatus(status="Failed", reason=reason[:MAX_REASON])
        return cls(
            f"the sink {name!r} did not {what}: {reason}",
            code="sink.commit_failed",
            hint=f"fix the sink, then start again: epoch {document.epoch} is safe, and goes into the sink first",
            settlement=_settlement(document.epoch, {**statuses, name: failed}),
            exit_code=getattr(cause, "exit_code", 1),
        )

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return int(self.details["exit_code"])

    @property
    def settlement(self) -> Settlement:
        return cast(Settlement, self.details["settlement"])


_GIVEN_UP = SinkStatus(status="Dropped", reason="the user gave its output up")


def drive_sinks(document: Manifest, sinks: Mapping[str, CommittingSink]) -> Settlement:
    """Commit the epoch in every sink, one after the other, or undo what a rollback undoes; again does nothing.

    A sink of the manifest that is absent was given up by the user.
    """
    names, rollback = list(document.sinks), document.rollback
    if rollback is not None:
        # One that no manifest of the branch names may have rows of an undone epoch all the same, or be about to get
        # them from a driver that does not know yet that it was fenced.
        names += [name for name in sinks if name not in names]
    absent = find_absent(document, sinks)
    statuses = dict.fromkeys(names, SinkStatus(status="Pending"))
    for name in names:
        if name not in sinks or (rollback is None and name in absent):
            statuses[name] = _GIVEN_UP
            continue
        try:
            if rollback is None:
                sinks[name].commit(document.sinks[name].descriptors, document.epoch)
            else:
                if rollback.unsettled and name not in absent and (target := document.sinks.get(name)) is not None:
                    sinks[name].commit(target.descriptors, rollback.to_epoch)
                undo_sink(sinks[name], rollback, name, document.epoch)
            reach("commit.after")
        except Conflict as error:
            message, details = f"the sink {name!r}: {error.message}", {**error.details, "sink": name}
            raise Conflict(message, code=error.code, hint=error.hint, **details) from error
        except Exception as error:
            raise SinkFailed.because(error, document, name, statuses) from error
        statuses[name] = _GIVEN_UP if name in absent else SinkStatus(status="Committed")
    return _settlement(document.epoch, statuses)


class HasPlace(Protocol):
    """A sink, or what is known of one."""

    @property
    def kind(self) -> str: ...

    @property
    def address(self) -> str: ...


def find_absent(document: Manifest, sinks: Mapping[str, HasPlace]) -> set[str]:
    """Name the manifest's sinks that the program lacks, or has at another place than the epoch's rows are."""
    absent, rollback = document.sinks.keys() - sinks.keys(), document.rollback
    for name, output in document.sinks.items():
        # One that cannot undo, like a function, keeps no rows of its own: what it is called says nothing.
        concerned = output.can_undo and (output.descriptors if rollback is None else name not in rollback.keep)
        if name in sinks and concerned and (sinks[name].kind, sinks[name].address) != (output.kind, output.address):
            absent.add(name)
    return absent


def undo_sink(sink: CommittingSink, rollback: RolledBack, name: str, epoch: int) -> None:
    """Undo in one sink what a rollback undoes, or keep it where the user or the sink's nature says so."""
    if name in rollback.keep or not sink.can_undo:
        sink.keep(epoch)
    else:
        sink.undo(rollback.to_epoch, epoch)


def settle_without_sinks(epoch: int) -> Settlement:
    """Settle an epoch of a pipeline that has no sinks."""
    return _settlement(epoch, {})


def _settlement(epoch: int, statuses: dict[str, SinkStatus]) -> Settlement:
    return Settlement(
        epoch=epoch,
        sinks=statuses,
        durations_ms={},
        requests={},
        packed=NOTHING_PACKED,
        new_bytes=0,
        full_bytes=0,
    )
