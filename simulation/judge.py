"""The judge: looks at what a run has left, and names the invariant that does not hold."""

from __future__ import annotations

from typing import cast

import msgspec

from simulation.actors import TOTAL, Scene, verify_all
from simulation.inbox import InboxMemory
from simulation.memory import TABLE, TABLE_KEYS, into, table_at
from simulation.scheduler import Actor, SimStore, Violation
from slackwater.errors import Corrupt, SlackwaterError
from slackwater.formats import record as records
from slackwater.formats.change import Change, Checkpoint, Claim, Label, Repair, Rollback
from slackwater.formats.keys import LATEST, RecordKey, manifest_key, parse_key, record_key
from slackwater.formats.record import Record
from slackwater.formats.state import State
from slackwater.protocol import recovery


class Chunk(msgspec.Struct):
    """What one epoch gave to one sink. ``undone_by``: the rollback that takes it back."""

    epoch: int
    rows: list[int]
    sure: bool
    undone_by: int | None = None


class History:
    """All records that counted, as they were written, whatever has happened to them since."""

    def __init__(self, scene: Scene) -> None:
        self.scene, written = scene, scene.simulation.written
        keys = sorted(key for key in written if isinstance(parse_key(key), RecordKey))
        self.records = [records.decode(written[key], number=n) for n, key in enumerate(keys, 1)]
        self.dropped = {
            (settled.epoch, name)
            for record in self.records
            if (settled := getattr(record.change, "settled", None)) is not None
            for name, sink in settled.sinks.items()
            if sink.status == "Dropped"
        }
        # Damaged before anybody went on from them: a repair has passed them by, and sinks may have followed them.
        self.lost = {
            number
            for record in self.records
            if isinstance(record.change, Repair)
            for number in range(record.change.from_number + 1, record.number)
        }
        # Sinks that did not take part in all, as told; and those that may have rows twice, as told or by their nature.
        self.partial = {name for _, name in self.dropped}
        self.repeating: set[str] = set()

    @property
    def state(self) -> State:
        return self.records[-1].state

    @property
    def blind(self) -> bool:
        """Whether nobody can know what is garbage: a live manifest that cannot be read may name it."""
        return any(manifest_key(entry.checkpoint_id) in self.scene.damaged for entry in self.state.live)

    def check(self) -> dict[str, list[Chunk]]:
        """Go through the records; return what each sink should show after them."""
        before: Record | None = None
        chunks: dict[str, list[Chunk]] = {name: [] for name in self.scene.simulation.sinks}
        for record in self.records:
            change, state = record.change, before.state if before else None
            if record.number in self.lost:
                self._lose(change, chunks)
                continue
            if state is not None:
                self._check_step(cast(Record, before), record)
            if isinstance(change, Checkpoint):
                sinks = self.scene.manifest(change).sinks
                self.partial |= chunks.keys() - sinks.keys()
                for name, sink in sinks.items():
                    rows = [row for descriptor in sink.descriptors for row in descriptor["rows"]]
                    if rows:
                        sure = (change.epoch, name) not in self.dropped
                        chunks[name].append(Chunk(change.epoch, rows, sure))
            elif isinstance(change, Rollback | Repair):
                self._undo(change, cast(State, state), chunks)
            before = record
        return chunks

    def _lose(self, change: Change, chunks: dict[str, list[Chunk]]) -> None:
        """What a lost record said may be in a sink, or not."""
        if isinstance(change, Checkpoint):
            for name, sink in self.scene.manifest(change).sinks.items():
                rows = [row for descriptor in sink.descriptors for row in descriptor["rows"]]
                if rows:
                    chunks[name].append(Chunk(change.epoch, rows, sure=False))
        elif isinstance(change, Rollback | Repair):
            for chunk in (chunk for given in chunks.values() for chunk in given):
                chunk.sure = chunk.sure and chunk.epoch <= change.to_epoch

    def _check_step(self, before: Record, record: Record) -> None:
        change, state = record.change, before.state
        if record.state.epoch < state.epoch or record.state.settled_epoch < state.settled_epoch:
            raise Violation(f"monotone: record {record.number} goes back")
        if isinstance(change, Claim):
            return
        gone = {entry.epoch for entry in state.live} - {entry.epoch for entry in record.state.live}
        if state.epoch in gone and record.state.epoch == state.epoch:
            raise Violation(f"head-kept: record {record.number} retires the head")
        if lost := gone & {savepoint.epoch for savepoint in state.labels}:
            raise Violation(f"label-kept: record {record.number} retires {sorted(lost)}, which had a label")
        if (generation := getattr(change, "generation", None)) is not None and generation != state.generation:
            raise Violation(f"one-winner: record {record.number} is of generation {generation}, which was fenced")
        if record.state.head is not None and record.state.head.undone:
            raise Violation(f"undone: the head of record {record.number} was undone")
        branch = {entry.epoch for entry in state.branch}
        if isinstance(change, Repair) and state.head is not None and state.head.epoch > state.settled_epoch:
            branch |= {state.head.rollback_to or 0}
        if isinstance(change, Rollback | Repair) and change.to_epoch not in branch:
            raise Violation(f"undone: record {record.number} rolls back to {change.to_epoch}, which is off the branch")

    def _undo(self, change: Rollback | Repair, state: State, chunks: dict[str, list[Chunk]]) -> None:
        manifest = self.scene.manifest(change)
        assert manifest.rollback is not None
        for name, given in chunks.items():
            later = [chunk for chunk in given if chunk.epoch > change.to_epoch]
            kept = name in manifest.rollback.keep or not self.scene.simulation.sinks[name].can_undo
            if not kept and name in manifest.sinks and (change.epoch, name) not in self.dropped:
                for chunk in later:
                    chunk.undone_by = chunk.undone_by or change.epoch
                continue
            for chunk in given:
                # An earlier undo that no driver has come to yet is not done by this one either.
                if chunk.undone_by is not None and chunk.undone_by > state.settled_epoch:
                    chunk.sure, chunk.undone_by = False, None
                if chunk.epoch > state.settled_epoch:
                    chunk.sure = False
            if kept:
                self.repeating.add(name)
            else:
                for chunk in later:
                    chunk.sure = False


def check(scene: Scene) -> None:
    """Check every invariant on what the run has left."""
    history = History(scene)
    chunks = history.check()
    if scene.inbox is not None:
        _check_inbox(history, scene.inbox)
    for name, sink in scene.simulation.sinks.items():
        _check_sink(history, name, sink.committed, chunks[name])
        _check_versions(history, name, sink.committed)
        if sink.staged and not sink.given_up:
            raise Violation(f"swept: the sink {name} still holds staged {sorted(sink.staged)}")
    for record in history.records[-scene.kept_records :]:
        key = record_key(record.number)
        if (
            key not in scene.damaged | scene.simulation.bad_records
            and scene.simulation.objects.get(key) != scene.simulation.written[key]
        ):
            raise Violation(f"newest: record {record.number} of {len(history.records)} is gone")
    lost = [record.change for record in history.records if record.number in history.lost]
    gone = scene.unlabelled | {change.label for change in lost if isinstance(change, Label)}
    for label, checkpoint_id in scene.labels.items():
        if label not in gone and checkpoint_id not in {entry.checkpoint_id for entry in history.state.live}:
            raise Violation(f"label-kept: the savepoint {label} is gone")
    looked: list[Violation] = []

    def body(actor: Actor) -> None:
        store, clock, log = scene.tools(actor)
        try:
            _check_store(history, store)
            log.read()
            verify_all(scene, actor, scene.pipeline(store, log, clock))
        except Violation as violation:
            looked.append(violation)

    scene.simulation.spawn("judge", body, faults=False)
    scene.simulation.run()
    if looked:
        raise looked[0]


def _check_inbox(history: History, inbox: InboxMemory) -> None:
    messages = [int(message) for block in inbox.kept for message in block.messages]
    if inbox.sender.acknowledged != TOTAL or messages != list(range(TOTAL)):
        raise Violation(f"acknowledged: {inbox.sender.acknowledged} were acknowledged, and {messages} were kept")
    for name, sink in history.scene.simulation.sinks.items():
        rows = [row for _, rows in sink.committed for row in rows]
        if name not in history.partial and (lost := set(messages) - set(rows)):
            raise Violation(f"acknowledged: the sink {name} has never got {sorted(lost)}")
        if name not in history.partial | history.repeating and len(rows) > len(messages):
            raise Violation(f"acknowledged: the sink {name} has got some twice: {rows}")
    covered, dropped = history.scene.covered(history.state), inbox.description.dropped
    if dropped > covered:
        raise Violation(f"needed-kept: live checkpoints need messages from {covered + 1}, dropped up to {dropped}")
    if dropped < covered and not history.blind:
        raise Violation(f"swept: all live checkpoints cover {covered}, and the inbox is dropped up to {dropped}")


def _check_versions(history: History, name: str, shown: list[tuple[int, list[int]]]) -> None:
    made = {record.change.epoch: record.change for record in history.records if isinstance(record.change, Checkpoint)}
    for epoch, rows in shown:
        if epoch not in made:
            continue
        held = table_at(int(history.scene.manifest(made[epoch]).table_offsets[TABLE].offsets["change"]))
        joined = history.scene.joined[made[epoch].checkpoint_id]
        if joined != [held[row % TABLE_KEYS] for row in rows]:
            raise Violation(f"one-version: in the sink {name} epoch {epoch} was joined with {joined}, and holds {held}")


def _check_sink(history: History, name: str, shown: list[tuple[int, list[int]]], expected: list[Chunk]) -> None:
    visible = dict(shown)
    rows = [row for _, rows in shown for row in rows]
    if name not in history.partial | history.repeating and rows != list(range(TOTAL)):
        raise Violation(f"exactly-once: the sink {name} holds {rows}")
    if name not in history.partial and not set(range(TOTAL)) <= set(rows):
        raise Violation(f"at-least-once: the sink {name} holds {rows}")
    if [epoch for epoch, _ in shown] != sorted(visible):
        raise Violation(f"exactly-once: the sink {name} shows epochs {[epoch for epoch, _ in shown]}")
    for chunk in expected:
        found = visible.pop(chunk.epoch, None)
        if chunk.undone_by is not None and found is not None:
            raise Violation(f"undone: the sink {name} shows epoch {chunk.epoch}, undone by {chunk.undone_by}")
        if chunk.undone_by is None and found != chunk.rows and (chunk.sure or found is not None):
            raise Violation(f"exactly-once: of epoch {chunk.epoch} the sink {name} holds {found}, not {chunk.rows}")
    if visible:
        raise Violation(f"exactly-once: the sink {name} holds rows of epochs {list(visible)} that never counted")


def _check_store(history: History, store: SimStore) -> None:
    scene, state = history.scene, history.state
    if state.head is None:
        raise Violation("progress: nothing was checkpointed")
    needed = {LATEST}
    for entry in state.live:
        wanted = scene.needs(entry)
        needed |= wanted
        # Of a damaged one, too: what is left must be there when the rest is put back from a copy.
        if lost := wanted - scene.simulation.objects.keys() - scene.damaged:
            raise Violation(f"restorable: live epoch {entry.epoch} has lost {min(lost)}")
        try:
            files: dict[str, bytes] = {}
            recovery.restore(store, recovery.load_manifest(store, entry), scene.settings, into(files))
        except SlackwaterError as error:
            if entry is not state.head and isinstance(error, Corrupt) and wanted & scene.damaged:
                continue
            raise Violation(f"restorable: live epoch {entry.epoch}: {error}") from error
        scene.check_restored(scene.manifest(entry), files)
    if history.blind:
        return
    for retired in state.retired:
        if manifest_key(retired.checkpoint_id) in scene.simulation.objects:
            needed |= scene.needs(retired)
    for key in scene.simulation.objects.keys() - needed:
        if not isinstance(parse_key(key), RecordKey):
            raise Violation(f"swept: {key} is garbage that nobody deleted")
