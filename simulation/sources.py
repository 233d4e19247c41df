"""A driver's sources in the simulation: rows that can be read again, or an inbox that drops what is covered."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, cast

from simulation.inbox import FOLDER, InboxMemory
from simulation.scheduler import Actor, Simulation, Violation
from slackwater.errors import Conflict, Corrupt, NotFound
from slackwater.formats.manifest import SourcePosition
from slackwater.formats.positions import KIND
from slackwater.formats.state import State
from slackwater.inboxes import reader as inbox_reader
from slackwater.inboxes.documents import Covered
from slackwater.sources.acknowledgement import Acknowledgements
from slackwater.store import Store


class Source(Protocol):
    """What a driver reads: the numbers from 0 on, of which ``position`` says how many."""

    def latest(self, position: int) -> int: ...

    def read(self, begin: int, end: int) -> list[int]: ...

    def describe(self, position: int) -> SourcePosition: ...


class RowSource:
    """It has all rows, at any time."""

    def __init__(self, total: int) -> None:
        self._total = total

    def latest(self, position: int) -> int:
        return self._total

    def read(self, begin: int, end: int) -> list[int]:
        return list(range(begin, end))

    def describe(self, position: int) -> SourcePosition:
        row = str(position)
        return SourcePosition(source_type="rows", offsets={"row": row}, verbatim=row, metadata={})


class InboxSource:
    """What ``sw.inbox`` gives to Spark: positions that are durable, refused where they are dropped."""

    def __init__(self, simulation: Simulation, actor: Actor, memory: InboxMemory, newest: Newest, state: State) -> None:
        self._sim, self._actor, self._memory, self._newest = simulation, actor, memory, newest
        self._inbox, self._generation = memory.published.inbox, state.generation
        if memory.covered is not None and memory.covered.pipeline != state.uid:
            raise Conflict("the inbox is read by another pipeline", code="inbox.other_pipeline")

    def latest(self, position: int) -> int:
        self._sim.step(self._actor, "look into the inbox")
        published = self._memory.published
        try:
            inbox_reader.check_range(FOLDER, published, self._inbox, position)
        except (NotFound, Corrupt) as error:
            self._stop(error)
        return published.position

    def read(self, begin: int, end: int) -> list[int]:
        try:
            inbox_reader.check_range(FOLDER, self._memory.published, self._inbox, begin, end)
            self._sim.step(self._actor, f"read messages {begin + 1} to {end}")
            chunks = (
                list(inbox_reader.chunks_of(cast(Any, self._memory), self._inbox, begin, end)) if begin < end else []
            )
        except (NotFound, Corrupt) as error:
            self._stop(error)
        return [int(message.content) for chunk in chunks for message in chunk]

    def describe(self, position: int) -> SourcePosition:
        offsets = {"inbox": self._inbox, "position": str(position)}
        return SourcePosition(source_type=KIND, offsets=offsets, verbatim=str(position), metadata={})

    def _stop(self, error: NotFound | Corrupt) -> NoReturn:
        """Who was fenced may miss what others have covered; and who goes on from before a record that was lost."""
        state = self._newest()
        if error.code == "inbox.dropped" and (state is None or state.generation != self._generation):
            raise Conflict("stops at what was dropped", code=error.code) from None
        if error.code == "inbox.dropped" and self._sim.bad_records:
            raise Conflict("stops until the folder is put back from a copy", code=error.code) from None
        raise Violation(f"needed-kept: {error}") from None


class Newest(Protocol):
    """Tell the newest state, None when its record is damaged."""

    def __call__(self) -> State | None: ...


class SimAcknowledgements(Acknowledgements):
    """The real decision what is covered; it is told to an inbox in memory."""

    def __init__(
        self, simulation: Simulation, actor: Actor, store: Store, memory: InboxMemory | None, **fields: Any
    ) -> None:
        super().__init__(store, {memory.published.inbox: FOLDER} if memory else {}, **fields)
        self._sim, self._actor, self._memory = simulation, actor, cast(InboxMemory, memory)

    def _tell(self, inbox: str, folder: Any, state: State) -> None:
        position, memory = self._covered(inbox, state), self._memory
        if position is None:
            position = memory.published.dropped
        if position <= self._said.get(inbox, -1):
            return
        if memory.covered is not None and memory.covered.pipeline != state.uid:
            raise Conflict("the inbox is read by another pipeline", code="inbox.other_pipeline")
        if memory.covered is None or memory.covered.position < position:
            self._sim.step(self._actor, f"acknowledge {position}", risk=self._sim.late_risk, writes=True)
            memory.covered = Covered(inbox=inbox, position=position, pipeline=state.uid)
            self._sim.after(self._actor)
        self._said[inbox] = position
