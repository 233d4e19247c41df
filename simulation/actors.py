"""The simulation's actors: drivers, tools that roll back, forget or trim, labellers, readers, a disk that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn, cast

import msgspec

from simulation.inbox import InboxMemory, receiver
from simulation.memory import Memory, content, into
from simulation.scheduler import TICKS_A_SECOND, Actor, Crashed, SimClock, SimStore, Simulation, Violation
from simulation.sink import SimSink
from simulation.sources import InboxSource, RowSource, SimAcknowledgements, Source
from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from slackwater.formats import manifest as manifests
from slackwater.formats import record as records
from slackwater.formats.change import Checkpoint, Label, Repair, Rollback
from slackwater.formats.keys import LOG, RecordKey, manifest_key, parse_key, record_key
from slackwater.formats.manifest import Manifest, SinkOutput, references
from slackwater.formats.positions import acknowledged_of, positions_of
from slackwater.formats.record import Record
from slackwater.formats.state import LiveCheckpoint, RetiredCheckpoint, State
from slackwater.ops import forget, repair, rollback
from slackwater.ops import refs as labels
from slackwater.ops import savepoint as savepoint_ops
from slackwater.ops import verify as verification
from slackwater.protocol.artifacts import Holdings, get_artifacts
from slackwater.protocol.driver import Claimed, Driver, claim_driver, open_driver
from slackwater.protocol.keep_rules import KeepRules
from slackwater.protocol.log import Decide, Log, Permit
from slackwater.protocol.pipeline import Pipeline
from slackwater.protocol.retention import Survey
from slackwater.protocol.rollback import roll_back
from slackwater.protocol.sinks import Attempt, SinkFailed, describe_output
from slackwater.protocol.state import find_target
from slackwater.protocol.verified_reads import load_manifest, verify_restorable
from slackwater.settings import Settings
from slackwater.sources.acknowledgement import UpTo

# A simulated driver warns of simulated faults: nobody has to see that.
logging.getLogger("slackwater").addHandler(logging.NullHandler())

TOTAL = 8
SINKS = ("left", "right")
_TICKS_A_CHANGE = 10
# How often a driver looks in vain for something to read.
_PATIENCE = 40

Body = Callable[[Actor], None]


class WatchedLog(Log):
    """A log whose answers are judged: what it takes for the newest state is that of a record that counted."""

    def __init__(self, simulation: Simulation, store: SimStore, clock: SimClock, scene: Scene) -> None:
        super().__init__(store, clock, scene.settings, kept_records=scene.kept_records)
        self._written = simulation.written
        # Every live checkpoint that it was ever told of, by its epoch.
        self.seen: dict[int, LiveCheckpoint] = {}

    def read(self) -> State | None:
        super().read()
        return self._judged()

    def append(self, decide: Decide, *, permit: Permit | None = None) -> State:
        super().append(decide, permit=permit)
        return cast(State, self._judged())

    def _judged(self) -> State | None:
        counted = self._written.get(record_key(self.number))
        if self.number and (counted is None or records.decode(counted, number=self.number).state != self.state):
            raise Violation(f"newest: what was taken for record {self.number} has never counted")
        self.seen |= {entry.epoch: entry for entry in self.state.live} if self.state else {}
        return self.state


class Scene:
    """What the actors of one run share, beside the simulation: what was said to them, and done to the store."""

    # How likely it is that rows are pushed, and cannot be had again.
    pushed_share = 0.5

    def __init__(self, simulation: Simulation) -> None:
        choose = simulation.random.choice
        self.simulation = simulation
        self.settings = Settings(
            keep_last=choose((1, 2, 3, 4, 4, 6)),
            inline_max_bytes=choose((0, 4096)),
            inline_budget_bytes=choose((0, 64, 4096)),
            object_min_bytes=choose((1, 60, 10**6)),
            concurrency=1,
        )
        # So few that writers which slept find their number trimmed away.
        self.kept_records: int = choose((1, 2, 3, 6))
        self.labels: dict[str, str] = {}
        self.kept: set[str] = set()
        # What was damaged for good, or lost; and by its checkpoint every file that there was to store.
        self.damaged: set[str] = set()
        self.model: dict[str, dict[str, bytes]] = {}
        # Labels that somebody may have removed.
        self.unlabelled: set[str] = set()
        # Where the rows come from, if they are pushed; and what each checkpoint's rows were joined with.
        self.inbox: InboxMemory | None = None
        self.acknowledged_up_to: UpTo = "oldest"
        self.joined: dict[str, list[int]] = {}
        self._looked_at: set[str] = set()
        self._droppable = 0

    def open(self, actor: Actor) -> Pipeline:
        """Give an actor the pipeline, through its own store, log and clock."""
        store, clock = SimStore(self.simulation, actor), SimClock(self.simulation, actor)
        log = WatchedLog(self.simulation, store, clock, self)
        return Pipeline(name="p", url=store.url, store=store, log=log, clock=clock, settings=self.settings)

    def stop_if_damaged(self, error: Corrupt, actor: Actor) -> NoReturn:
        """A user has to decide here; the next actor may be one that has."""
        if error.code == "log.corrupt" and self.simulation.bad_records:
            raise error
        if not self.damaged and not actor.spoilt:
            raise Violation(f"restorable: nothing was damaged, and still: {error}") from None
        raise Conflict("stops at the damage", code="head.damaged") from None

    def manifest(self, entry: Checkpoint | Rollback | Repair | LiveCheckpoint | RetiredCheckpoint) -> Manifest:
        """Tell the manifest of a checkpoint as it was written, whatever has happened to it since."""
        data = self.simulation.written[manifest_key(entry.checkpoint_id)]
        return manifests.decode(data, sha256=entry.manifest_sha256, checkpoint_id=entry.checkpoint_id)

    def needs(self, entry: LiveCheckpoint | RetiredCheckpoint) -> set[str]:
        """Name all objects without which a checkpoint cannot be restored."""
        return {manifest_key(entry.checkpoint_id), *references(self.manifest(entry))}

    def newest(self) -> State | None:
        """Tell the newest state, as it was written; None when there is none, or its record is damaged."""
        key = max((key for key in self.simulation.objects if key.startswith(LOG)), default="")
        if not key or key in self.simulation.bad_records:
            return None
        return records.decode(self.simulation.objects[key], number=cast(RecordKey, parse_key(key)).number).state

    def covered(self, state: State) -> int:
        """Tell up to where the live checkpoints of a state, all of them or the newest, have read the inbox."""
        needing = state.live if self.acknowledged_up_to == "oldest" else state.live[-1:]
        found = [positions_of(self.manifest(entry).source_offsets) for entry in needing]
        return min((positions.popitem()[1] for positions in found), default=0)

    def droppable(self) -> int:
        """Tell up to where the inbox may be dropped: what the live checkpoints of a record that counted have covered.

        That only grows, from record to record; a repair alone may go on from before what a lost one has let go.
        """
        written = self.simulation.written
        for key in written.keys() - self._looked_at:
            if isinstance(name := parse_key(key), RecordKey):
                state = records.decode(written[key], number=name.number).state
                self._droppable = max(self._droppable, self.covered(state))
        self._looked_at |= written.keys()
        return self._droppable

    def check_restored(self, manifest: Manifest, files: dict[str, bytes]) -> Memory:
        """What was restored is what was stored; a rollback has what its target had."""
        checkpoint_id, written = manifest.checkpoint_id, self.simulation.written
        while checkpoint_id not in self.model:
            rollback = msgspec.json.decode(written[manifest_key(checkpoint_id)])["rollback"]
            checkpoint_id = rollback["to_id"]
        if wrong := [path for path, data in self.model[checkpoint_id].items() if files.get(path) != data]:
            raise Violation(f"verified: epoch {manifest.epoch} was restored, and {wrong[0]} is not what was stored")
        return Memory.restored(files, manifest)


class Program(NamedTuple):
    """What a driver was started with."""

    sinks: tuple[str, ...] = SINKS
    drop: tuple[str, ...] = ()
    fallback: bool = False


def driver(scene: Scene, program: Program) -> Body:
    """Recover, go on to the last row, end: what ``streaming/`` does, without Spark."""
    simulation = scene.simulation

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        sinks = {name: SimSink(simulation, actor, name) for name in program.sinks}
        for name in program.drop:
            simulation.sinks[name].given_up = True
        pipeline.log.read()  # whose pipeline it is, is looked at before the claim
        driver, memory = start(scene, program, actor, pipeline, sinks)
        with driver:
            drive(scene, actor, driver, memory, sinks)

    return body


def start(
    scene: Scene, program: Program, actor: Actor, pipeline: Pipeline, sinks: dict[str, SimSink]
) -> tuple[Driver, Memory]:
    """Open the driver; every way in which that ends is judged."""
    before, misread = set(scene.damaged), actor.misread

    def hydrate(manifest: Manifest | None, _claimed: Claimed) -> tuple[Memory, Holdings]:
        if manifest is None:
            return Memory(), {}
        files = dict[str, bytes]()
        holdings = get_artifacts(pipeline.store, manifest, scene.settings, into(files))
        return scene.check_restored(manifest, files), holdings

    def check_head(damage: Corrupt, head: LiveCheckpoint) -> None:
        """A head is given up only if it is damaged, or was read wrong twice."""
        stored = scene.simulation.objects
        needed = scene.needs(head)
        if needed & scene.damaged or actor.misread >= misread + 2:
            return
        if lost := needed - stored.keys():
            raise Violation(f"restorable: live epoch {head.epoch} has lost {min(lost)}") from None
        raise Violation(f"head-tried: epoch {head.epoch} is sound, and was given up: {damage}") from None

    try:
        driver, memory = open_driver(
            pipeline,
            actor.name,
            hydrate=hydrate,
            sinks=sinks,
            dropped=program.drop,
            fallback=(lambda damage, target: check_head(damage, pipeline.state.live[-1])) if program.fallback else None,
            pipeline_hash="0" * 64,
        )
    except Corrupt as damage:
        if damage.code == "log.corrupt":
            raise
        if damage.code != "head.damaged" and not actor.spoilt and scene.damaged == before:
            raise Violation(f"verified: rolled back to a checkpoint that is damaged: {damage}") from None
        if damage.code == "head.damaged":
            # When it ended on record it may have learned of newer ones.
            check_head(damage, cast(WatchedLog, pipeline.log).seen[damage.details["epoch"]])
        scene.stop_if_damaged(damage, actor)
    check_undone(scene, pipeline.log, sinks)
    check_swept(driver.state, driver.claimed.survey, sinks)
    check_deletes(driver)
    return driver, memory


def drive(scene: Scene, actor: Actor, driver: Driver, memory: Memory, sinks: dict[str, SimSink]) -> None:
    """Read, stage, checkpoint and acknowledge, to the last row."""
    simulation, clock = scene.simulation, cast(SimClock, driver.pipeline.clock)
    source: Source = RowSource(TOTAL)
    if scene.inbox is not None:
        source = InboxSource(simulation, actor, scene.inbox, scene.newest, driver.claimed.state)
    acknowledged = acknowledged_of(driver.head.source_offsets) if driver.head else {}
    acknowledgements = SimAcknowledgements(
        simulation,
        actor,
        driver.pipeline.store,
        scene.inbox,
        up_to=scene.acknowledged_up_to,
        acknowledged=acknowledged,
    )
    acknowledgements.acknowledge(driver.state)
    patience = _PATIENCE
    while memory.position < TOTAL and patience:
        size = simulation.random.choice((0, 1, 1, 2))
        end = min(memory.position + size, source.latest(memory.position))
        if size and end == memory.position:
            patience -= 1
            clock.pause(1)
            continue
        rows = source.read(memory.position, end)
        checkpoint_id = clock.checkpoint_id()
        read_feed(memory, actor)
        scene.joined[checkpoint_id] = memory.join(rows)
        outputs = {name: describe_output(sink, [sink.stage(rows, checkpoint_id)]) for name, sink in sinks.items()}
        memory.advance(rows, end, clock)
        cut = memory.cut(source.describe)
        cut = msgspec.structs.replace(cut, sources=acknowledgements.note(cut.sources))
        scene.model[checkpoint_id] = content(cut)
        simulation.attempts += 1
        driver.checkpoint(cut, Attempt(checkpoint_id=checkpoint_id, outputs=outputs))
        check_deletes(driver)
        acknowledgements.know(checkpoint_id, cut.sources)
        acknowledgements.acknowledge(driver.state)


def check_deletes(driver: Driver) -> None:
    """A driver goes on when deletes fail; but there is nothing that they could have run into, beside an outage."""
    if driver.hindrance is not None and not isinstance(driver.hindrance, Unavailable):
        raise driver.hindrance


def read_feed(memory: Memory, actor: Actor) -> None:
    """Bring the reference table to where its feed is now: once for an epoch, before anything of it is joined."""
    actor.simulation.step(actor, "read the feed")
    memory.follow(actor.simulation.now // _TICKS_A_CHANGE)


def push(scene: Scene, *, faults: bool) -> None:
    """Let a receiver take what is sent. It is started again when it dies, but for good it may be gone, too."""
    if scene.inbox is not None:
        body = receiver(scene, scene.inbox)
        lives = scene.simulation.random.randint(2, 30) if faults else 1
        scene.simulation.spawn("receiver", supervised(body, lives), faults=faults)


def check_undone(scene: Scene, log: Log, sinks: dict[str, SimSink]) -> None:
    """Once a driver has driven the head, nothing that was undone is visible, now or ever."""
    undone = {entry.epoch for entry in cast(State, log.state).live if entry.undone}
    for name, sink in sinks.items():
        kept = name in scene.kept or not sink.can_undo or sink.memory.given_up
        if not kept and (seen := undone & {epoch for epoch, _ in sink.memory.committed}):
            raise Violation(f"undone: the sink {name} shows rows of {sorted(seen)} after the undo")


def check_swept(state: State, survey: Survey, sinks: dict[str, SimSink]) -> None:
    """Once a driver has swept, only what can still be committed is staged of what it had found."""
    wanted = {state.head.checkpoint_id} if state.head else set()
    for name, attempts in survey.attempts.items():
        if left := (set(attempts) & sinks[name].memory.staged.keys()) - wanted:
            raise Violation(f"swept: the sink {name} still holds what was staged as {sorted(left)}")


def roller(scene: Scene) -> Body:
    """Roll back to some epoch at some time, and once more: what ``ops/rollback.py`` does."""

    def body(actor: Actor) -> None:
        for _ in range(scene.simulation.random.choice((1, 2, 3))):
            plan_and_roll_back(scene, actor)

    return body


def plan_and_roll_back(scene: Scene, actor: Actor) -> None:
    choose = scene.simulation.random.choice
    pipeline = scene.open(actor)
    log = pipeline.log

    def open_sink(name: str, output: SinkOutput) -> SimSink:
        sink = SimSink(scene.simulation, actor, name)
        sink.bind("p", name, pipeline.state.uid)
        return sink

    state = wait_for_branch(pipeline)
    if state is None:
        return
    older, undone = state.branch[:-1], [entry for entry in state.live if entry.undone]
    hurt = [entry for entry in older if scene.needs(entry) & scene.damaged]
    to_epoch = choose(choose((older, older, state.live[-1:], undone or older, undone or older, hurt or older))).epoch
    keep = choose(((), (), (), ("left",), SINKS))
    try:
        target = find_target(state, to_epoch)
        verify_restorable(pipeline.store, target, scene.settings)
        planned = rollback.plan_to(pipeline, target, open_sink, keep=keep)
    except Corrupt as error:
        # Without a claim, what was planned with may have been retired meanwhile; nothing was changed.
        now = cast(State, log.read())
        if all(now.find(entry.epoch) for entry in state.live):
            scene.stop_if_damaged(error, actor)
        return
    except InvalidInput:
        return  # It would keep a sink that is not there.
    if planned.done:
        return
    scene.kept |= set(keep)
    with claim_driver(pipeline, actor.name) as driver_of_tool:
        try:
            roll_back(pipeline, driver_of_tool.permit, to_epoch, keep=keep)
        except (InvalidInput, NotFound) as gone:
            if gone.code not in ("checkpoint.not_found", "sink.invalid"):
                raise
        except Corrupt as damage:
            scene.stop_if_damaged(damage, actor)
    if choose((True, False)):
        driver(scene, Program())(actor)  # whoever rolls back starts again


def wait_for_branch(pipeline: Pipeline) -> State | None:
    """Wait until there are some checkpoints, and an older one beside the head; not for ever, or for nobody."""
    log, clock = pipeline.log, cast(SimClock, pipeline.clock)
    wanted = clock.choose(range(2, 9))
    for _ in range(20):
        driven = clock.driven
        if clock.attempts >= wanted or not driven:
            try:
                state = log.read()
            except SlackwaterError:
                state = None
            if state is not None and len(state.branch) > 1:
                return state
            if not driven:
                return None
        clock.pause(4)
    return None


def supervised(body: Body, lives: int) -> Body:
    """Start a process again when it dies, or gives up because the store is away; not one that was told to stop."""

    def again(actor: Actor) -> None:
        for _ in range(lives - 1):
            try:
                return body(actor)
            except (Crashed, Unavailable, SinkFailed):
                actor.away_until = 0
                actor.is_dead = False
                actor.spoilt.clear()
                actor.simulation.pause(actor, actor.simulation.random.randint(1, 2 * TICKS_A_SECOND))
        body(actor)

    return again


def failing_disk(scene: Scene) -> Body:
    """Damage or lose what newer checkpoints need and some older one does not: that one is sound at this moment."""
    simulation, random = scene.simulation, scene.simulation.random

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        for _ in range(random.choice((1, 1, 2))):
            state = wait_for_branch(pipeline)
            if state is None:
                return
            sound = random.choice(state.branch[:-1])
            newer = (scene.needs(entry) for entry in state.branch if entry.epoch > sound.epoch)
            exposed = sorted((set().union(*newer) - scene.needs(sound) - scene.damaged) & simulation.objects.keys())
            for key in random.sample(exposed, min(random.choice((1, 1, 2, 3)), len(exposed))):
                scene.damaged.add(key)
                random.choice((simulation.damage, simulation.damage, simulation.lose))(key)
            actor.stalled_until = simulation.now + random.randint(1, 300)

    return body


def bad_block(scene: Scene) -> Body:
    """Damage the newest record, of some kind or of any, while others are stalled; again, if somebody goes on."""
    simulation, choose = scene.simulation, scene.simulation.random.choice

    def find() -> Record | None:
        key = max((key for key in simulation.objects if key.startswith(LOG)), default="")
        with suppress(Corrupt):
            return (
                records.decode(simulation.objects[key], number=cast(RecordKey, parse_key(key)).number) if key else None
            )
        return None

    def body(actor: Actor) -> None:
        clock = scene.open(actor).clock
        for _ in range(choose((1, 2, 4))):
            wanted = choose((Checkpoint, Checkpoint, Rollback, Rollback, object))
            for _ in range(200):
                record = find()
                if record is not None and record.state.live and isinstance(record.change, wanted):
                    break
                clock.sleep(1)
            else:
                record = find()
            # Of two records in a row, both lost, the first may have removed a label, and the second what had it.
            if record is None or record_key(record.number - 1) in simulation.bad_records:
                continue
            simulation.damage(record_key(record.number))
            simulation.bad_records.add(record_key(record.number))
            simulation.stall("driver", 0.9, 800)
            for number in range(choose((0, 1, 1, 2))):
                name = f"repairer-{record.number}-{number}"
                simulation.spawn(name, repairer(scene), delay=simulation.random.randint(1, 200))
            actor.stalled_until = simulation.now + simulation.random.randint(1, 400)

    return body


def repairer(scene: Scene) -> Body:
    """Repair a damaged newest record: what ``slackwater repair --yes`` does."""

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)

        def open_sink(name: str, output: SinkOutput) -> SimSink:
            return SimSink(scene.simulation, actor, name)

        try:
            prepared = repair.prepare(pipeline, open_sink)
            if prepared is not None:
                repair.carry_out(pipeline, prepared, driver=actor.name)
        except Corrupt as error:
            # What there was to go on from may be retired by the damaged record, and gone.
            if not scene.simulation.bad_records:
                scene.stop_if_damaged(error, actor)
            raise Conflict("stops at the damage", code="head.none_verifies") from None

    return body


def labeller(scene: Scene) -> Body:
    """Make a savepoint; now and then remove one, whoever made it."""
    random = scene.simulation.random

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        clock, log = pipeline.clock, pipeline.log
        for _ in range(20):
            with suppress(SlackwaterError):
                now = log.read()
                if now is not None and now.live:
                    ref = random.choice((labels.LATEST_REF, str(random.choice(now.live).epoch)))
                    savepoint = savepoint_ops.create_label(log, actor.name, ref)
                    break
            clock.sleep(1)
        else:
            return
        state = cast(State, log.state)
        entry = state.find(savepoint.epoch)
        if entry is None:
            raise Violation("label-live: a labelled checkpoint is not live")
        scene.labels[actor.name] = entry.checkpoint_id
        if random.random() < 0.4:
            label = random.choice(state.labels).label
            scene.unlabelled.add(label)
            with suppress(NotFound):
                savepoint_ops.delete_label(log, label)

    return body


def sleeper(scene: Scene) -> Body:
    """Read, sleep, then append on what was read, again and again: the number may have been trimmed away by then."""
    simulation = scene.simulation

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        if wait_for_branch(pipeline) is None:
            return
        for nap in range(3):
            label = f"{actor.name} {nap}"

            def decide(state: State | None, label: str = label) -> Label:
                return Label(label=label, epoch=cast(State, state).epoch)

            actor.stalled_until = simulation.now + simulation.random.randint(50, 400)
            state = pipeline.log.append(decide)
            epoch = next(savepoint.epoch for savepoint in state.labels if savepoint.label == label)
            scene.labels[label] = cast(LiveCheckpoint, state.find(epoch)).checkpoint_id

    return body


def trimmer(scene: Scene) -> Body:
    """Trim at any time, beside whoever else does."""

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        for _ in range(scene.simulation.random.randint(1, 6)):
            pipeline.log.trim()
            actor.stalled_until = scene.simulation.now + scene.simulation.random.randint(1, 150)
            pipeline.clock.sleep(1)

    return body


def forgetter(scene: Scene) -> Body:
    """Forget by rule or by name, beside whoever drives: what ``slackwater forget`` does."""
    random = scene.simulation.random

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        log = pipeline.log
        state = wait_for_branch(pipeline)
        if state is None:
            return
        by_name = forget.by_ref(random.choice((labels.LATEST_REF, str(random.choice(state.live).epoch))))
        last = KeepRules(last=random.choice((1, 2, 3)))
        within = KeepRules(within_ms=random.choice((1, 100_000)))
        choose = random.choice((by_name, forget.by_rules(last), forget.by_rules(within)))
        try:
            if random.random() < 0.2:
                forget.plan_forgetting(pipeline, choose)
            done = forget.forget_chosen(pipeline, choose)
        except NotFound as gone:
            if gone.code != "checkpoint.not_found":
                raise
            return
        now = cast(State, log.state)
        if back := [epoch for epoch in done.forgotten_epochs if now.find(epoch)]:
            raise Violation(f"forgotten: told that {back} are gone, and they are live")

    return body


def reader(scene: Scene) -> Body:
    """Restore by some REF, at any time: what ``slackwater restore`` does."""
    random = scene.simulation.random

    def body(actor: Actor) -> None:
        last = 0
        for _ in range(5):
            pipeline = scene.open(actor)
            state = pipeline.log.read()
            if state is not None and state.epoch < last:
                raise Violation("monotone: the newest epoch went back")
            last = state.epoch if state else 0
            if state is not None and state.live:
                savepoints = [savepoint.label for savepoint in state.labels]
                epoch = str(random.randint(max(1, state.epoch - 4), state.epoch))
                hurt = [str(entry.epoch) for entry in state.live if scene.needs(entry) & scene.damaged]
                some = (savepoints or [epoch], hurt or [epoch])
                ref = random.choice((labels.LATEST_REF, epoch, *map(random.choice, some)))
                with suppress(NotFound, InvalidInput):
                    restore(scene, actor, pipeline, labels.resolve(state, ref))
            actor.stalled_until = scene.simulation.now + random.randint(1, 200)
            pipeline.clock.sleep(1)

    return body


def restore(scene: Scene, actor: Actor, pipeline: Pipeline, entry: LiveCheckpoint) -> None:
    """Restore a checkpoint: all of it and nothing else, or not at all, and then for a reason."""
    actor.spoilt.clear()
    files: dict[str, bytes] = {}
    try:
        manifest = load_manifest(pipeline.store, entry)
        get_artifacts(pipeline.store, manifest, scene.settings, into(files))
    except Corrupt as error:
        state = cast(State, pipeline.log.read())
        if state.find(entry.epoch) and not actor.spoilt and not scene.needs(entry) & scene.damaged:
            raise Violation(f"restorable: live epoch {entry.epoch}: {error}") from None
    else:
        scene.check_restored(manifest, files)


def verifier(scene: Scene) -> Body:
    """Verify all that is live, reading it, at any time: what ``slackwater verify --read-data`` does."""

    def body(actor: Actor) -> None:
        pipeline = scene.open(actor)
        if wait_for_branch(pipeline) is not None:
            verify_all(scene, actor, pipeline)

    return body


def verify_all(scene: Scene, actor: Actor, pipeline: Pipeline) -> None:
    """Every damage to what stays live all the while is reported, and nothing else is."""
    actor.spoilt.clear()
    damaged, state = set(scene.damaged), pipeline.state
    result = verification.verify_checkpoints(pipeline, state.live, read_data=True)
    reported = {finding.key: finding for finding in result.findings if finding.severity == "error"}
    if wrong := sorted(reported.keys() - scene.damaged - scene.simulation.bad_records - actor.spoilt):
        raise Violation(f"false-alarm: nothing is wrong with {wrong[0]}, but: {reported[wrong[0]].message}")
    now = cast(State, pipeline.log.state)
    for entry in state.live:
        if now.find(entry.epoch) is not None:
            # What a damaged manifest names, nobody can tell; and it may have been damaged just before it was read.
            hidden = {manifest_key(entry.checkpoint_id)} & (scene.damaged | actor.spoilt)
            if missed := (hidden or scene.needs(entry)) & damaged - reported.keys():
                raise Violation(f"reported: epoch {entry.epoch} needs {min(missed)}, which is damaged")
