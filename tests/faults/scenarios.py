"""Scenarios: what a guard of the protocol is for is brought about, and is harmless with the guard on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

import msgspec
import pytest

from simulation import actors
from simulation.scheduler import Crashed, SimStore, Simulation
from simulation.sink import SimSink
from simulation.sources import SimAcknowledgements
from slackwater.errors import Corrupt, NotFound, Unavailable
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats.keys import LOG, record_key
from slackwater.formats.state import State
from slackwater.ops import repair
from slackwater.ops import rollback as rollback_tool
from slackwater.protocol import driver, recovery, retention, rollback
from slackwater.protocol.driver import Driver
from slackwater.protocol.log import Log, Permit
from slackwater.protocol.pipeline import Pipeline
from slackwater.store import Listed, Listing


def dawdle(client: Any) -> None:
    """Let the others go on for a while, as a process does that waits for a processor."""
    client._sim.pause(client._actor, 300)


def actor_of(log: Log) -> str:
    store: Any = log._store
    return str(store._actor.name)


def patch_claims(patch: pytest.MonkeyPatch, claim: Callable[..., Driver]) -> None:
    """Let drivers and tools claim otherwise."""
    patch.setattr(driver, "claim_driver", claim)
    patch.setattr(actors, "claim_driver", claim)


def forgetters_take_their_time(patch: pytest.MonkeyPatch) -> None:
    """Scenario: others go on before the record of what is forgotten."""
    append = Log.append

    def append_late(self: Log, *args: Any, **fields: Any) -> State:
        if actor_of(self).startswith("forgetter"):
            dawdle(self._store)
        return append(self, *args, **fields)

    patch.setattr(Log, "append", append_late)


def commits_come_after_an_undo(patch: pytest.MonkeyPatch) -> None:
    """Scenario: some drivers are late with their commits, and wait for an undo."""
    undo, commit = SimSink.undo, SimSink.commit
    undone: set[int] = set()

    def undo_slowly(self: SimSink, to_epoch: int, epoch: int) -> None:
        undo(self, to_epoch, epoch)
        undone.add(id(self.memory))
        dawdle(self)

    def commit_late(self: SimSink, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if self._actor.name.startswith("driver") and self._sim.random.random() < 0.2:
            undone.discard(id(self.memory))
            for _ in range(6):
                if id(self.memory) not in undone:
                    self._sim.pause(self._actor, 150)
        commit(self, descriptors, epoch)

    patch.setattr(SimSink, "undo", undo_slowly)
    patch.setattr(SimSink, "commit", commit_late)


def rollers_take_their_time(patch: pytest.MonkeyPatch) -> None:
    """Scenario: others go on between the steps of a tool's rollback."""
    claim, mine = driver.claim_driver, threading.local()

    def claim_and_remember(pipeline: Pipeline, name: str, **fields: Any) -> Driver:
        if name.startswith("roller"):
            mine.clock = pipeline.clock
        return claim(pipeline, name, **fields)

    def take_time(point: str) -> None:
        if hasattr(mine, "clock"):
            dawdle(mine.clock)

    patch_claims(patch, claim_and_remember)
    patch.setattr(rollback, "reach", take_time)


def rollbacks_and_deletes_come_late(patch: pytest.MonkeyPatch) -> None:
    """Scenario: what a rollback was planned to may be retired by then, and its bytes still be there."""
    plan, delete = rollback_tool.plan_to, retention.delete_retired

    def plan_early(pipeline: Pipeline, *args: Any, **fields: Any) -> rollback_tool.RollbackPlan:
        planned = plan(pipeline, *args, **fields)
        dawdle(pipeline.store)
        return planned

    def delete_late(pipeline: Pipeline, *args: Any) -> list[int]:
        if pipeline.state.retired:
            dawdle(pipeline.store)
        return delete(pipeline, *args)

    patch.setattr(rollback_tool, "plan_to", plan_early)
    patch.setattr(driver, "delete_retired", delete_late)


def rollbacks_go_to_the_head(patch: pytest.MonkeyPatch) -> None:
    """Scenario: a tool does not take it for done when its target is the head, and prefers one that is open."""
    plan, real = rollback_tool.plan_to, rollback.roll_back

    def roll_back(pipeline: Pipeline, permit: Permit, to_epoch: int, **fields: Any) -> None:
        state = pipeline.state
        if actor_of(pipeline.log).startswith("roller") and state.settled_epoch < state.epoch:
            to_epoch = state.epoch
        real(pipeline, permit, to_epoch, **fields)

    patch.setattr(actors, "roll_back", roll_back)
    patch.setattr(
        rollback_tool, "plan_to", lambda *args, **keep: msgspec.structs.replace(plan(*args, **keep), done=False)
    )


def numbers_are_created_again_before_a_get(patch: pytest.MonkeyPatch) -> None:
    """Scenario: who slept writes once its number is free again; readers wait for such a record after their list."""
    append, highest_after = Log.append, Log._highest_after

    def wait(store: Any, number: int, found: Callable[[bytes | None, bytes], bool]) -> None:
        """Let the others go on until that number holds what is waited for; not for ever."""
        key = record_key(number)
        for _ in range(40):
            if key in store._sim.written and found(store._sim.objects.get(key), store._sim.written[key]):
                return
            store._actor.stalled_until = store._sim.now + 10
            store._sim.step(store._actor, "dawdles")

    def append_late(self: Log, *args: Any, **fields: Any) -> State:
        if actor_of(self).startswith("sleeper"):
            wait(self._store, self.number + 1, lambda there, first: there is None)
        return append(self, *args, **fields)

    def list_early(self: Log, number: int) -> int | None:
        found = highest_after(self, number)
        if found is not None and not actor_of(self).startswith(("driver", "sleeper", "last")):
            wait(self._store, found, lambda there, first: there not in (None, first))
        return found

    patch.setattr(Log, "append", append_late)
    patch.setattr(Log, "_highest_after", list_early)


def keep_one(patch: pytest.MonkeyPatch) -> None:
    """Let retention keep the head alone."""
    init = actors.Scene.__init__

    def init_and_keep_one(self: actors.Scene, simulation: Simulation) -> None:
        init(self, simulation)
        self.settings = msgspec.structs.replace(self.settings, keep_last=1)

    patch.setattr(actors.Scene, "__init__", init_and_keep_one)


def lose_newest(store: SimStore, log: Log, count: int = 1) -> None:
    """Damage the newest records, and let the writer of the last one die; once in a run."""
    simulation, keys = store._sim, [record_key(log.number - back) for back in range(count)]
    newest = max(found for found in simulation.objects if found.startswith(LOG))
    if store._actor.faults and not simulation.bad_records and keys[0] == newest:
        for key in keys:
            simulation.damage(key)
            simulation.bad_records.add(key)
        simulation.kill(store._actor)


def a_claim_is_lost_beside_an_open_head(patch: pytest.MonkeyPatch) -> None:
    """Scenario: what follows a checkpoint that some sink does not have is lost."""
    real = driver.claim_driver

    def claim(pipeline: Pipeline, name: str, **fields: Any) -> Driver:
        claimed, store = real(pipeline, name, **fields), cast(SimStore, pipeline.store)
        head, state = claimed.state.head, claimed.state
        behind = any(sink.epoch < state.epoch for sink in store._sim.sinks.values())
        if head is not None and head.rollback_to is None and state.settled_epoch < state.epoch and behind:
            lose_newest(store, pipeline.log)
        return claimed

    patch_claims(patch, claim)


def a_rollback_is_lost_after_its_undo(patch: pytest.MonkeyPatch) -> None:
    """Scenario: a tool's rollback is lost, with its release and the claim of the driver that has followed it."""
    real = recovery._Recovery.run

    def run(self: recovery._Recovery[Any]) -> Any:
        recovered, log, store = real(self), self.pipeline.log, cast(SimStore, self.pipeline.store)
        written = store._sim.written
        for back in range(min(log.number, log.kept_records - 1)):
            record = records.decode(written[record_key(log.number - back)], number=log.number - back)
            if isinstance(record.change, changes.Rollback):
                lose_newest(store, log, back + 1)
            if not isinstance(record.change, changes.Claim | changes.Release):
                break
        return recovered

    patch.setattr(recovery._Recovery, "run", run)


def a_deleter_wakes_up_after_a_repair(patch: pytest.MonkeyPatch) -> None:
    """Scenario: a record that retires is lost, and what it retired is deleted once the log is repaired.

    Only the head stays with each checkpoint: so what a repair goes on from is what the lost record has retired.
    """
    keep_one(patch)
    delete, carry_out = retention.delete_retired, repair.carry_out
    asleep: dict[str, retention.Doomed] = {}

    def delete_late(pipeline: Pipeline, permit: Permit, refs: retention.References) -> list[int]:
        log = pipeline.log
        if log._newest and getattr(log._newest.change, "retire", None):
            doomed = retention.find_all_doomed(permit, refs)
            try:
                lose_newest(cast(SimStore, pipeline.store), log)
            except Crashed:
                asleep[pipeline.state.uid] = doomed
                raise
        return delete(pipeline, permit, refs)

    def wake(pipeline: Pipeline, prepared: repair.PreparedRepair, **fields: Any) -> bool:
        done, before = carry_out(pipeline, prepared, **fields), prepared.lost.before
        if done and before is not None and (doomed := asleep.get(before.state.uid)) is not None:
            for key in (*doomed.objects, *doomed.manifests):
                cast(SimStore, pipeline.store)._sim.objects.pop(key, None)
        return done

    patch.setattr(driver, "delete_retired", delete_late)
    patch.setattr(repair, "carry_out", wake)


def the_log_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Scenario: a driver starts and finds objects, but no record. It stops, and the records come back from a copy.

    Only before a sink has committed anything: from then on the sink, too, would refuse a pipeline that begins anew.
    """
    claim, listing, create = driver.claim_driver, SimStore.list, SimStore.create
    blind: set[int] = set()

    def claim_without_log(pipeline: Pipeline, name: str, **fields: Any) -> Driver:
        store = cast(SimStore, pipeline.store)
        bound = any(sink.uid for sink in store._sim.sinks.values())
        if bound or not name.startswith("driver") or not any("manifest" in k for k in store._sim.objects):
            return claim(pipeline, name, **fields)
        blind.add(id(store))
        pipeline.log._newest = None  # what it knew is from before
        try:
            return claim(pipeline, name, **fields)
        except Corrupt as error:
            if error.code != "log.missing":
                raise
            raise Unavailable("the log comes back from a copy", code="store.unavailable") from None
        finally:
            blind.discard(id(store))

    def list_the_rest(self: SimStore, prefix: str, *, after: str | None = None) -> Listing:
        found = listing(self, prefix, after=after)
        return [entry for entry in found if not entry.key.startswith(LOG)] if id(self) in blind else found

    def create_anew(self: SimStore, key: str, data: bytes) -> bool:
        if id(self) in blind:
            blind.discard(id(self))
            for lost in [found for found in self._sim.objects if found.startswith(LOG)]:
                del self._sim.objects[lost]
        return create(self, key, data)

    patch_claims(patch, claim_without_log)
    patch.setattr(SimStore, "list", list_the_rest)
    patch.setattr(SimStore, "create", create_anew)


class EmptyStore(SimStore):
    """Another store, where nothing is yet."""

    def __init__(self, simulation: Any, actor: Any) -> None:
        super().__init__(simulation, actor)
        self._objects: dict[str, bytes] = {}

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        self._sim.step(self._actor, f"get {key} elsewhere")
        if key not in self._objects:
            raise NotFound(f"no object {key}", code="store.not_found")
        return self._objects[key][offset : None if size is None else offset + size]

    def put(self, key: str, data: Any) -> None:
        self._sim.step(self._actor, f"put {key} elsewhere", writes=True)
        self._objects[key] = data if isinstance(data, bytes) else b"".join(data)

    def create(self, key: str, data: bytes) -> bool:
        self._sim.step(self._actor, f"create {key} elsewhere", writes=True)
        return self._objects.setdefault(key, data) is data

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        self._sim.step(self._actor, f"list {prefix} elsewhere")
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > (after or ""))
        return [Listed(key, len(self._objects[key])) for key in keys]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)


def a_program_is_started_on_another_store(patch: pytest.MonkeyPatch) -> None:
    """Scenario: the same sinks and the same name, but a store where nothing is yet; once the sinks know the first.

    Its rows can be read again: an inbox, too, would refuse a second pipeline.
    """
    open_usual = actors.Scene.open
    patch.setattr(actors.Scene, "pushed_share", 0.0)

    def open_other(self: actors.Scene, actor: Any) -> Pipeline:
        pipeline = open_usual(self, actor)
        bound = all(sink.uid for sink in self.simulation.sinks.values())
        if bound and actor.name.startswith("driver") and self.simulation.random.random() < 0.3:
            store = EmptyStore(self.simulation, actor)
            log = Log(store, pipeline.clock, self.settings, kept_records=self.kept_records)
            return msgspec.structs.replace(pipeline, store=store, log=log)
        return pipeline

    patch.setattr(actors.Scene, "open", open_other)


def many_reads_are_bad(patch: pytest.MonkeyPatch) -> None:
    """Scenario: in every run, of each hundred reads three are wrong."""
    spoil = Simulation.spoil_read

    def spoil_more(self: Simulation, *args: Any) -> bytes:
        self.read_risk = 0.03
        return spoil(self, *args)

    patch.setattr(Simulation, "spoil_read", spoil_more)


def a_record_is_lost_that_let_messages_go(patch: pytest.MonkeyPatch) -> None:
    """Scenario: what the newest checkpoint has retired is not deleted yet, but dropped; then its record is lost.

    So a repair goes on from what the inbox has no more, until it is put back from a copy.
    """
    delete, acknowledge = retention.delete_retired, SimAcknowledgements.acknowledge
    logs: dict[str, Log] = {}

    def delete_later(pipeline: Pipeline, *rest: Any) -> list[int]:
        actor = cast(SimStore, pipeline.store)._actor
        logs[actor.name] = pipeline.log
        if actor.faults:
            raise Unavailable("nothing can be deleted now", code="store.unavailable")
        return delete(pipeline, *rest)

    def acknowledge_and_die(self: SimAcknowledgements, state: State) -> Any:
        error, log, memory = acknowledge(self, state), logs[self._actor.name], self._memory
        if self._inboxes and log._newest and getattr(log._newest.change, "retire", None) and memory.covered:
            for _ in range(20):
                if memory.covered.position == memory.description.dropped > 0:
                    lose_newest(cast(SimStore, self._store), log)
                    break
                self._sim.pause(self._actor, 20)
        return error

    keep_one(patch)
    patch.setattr(actors.Scene, "pushed_share", 1.0)
    patch.setattr(driver, "delete_retired", delete_later)
    patch.setattr(SimAcknowledgements, "acknowledge", acknowledge_and_die)


def sources_are_acknowledged_up_to_the_newest(patch: pytest.MonkeyPatch) -> None:
    """Scenario: the inbox drops what is before the newest checkpoint; so none may be damaged, or lost."""
    init, nothing = actors.Scene.__init__, cast(Any, lambda scene: lambda actor: None)

    def up_to_the_newest(self: actors.Scene, simulation: Simulation) -> None:
        init(self, simulation)
        self.acknowledged_up_to = "newest"

    patch.setattr(actors.Scene, "pushed_share", 1.0)
    patch.setattr(actors.Scene, "__init__", up_to_the_newest)
    play = import_module("simulation.play")  # its name in the package is that of its function
    damaging = (actors.failing_disk, actors.bad_block)
    patch.setattr(play, "CAST", [p._replace(body=nothing) if p.body in damaging else p for p in play.CAST])
