"""A simulated sink that keeps the sinks' contract, so that whatever goes wrong is the protocol's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulation.scheduler import Actor, Simulation, SinkMemory, Violation
from slackwater.errors import Conflict, Unavailable


class SimSink:
    """One driver's hand on a sink that keeps the contract: stage durably; commit, undo in one step with the epoch."""

    kind, address, delivery = "simulated", "sim:", "exactly-once"

    def __init__(self, simulation: Simulation, actor: Actor, name: str) -> None:
        self._sim, self._actor = simulation, actor
        self.memory = simulation.sinks.setdefault(name, SinkMemory())

    @property
    def can_undo(self) -> bool:
        return self.memory.can_undo

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        if self.memory.uid not in (None, uid):
            raise Conflict("the sink knows another pipeline", code="sink.other_pipeline")
        self._uid = uid

    def epoch(self) -> int:
        return self.memory.epoch

    def stage(self, rows: list[int], attempt: str) -> dict[str, Any]:
        self._sim.step(self._actor, f"stage {rows} as {attempt[:8]}")
        self.memory.staged[attempt] = rows
        self._sim.after(self._actor)
        return {"attempt": attempt, "rows": rows}

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if self._actor.drowsy and self._sim.random.random() < 0.15:
            self._sim.pause(self._actor, self._sim.random.randint(100, 800))
        self._sim.step(self._actor, f"commit epoch {epoch}", risk=self._sim.late_risk)
        if self._actor.faults and self._sim.random.random() < self._sim.sink_risk:
            raise Unavailable("the simulated sink fails", code="store.unavailable")
        self.apply(descriptors, epoch)
        self._sim.after(self._actor)

    def apply(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if epoch <= self.memory.epoch:
            return
        rows: list[int] = []
        for descriptor in descriptors:
            staged = self.memory.staged.pop(descriptor["attempt"], None)
            # What has no row leaves nothing behind, so a second drive finds nothing.
            if staged is None and descriptor["rows"]:
                if self.memory.given_up:
                    raise Conflict(f"the staged output of epoch {epoch} is gone", code="sink.damaged")
                raise Violation(f"staged-kept: the staged output of epoch {epoch} is gone")
            rows += staged or []
        if rows:
            self.memory.committed.append((epoch, rows))
            self.remember(epoch)

    def undo(self, to_epoch: int, epoch: int) -> None:
        self._sim.step(self._actor, f"undo to epoch {to_epoch}, as {epoch}", risk=self._sim.late_risk)
        if epoch > self.memory.epoch:
            self.memory.committed = [(of, rows) for of, rows in self.memory.committed if of <= to_epoch]
            self.remember(epoch)
        self._sim.after(self._actor)

    def keep(self, epoch: int) -> None:
        self._sim.step(self._actor, f"keep all, as {epoch}", risk=self._sim.late_risk)
        if epoch > self.memory.epoch:
            self.remember(epoch)
        self._sim.after(self._actor)

    def plan_undo(self, to_epoch: int) -> str:
        self._sim.step(self._actor, f"plan an undo to epoch {to_epoch}")
        return f"{sum(len(rows) for of, rows in self.memory.committed if of > to_epoch)} rows"

    def remember(self, epoch: int) -> None:
        self.memory.epoch, self.memory.uid = epoch, self._uid

    def staged(self) -> list[str]:
        self._sim.step(self._actor, "list staged")
        return list(self.memory.staged)

    def discard(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self._sim.step(self._actor, f"discard {attempt[:8]}")
            self.memory.staged.pop(attempt, None)
