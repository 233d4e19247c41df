"""The simulation's drivers, labellers and readers: they run the product's log, checkpointer, recovery, retention."""

from __future__ import annotations

from collections.abc import Callable

from slackwater import recovery, retention
from slackwater.artifacts import Cut, CutFile, CutOperator, CutPartition, Holdings
from slackwater.checkpointer import Attempt, Checkpointer
from slackwater.errors import NotFound, SlackwaterError
from slackwater.formats.layout import LATEST, RecordKey, manifest_key, parse_key
from slackwater.formats.manifest import Manifest, SinkOutput, SourcePosition, references
from slackwater.formats.records import Label, State, Unlabel
from slackwater.log import Log
from slackwater.settings import Settings
from slackwater.testing.simulation import (
    Actor,
    SimSink,
    SimStore,
    Simulation,
    SimWorld,
    Violation,
    decode_delta,
    encode_delta,
)

TOTAL = 6
PARTITIONS = 2
SINKS = ("left", "right")


class Memory:
    """A driver's operator state: per partition a chain of immutable files, as Spark's working directory has it."""

    def __init__(self) -> None:
        self.position = 0
        self.micro_batch = -1
        self.files: dict[str, bytes] = {}
        self.ids: list[str | None] = [None] * PARTITIONS

    @classmethod
    def restored(cls, files: dict[str, bytes], manifest: Manifest) -> Memory:
        memory = cls()
        memory.files = {path: data for path, data in files.items() if path.startswith("state/")}
        memory.micro_batch = manifest.micro_batch
        memory.position = int(manifest.source_offsets["0"].offsets["row"])
        memory.ids = [p.unique_id for p in manifest.operators["0-sum"].partitions]
        return memory

    def chain(self, partition: int) -> list[tuple[str, bytes]]:
        """The files that the partition's newest version needs, oldest first."""
        chain: list[tuple[str, bytes]] = []
        wanted = self.ids[partition]
        while wanted is not None:
            found = [(p, d) for p, d in self.files.items() if p.startswith(f"state/0/{partition}/") and wanted in p]
            if not found:
                raise Violation(f"restorable: partition {partition} lacks {wanted}")
            chain.insert(0, found[0])
            wanted = decode_delta(found[0][1])[1]
        return chain

    def rows(self) -> list[int]:
        return sorted(row for p in range(PARTITIONS) for _, data in self.chain(p) for row in decode_delta(data)[0])

    def advance(self, rows: list[int], mint: SimWorld) -> None:
        self.micro_batch += 1
        self.position += len(rows)
        version = self.micro_batch + 1
        for partition in range(PARTITIONS):
            mine = [row for row in rows if row % PARTITIONS == partition]
            parent = self.ids[partition]
            if version % 3 == 0:  # a snapshot: the whole state in one file
                mine = sorted([*mine, *(row for _, data in self.chain(partition) for row in decode_delta(data)[0])])
                parent = None
            unique_id = mint.random_id()
            kind = "delta" if parent else "snap"
            self.files[f"state/0/{partition}/{version}_{unique_id}.{kind}"] = encode_delta(mine, parent)
            self.ids[partition] = unique_id

    def cut(self) -> Cut:
        partitions = []
        for number in range(PARTITIONS):
            chain = [CutFile(path, data, len(data)) for path, data in self.chain(number)]
            partitions.append(
                CutPartition(
                    partition=number,
                    path=f"state/0/{number}",
                    version=self.micro_batch + 1,
                    unique_id=str(self.ids[number]),
                    snapshot=[file for file in chain if file.path.endswith(".snap")],
                    deltas=[file for file in chain if file.path.endswith(".delta")],
                )
            )
        offsets = str(self.position).encode()
        position = SourcePosition(source_type="rows", offsets={"row": str(self.position)}, verbatim=str(self.position))
        return Cut(
            micro_batch=self.micro_batch,
            watermark_ms=0,
            sources={"0": position},
            operators=[
                CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=partitions)
            ],
            files=[CutFile(f"offsets/{self.micro_batch}", offsets, len(offsets))],
        )


def choose_settings(simulation: Simulation) -> Settings:
    choose = simulation.random.choice
    return Settings(
        keep_last=choose((1, 2, 4)),
        inline_max_bytes=choose((0, 4096)),
        inline_budget_bytes=choose((0, 64, 4096)),
        object_min_bytes=choose((1, 60, 10**6)),
        concurrency=1,
    )


def driver(simulation: Simulation, settings: Settings) -> Callable[[Actor], None]:
    def body(actor: Actor) -> None:
        store, world = SimStore(simulation, actor), SimWorld(simulation, actor)
        sinks = {name: SimSink(simulation, actor, name) for name in SINKS}
        log = Log(store, world, settings)
        claimed = recovery.claim(store, log, world, pipeline="p", driver=actor.name, sinks=sinks)
        refs = retention.References(store, settings)
        memory, files = Memory(), dict[str, bytes]()
        holdings: Holdings = {}
        with log.unless_fenced(claimed.state.generation):
            retention.sweep(store, claimed.state, claimed.survey, sinks, refs)
            if claimed.head is not None:
                holdings = recovery.restore(store, claimed.head, settings, files.__setitem__)
        if claimed.head is not None:
            memory = Memory.restored(files, claimed.head)
            if memory.rows() != list(range(memory.position)):
                raise Violation(f"restorable: {memory.rows()} restored at position {memory.position}")
        checkpointer = Checkpointer(
            store=store,
            log=log,
            world=world,
            settings=settings,
            pipeline="p",
            pipeline_hash="0" * 64,
            sinks=sinks,
            holdings=holdings,
            settlement=claimed.settlement,
        )
        while memory.position < TOTAL:
            size = simulation.random.choice((0, 1, 1, 2))
            rows = list(range(memory.position, min(TOTAL, memory.position + size)))
            checkpoint_id = world.checkpoint_id()
            outputs = {
                name: SinkOutput(
                    kind=sink.kind, address=sink.address, can_undo=False, descriptors=[sink.stage(rows, checkpoint_id)]
                )
                for name, sink in sinks.items()
            }
            memory.advance(rows, world)
            checkpointer.checkpoint(memory.cut(), Attempt(checkpoint_id=checkpoint_id, outputs=outputs))
            with log.unless_fenced(checkpointer.generation):
                checkpointer.note_deleted(retention.delete_retired(store, checkpointer.state, refs))
        checkpointer.release()

    return body


def labeller(simulation: Simulation, settings: Settings, told: dict[str, str]) -> Callable[[Actor], None]:
    def body(actor: Actor) -> None:
        store, world = SimStore(simulation, actor), SimWorld(simulation, actor)
        log = Log(store, world, settings)
        chosen: list[int] = []

        def decide(state: State | None) -> Label:
            if state is None or not state.live:
                raise NotFound("nothing to label yet", code="checkpoint.not_found")
            chosen[:] = [simulation.random.choice(state.live).epoch]
            return Label(label="kept", epoch=chosen[0])

        for _ in range(20):
            try:
                state = log.append(decide)
                break
            except (NotFound, SlackwaterError):
                world.sleep(1)
        else:
            return
        found = next(savepoint for savepoint in state.labels if savepoint.label == "kept")
        entry = state.find(found.epoch)
        if entry is None:
            raise Violation("label-live: a labelled checkpoint is not live")
        told["kept"] = entry.checkpoint_id
        if simulation.random.random() < 0.3:
            del told["kept"]
            log.append(lambda state: Unlabel(label="kept") if state and state.labels else None)

    return body


def reader(simulation: Simulation, settings: Settings) -> Callable[[Actor], None]:
    def body(actor: Actor) -> None:
        store, world = SimStore(simulation, actor), SimWorld(simulation, actor)
        last = 0
        for _ in range(5):
            state = Log(store, world, settings).read()
            if state is not None and state.epoch < last:
                raise Violation("monotone: the newest epoch went back")
            last = state.epoch if state else 0
            world.sleep(1)

    return body


def play(seed: int) -> Simulation:
    """Play one seed: drivers that crash and stall, a labeller, a reader; then a last driver without faults."""
    simulation = Simulation(seed)
    settings = choose_settings(simulation)
    told: dict[str, str] = {}
    for number in range(simulation.random.choice((1, 2, 3, 4))):
        simulation.spawn(
            f"driver-{number}", driver(simulation, settings), delay=simulation.random.randint(0, 150 * number + 1)
        )
    simulation.spawn("labeller", labeller(simulation, settings, told), delay=simulation.random.randint(0, 200))
    simulation.spawn("reader", reader(simulation, settings), delay=simulation.random.randint(0, 200))
    simulation.run()
    # Twice: the first may still delete what the crashed ones retired, the second finds a settled world.
    for number in (1, 2):
        last = simulation.spawn(f"last-{number}", driver(simulation, settings), faults=False)
        simulation.run()
        if last.error is not None:
            raise Violation(f"available: a start after the crashes fails with {last.error!r}")
    check(simulation, settings, told)
    return simulation


def check(simulation: Simulation, settings: Settings, told: dict[str, str]) -> None:
    """The invariants, by name."""
    looked: list[Violation] = []

    def look(actor: Actor) -> None:  # noqa: PLR0912 - one invariant after the other
        store, world = SimStore(simulation, actor), SimWorld(simulation, actor)
        state = Log(store, world, settings).read()
        if state is None or state.head is None:
            raise Violation("progress: nothing was checkpointed")
        needed = {LATEST}
        for entry in state.live:
            try:
                manifest = recovery.load_manifest(store, entry)
                files: dict[str, bytes] = {}
                recovery.restore(store, manifest, settings, files.__setitem__)
            except SlackwaterError as error:
                raise Violation(f"restorable: live epoch {entry.epoch}: {error}") from error
            memory = Memory.restored(files, manifest)
            if memory.rows() != list(range(memory.position)):
                raise Violation(f"restorable: epoch {entry.epoch} holds {memory.rows()} at {memory.position}")
            needed |= references(manifest) | {manifest_key(entry.checkpoint_id)}
        for label, checkpoint_id in told.items():
            if checkpoint_id not in {entry.checkpoint_id for entry in state.live}:
                raise Violation(f"label-kept: the savepoint {label} is gone")
        for name, target in simulation.sinks.items():
            if target.rows != list(range(TOTAL)):
                raise Violation(f"exactly-once: the sink {name} holds {target.rows}")
            if target.staged:
                raise Violation(f"swept: the sink {name} still holds staged {list(target.staged)}")
        for retired in state.retired:
            if manifest_key(retired.checkpoint_id) in simulation.objects:
                needed |= retention.References(store, settings).of(retired) | {manifest_key(retired.checkpoint_id)}
        for key in simulation.objects.keys() - needed:
            if not isinstance(parse_key(key), RecordKey):
                raise Violation(f"swept: {key} is garbage that nobody deleted")

    def body(actor: Actor) -> None:
        try:
            look(actor)
        except Violation as violation:
            looked.append(violation)

    simulation.spawn("judge", body, faults=False)
    simulation.run()
    if looked:
        raise looked[0]
