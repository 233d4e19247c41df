"""What one run of a pipeline tells about its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from ..clock import Clock
from ..errors import SlackwaterError
from ..formats.state import LiveCheckpoint
from ..protocol.checkpoint import CheckpointReport
from ..store import Requests

# Upper bounds of the histogram of durations.
BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The run as of one moment. Totals count from its start, the rest is of the newest settled checkpoint."""

    epoch: int | None = None
    checkpoint_id: str | None = None
    settled_at_ms: int | None = None
    new_bytes: int | None = None
    full_bytes: int | None = None
    durations_ms: dict[str, int] = {}
    requests: Requests = msgspec.field(default_factory=Requests)
    checkpoints_total: int = 0
    failures_total: int = 0
    new_bytes_total: int = 0
    duration_s_total: float = 0.0
    # How many checkpoints took at most as long as each bound says.
    within: tuple[int, ...] = (0,) * len(BUCKETS_S)
    last_error: str | None = None


class Progress:
    """Figures that the coordinator's thread writes and any thread reads."""

    def __init__(
        self, clock: Clock, head: LiveCheckpoint | None, requests: Requests, in_flight: Callable[[], int]
    ) -> None:
        self._clock, self._requests, self._in_flight = clock, requests, in_flight
        self._lock = threading.Lock()
        self._figures = Figures()
        if head is not None:
            # A start drives it into every sink before anything else.
            self._figures = Figures(
                epoch=head.epoch, checkpoint_id=head.checkpoint_id, settled_at_ms=head.created_at_ms
            )

    @property
    def figures(self) -> Figures:
        return self._figures

    def note_settled(self, report: CheckpointReport, spent: Requests) -> None:
        """Count a checkpoint; an error that was there is over."""
        took_s = sum(report.durations_ms.values()) / 1000
        with self._lock:
            old = self._figures
            self._figures = Figures(
                epoch=report.epoch,
                checkpoint_id=report.checkpoint_id,
                settled_at_ms=self._clock.now_ms(),
                new_bytes=report.new_bytes,
                full_bytes=report.full_bytes,
                durations_ms=report.durations_ms,
                requests=spent,
                checkpoints_total=old.checkpoints_total + 1,
                failures_total=old.failures_total,
                new_bytes_total=old.new_bytes_total + report.new_bytes,
                duration_s_total=old.duration_s_total + took_s,
                within=tuple(n + (took_s <= bound) for n, bound in zip(old.within, BUCKETS_S, strict=True)),
            )

    def note_failed(self, error: BaseException) -> None:
        """Count a checkpoint that failed."""
        with self._lock:
            failures = self._figures.failures_total + 1
            self._figures = msgspec.structs.replace(
                self._figures, failures_total=failures, last_error=format_error(error)
            )

    def note_error(self, error: BaseException) -> None:
        """Remember an error until a checkpoint is settled without one."""
        with self._lock:
            self._figures = msgspec.structs.replace(self._figures, last_error=format_error(error))

    def age_ms(self) -> int | None:
        """Tell how old the newest settled checkpoint is."""
        settled_at_ms = self._figures.settled_at_ms
        return None if settled_at_ms is None else max(0, self._clock.now_ms() - settled_at_ms)

    def epochs_in_flight(self) -> int:
        return self._in_flight()

    def requests(self) -> Requests:
        """Tell what the store was asked for since this run began to recover."""
        return self._requests.snapshot()

    def describe(self, failure: BaseException | None) -> dict[str, Any]:
        """Return what goes into ``lastProgress``, in the spelling of Spark's own fields."""
        figures = self._figures
        return {
            "epoch": figures.epoch,
            "checkpointId": figures.checkpoint_id,
            "checkpointAgeMs": self.age_ms(),
            "lastError": figures.last_error if failure is None else format_error(failure),
            "epochsInFlight": self.epochs_in_flight(),
            "newBytes": figures.new_bytes,
            "fullBytes": figures.full_bytes,
            "durationMs": dict(figures.durations_ms),
            "requests": by_verb(figures.requests),
        }


def format_report(report: CheckpointReport, first_micro_batch: int, spent: Requests) -> str:
    """Format the one line that is logged of a checkpoint."""
    total_ms = sum(report.durations_ms.values())
    phases = ", ".join(f"{name} {ms}" for name, ms in report.durations_ms.items())
    requests = f"{spent.puts} puts, {spent.lists} lists, {spent.gets} gets, {spent.deletes} deletes"
    several = first_micro_batch < report.micro_batch
    which = (
        f"micro-batches {first_micro_batch} to {report.micro_batch}" if several else f"micro-batch {report.micro_batch}"
    )
    return (
        f"epoch {report.epoch}, {which}: {report.new_files} state files "
        f"({report.new_file_bytes} bytes) stored as {report.new_bytes} bytes, {report.full_bytes} in all; "
        f"{total_ms} ms ({phases}); {requests}"
    )


def by_verb(requests: Requests) -> dict[str, int]:
    return {"put": requests.puts, "get": requests.gets, "list": requests.lists, "delete": requests.deletes}


def format_error(error: BaseException) -> str:
    """Format an error in one line. Of a foreign one only the kind: its text may hold credentials."""
    if isinstance(error, SlackwaterError):
        return f"[{error.code}] {error.message}"
    return f"[unexpected.failure] {type(error).__name__}"
