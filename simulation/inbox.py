"""The simulated inbox: a receiver's disk in memory, under the real code that fills and drops it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from simulation.scheduler import TICKS_A_SECOND, Actor, SimClock, Violation
from slackwater.inboxes import documents, layout
from slackwater.inboxes.documents import Covered, Description, Published
from slackwater.inboxes.group_commit import Append, Appended, GroupCommit, Limits
from slackwater.rocks.database import Change

if TYPE_CHECKING:
    from simulation.actors import Body, Scene

FOLDER = Path("/simulated/inbox")
_LIMITS = Limits(keep_keys_s=60)


class InboxMemory:
    """A receiver's folder: as much of ``Rocks`` as an inbox needs, and what receiver and pipeline tell each other.

    ``records``: those of all messages that were ever written, as a copy of the folder has them.
    """

    folder = FOLDER / layout.DATABASE

    def __init__(self, uid: str, total: int) -> None:
        self.sender = Sender(total)
        self.stored = {layout.DESCRIPTION: documents.encode(Description(uid=uid))}
        self.published = Published(inbox=uid, position=0, dropped=0)
        self.covered: Covered | None = None
        self.records: dict[bytes, bytes] = {}

    @property
    def description(self) -> Description:
        return documents.decode(self.stored[layout.DESCRIPTION], Description)

    @property
    def kept(self) -> list[layout.Block]:
        return [layout.decode_messages(key, self.records[key]) for key in sorted(self.records)]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.stored.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = sorted(self.stored)
        return iter([(key, self.stored[key]) for key in keys[bisect_left(keys, begin) : bisect_left(keys, end)]])

    def write(self, changes: Iterable[Change], *, dropped: tuple[bytes, bytes] | None = None) -> None:
        for key, _ in self.scan(*dropped) if dropped else ():
            del self.stored[key]
        for key, value in changes:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
                if layout.messages_key(0) <= key < layout.MESSAGES_END:
                    self.records[key] = value

    def put_back(self, position: int) -> None:
        """Take the folder from a copy that has dropped less."""
        messages = [message for block in self.kept for message in block.messages]
        dropped_bytes = sum(map(len, messages[:position]))
        known = msgspec.structs.replace(self.description, dropped=position, dropped_bytes=dropped_bytes)
        lost = [(key, data) for key, data in self.records.items() if key > layout.messages_key(position)]
        self.write([*lost, (layout.DESCRIPTION, documents.encode(known))])
        self.published = msgspec.structs.replace(self.published, dropped=position)
        if self.covered is not None:
            self.covered = msgspec.structs.replace(self.covered, position=position)


class Sender:
    """Has messages, the numbers from 0 on; sends some under a key, again and again until they are acknowledged."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.acknowledged = 0
        self._request: list[bytes] = []

    @property
    def done(self) -> bool:
        return self.acknowledged == self.total

    def request(self, size: int) -> tuple[bytes, list[bytes]]:
        """Repeat the request that has had no answer; else make one."""
        first = self.acknowledged
        if not self._request:
            self._request = [str(number).encode() for number in range(first, min(self.total, first + size))]
        return f"from {first}".encode(), self._request

    def be_answered(self) -> None:
        self.acknowledged += len(self._request)
        self._request = []


class Receiver:
    """One process that has the folder: what ``inboxes/writer.py`` does."""

    def __init__(self, scene: Scene, memory: InboxMemory, actor: Actor) -> None:
        self._scene, self._sim, self._memory, self._actor = scene, scene.simulation, memory, actor
        self._description, self._risk = memory.description, scene.simulation.late_risk
        self._began, self._began_uptime_ms = self._sim.now, self._description.uptime_ms
        self._write(self._batch())
        self._publish()

    def receive(self) -> None:
        """Take a request: durable, published, then answered. The answer may be lost."""
        key, messages = self._memory.sender.request(self._sim.random.choice((1, 1, 2, 3)))
        done: Future[Appended] = Future()
        size_bytes = sum(map(len, messages))
        work = Append(
            messages=messages, size_bytes=size_bytes, key=key, token=None, unique=False, session=None, done=done
        )
        batch = self._batch()
        batch.find([work])
        batch.append(work)
        batch.forget_keys()
        self._write(batch)
        self._publish()
        (appended,) = batch.results
        if not isinstance(appended, Appended) or appended.last - appended.first + 1 != len(messages):
            raise Violation(f"acknowledged: {messages} were sent, and the answer is {appended}")
        self._sim.step(self._actor, f"answer {appended.first} to {appended.last}", risk=self._risk)
        if self._actor.faults and self._sim.random.random() < 0.1:
            self._sim.trace.append(f"{self._actor.name}: the answer is lost")
        else:
            self._memory.sender.be_answered()
        self._sim.after(self._actor)

    def drop_covered(self) -> None:
        """Drop what the pipeline says that it has."""
        covered = self._memory.covered
        if covered is None or covered.position <= self._description.dropped:
            return
        batch = self._batch()
        batch.drop(covered.position)
        self._sim.step(self._actor, f"drop up to {covered.position}", risk=self._risk, writes=True)
        allowed = self._scene.droppable()
        if batch.description.dropped > allowed:
            raise Violation(f"needed-kept: dropped up to {batch.description.dropped}, and live ones need {allowed + 1}")
        self._write(batch)
        self._publish()

    def _batch(self) -> GroupCommit:
        uptime_ms = self._began_uptime_ms + 1000 * (self._sim.now - self._began) // TICKS_A_SECOND
        return GroupCommit(cast(Any, self._memory), self._description, _LIMITS, self._sim.now, uptime_ms)

    def _write(self, batch: GroupCommit) -> None:
        self._sim.step(self._actor, f"write up to {batch.description.last}", risk=self._risk, writes=True)
        self._memory.write(batch.finish(), dropped=batch.dropped)
        self._description = batch.description
        self._sim.after(self._actor)

    def _publish(self) -> None:
        known = self._description
        published = Published(inbox=known.uid, position=known.last, dropped=known.dropped)
        if published != self._memory.published:
            self._sim.step(self._actor, f"publish {known.last}", risk=self._risk, writes=True)
            self._memory.published = published
            self._sim.after(self._actor)


def receiver(scene: Scene, memory: InboxMemory) -> Body:
    """Receive until the sender has sent all and nobody reads any more; a start has the folder for itself."""

    def body(actor: Actor) -> None:
        clock = SimClock(scene.simulation, actor)
        inbox = Receiver(scene, memory, actor)
        while True:
            if not memory.sender.done:
                inbox.receive()
            inbox.drop_covered()
            if memory.sender.done and not clock.driven:
                return
            clock.pause(scene.simulation.random.choice((0.5, 1, 2, 4)) if actor.faults else 0)

    return body
