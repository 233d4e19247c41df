"""The simulation's actors: drivers, tools that roll back or forget, labellers, readers, a disk that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn, cast

from ... import fallback, forget, recovery, retention, rewind
from ...artifacts import Holdings
from ...checkpointer import Attempt, Checkpointer, release
from ...errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError
from ...formats.changes import Label, Unlabel
from ...formats.layout import manifest_key
from ...formats.manifest import Manifest, SinkOutput
from ...formats.plans import KeepRules
from ...formats.states import State, find_target
from ...log import Log
from ...settings import Settings
from .memory import Memory
from .scheduler import Actor, SimStore, Simulation, SimWorld, Violation
from .sink import SimSink

TOTAL = 8
SINKS = ("left", "right")

Body = Callable[[Actor], None]
Tools = tuple[SimStore, SimWorld, Log]


class Scene:
    """What the actors of one run share, beside the simulation: what was said to them, and done to the store."""

    def __init__(self, simulation: Simulation) -> None:
        choose = simulation.random.choice
        self.simulation = simulation
        self.settings = Settings(
            keep_last=choose((1, 2, 4, 4)),
            inline_max_bytes=choose((0, 4096)),
            inline_budget_bytes=choose((0, 64, 4096)),
            object_min_bytes=choose((1, 60, 10**6)),
            concurrency=1,
        )
        self.labels: dict[str, str] = {}
        self.kept: set[str] = set()
        self.damaged: set[str] = set()

    def tools(self, actor: Actor) -> Tools:
        store, world = SimStore(self.simulation, actor), SimWorld(self.simulation, actor)
        return store, world, Log(store, world, self.settings)

    def stop_if_damaged(self, error: Corrupt) -> NoReturn:
        """A user has to decide here; the next actor may be one that has."""
        if not self.damaged:
            raise Violation(f"restorable: nothing was damaged, and still: {error}") from None
        raise Conflict("stops at the damage", code="head.damaged") from None


class Program(NamedTuple):
    """What a driver was started with."""

    sinks: tuple[str, ...] = SINKS
    drop: tuple[str, ...] = ()
    fallback: bool = False


def driver(scene: Scene, program: Program) -> Body:
    """Recover, go on to the last row, end: what ``pipeline/start.py`` and the coordinator do, without Spark."""
    simulation, settings = scene.simulation, scene.settings

    def body(actor: Actor) -> None:
        store, world, log = scene.tools(actor)
        sinks = {name: SimSink(simulation, actor, name) for name in program.sinks}
        for name in program.drop:
            simulation.sinks[name].given_up = True
        claimed = recovery.claim(store, log, world, pipeline="p", driver=actor.name, sinks=sinks)
        head, (memory, holdings) = recover(scene, program, (store, world, log), sinks)
        check_undone(scene, log, sinks)
        refs = retention.References(store, settings)
        retention.sweep(store, log, claimed, sinks, refs)
        check_swept(cast(State, log.state), claimed.survey, sinks)
        checkpointer = Checkpointer(
            store=store,
            log=log,
            world=world,
            settings=settings,
            pipeline="p",
            pipeline_hash="0" * 64,
            query=None,
            sinks=sinks,
            holdings=holdings,
            settlement=head.settlement if head else None,
        )

        def delete_retired() -> None:
            checkpointer.note_deleted(retention.delete_retired(store, log, checkpointer.generation, refs))

        delete_retired()
        while memory.position < TOTAL:
            size = simulation.random.choice((0, 1, 1, 2))
            rows = list(range(memory.position, min(TOTAL, memory.position + size)))
            checkpoint_id = world.checkpoint_id()
            outputs = {
                name: SinkOutput(
                    kind=sink.kind,
                    address=sink.address,
                    can_undo=sink.can_undo,
                    descriptors=[sink.stage(rows, checkpoint_id)],
                )
                for name, sink in sinks.items()
            }
            memory.advance(rows, world)
            checkpointer.checkpoint(memory.cut(), Attempt(checkpoint_id=checkpoint_id, outputs=outputs))
            delete_retired()
        checkpointer.release()

    return body


def recover(
    scene: Scene, program: Program, tools: Tools, sinks: dict[str, SimSink]
) -> tuple[recovery.Head | None, tuple[Memory, Holdings]]:
    store, world, log = tools

    def hydrate(manifest: Manifest) -> tuple[Memory, Holdings]:
        files = dict[str, bytes]()
        holdings = recovery.restore(store, manifest, scene.settings, files.__setitem__)
        return Memory.restored(files, manifest), holdings

    def fall_back(damage: Corrupt, target: Manifest) -> None:
        if not scene.damaged:
            scene.stop_if_damaged(damage)

    try:
        return fallback.recover(
            store,
            log,
            world,
            scene.settings,
            sinks,
            hydrate=hydrate,
            dropped=program.drop,
            fallback=fall_back if program.fallback else None,
        ) or (None, (Memory(), {}))
    except Corrupt as damage:
        if damage.code != "head.damaged":
            raise Violation(f"verified: rolled back to a checkpoint that is damaged: {damage}") from None
        scene.stop_if_damaged(damage)


def check_undone(scene: Scene, log: Log, sinks: dict[str, SimSink]) -> None:
    """Once a driver has driven the head, nothing that was undone is visible, now or ever."""
    undone = {entry.epoch for entry in cast(State, log.state).live if entry.undone}
    for name, sink in sinks.items():
        kept = name in scene.kept or not sink.can_undo or sink.memory.given_up
        if not kept and (seen := undone & {epoch for epoch, _ in sink.memory.committed}):
            raise Violation(f"undone: the sink {name} shows rows of {sorted(seen)} after the undo")


def check_swept(state: State, survey: recovery.Survey, sinks: dict[str, SimSink]) -> None:
    """Once a driver has swept, only what can still be committed is staged of what it had found."""
    wanted = {state.head.checkpoint_id} if state.head else set()
    for name, attempts in survey.attempts.items():
        if left := (set(attempts) & sinks[name].memory.staged.keys()) - wanted:
            raise Violation(f"swept: the sink {name} still holds what was staged as {sorted(left)}")


def roller(scene: Scene) -> Body:
    """Roll back to some epoch at some time: what ``pipeline/rollback.py`` does."""
    choose = scene.simulation.random.choice

    def body(actor: Actor) -> None:
        store, world, log = scene.tools(actor)

        def open_sink(name: str, output: SinkOutput) -> SimSink:
            sink = SimSink(scene.simulation, actor, name)
            sink.bind("p", name, cast(State, log.state).uid)
            return sink

        state = wait_for_branch(log, world)
        if state is None:
            return
        undone = [entry for entry in state.live if entry.undone]
        to_epoch = choose(choose((state.branch[:-1], state.live, undone or state.live))).epoch
        keep = choose(((), (), (), ("left",), SINKS))
        try:
            rewind.verify_restorable(store, find_target(state, to_epoch), scene.settings)
            planned = rewind.plan_rollback(store, state, to_epoch, open_sink, keep=keep)
        except Corrupt as error:
            # Without a claim, what was planned with may have been retired meanwhile; nothing was changed.
            now = cast(State, log.read())
            if all(now.find(entry.epoch) for entry in state.live):
                scene.stop_if_damaged(error)
            return
        except InvalidInput:
            return  # It would keep a sink that is not there.
        if planned.done:
            return
        scene.kept |= set(keep)
        state = recovery.claim(store, log, world, pipeline="p", driver=actor.name, sinks={}).state
        try:
            rewind.roll_back(store, log, world, to_epoch, keep=keep)
        except (InvalidInput, NotFound) as gone:
            if gone.code not in ("checkpoint.not_found", "sink.unknown"):
                raise
        except Corrupt as damage:
            scene.stop_if_damaged(damage)
        release(log, state.generation)

    return body


def wait_for_branch(log: Log, world: SimWorld) -> State | None:
    """Wait until there is an older checkpoint beside the head; not for ever."""
    for _ in range(20):
        try:
            state = log.read()
        except SlackwaterError:
            state = None
        if state is not None and len(state.branch) > 1:
            return state
        world.sleep(1)
    return None


def failing_disk(scene: Scene) -> Body:
    """Damage something that newer checkpoints need and some older one does not: that one is sound at this moment."""
    choose = scene.simulation.random.choice

    def body(actor: Actor) -> None:
        store, world, log = scene.tools(actor)
        state = wait_for_branch(log, world)
        if state is None:
            return
        sound = choose(state.branch[:-1])
        refs = retention.References(store, scene.settings)
        newer = [entry for entry in state.branch if entry.epoch > sound.epoch]
        try:
            needed = {manifest_key(entry.checkpoint_id) for entry in newer}.union(*(refs.of(entry) for entry in newer))
            key = choose(sorted(needed - refs.of(sound)))
        except Corrupt:
            return  # retired meanwhile
        if key in scene.simulation.objects:
            scene.simulation.damage(key)
            scene.damaged.add(key)

    return body


def labeller(scene: Scene) -> Body:
    simulation, told = scene.simulation, scene.labels

    def body(actor: Actor) -> None:
        _, world, log = scene.tools(actor)

        def decide(state: State | None) -> Label:
            if state is None or not state.live:
                raise NotFound("nothing to label yet", code="checkpoint.not_found")
            return Label(label="kept", epoch=simulation.random.choice(state.live).epoch)

        for _ in range(20):
            try:
                state = log.append(decide)
                break
            except SlackwaterError:
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


def forgetter(scene: Scene) -> Body:
    """Forget by rule or by name, beside whoever drives: what ``slackwater forget`` does."""
    random = scene.simulation.random

    def body(actor: Actor) -> None:
        store, world, log = scene.tools(actor)
        state = wait_for_branch(log, world)
        if state is None:
            return
        by_name = forget.by_ref(str(random.choice(state.live).epoch))
        last = KeepRules(last=random.choice((1, 2, 3)))
        within = KeepRules(within_ms=random.choice((1, 100_000)))
        choose = random.choice((by_name, forget.by_rules(last), forget.by_rules(within)))
        try:
            if random.random() < 0.2:
                forget.plan(store, log, scene.settings, choose)
            done = forget.forget(store, log, scene.settings, choose)
        except NotFound as gone:
            if gone.code != "checkpoint.not_found":
                raise
            return
        now = cast(State, log.state)
        if back := [epoch for epoch in done.forgotten_epochs if now.find(epoch)]:
            raise Violation(f"forgotten: told that {back} are gone, and they are live")

    return body


def reader(scene: Scene) -> Body:
    def body(actor: Actor) -> None:
        last = 0
        for _ in range(5):
            _, world, log = scene.tools(actor)
            state = log.read()
            if state is not None and state.epoch < last:
                raise Violation("monotone: the newest epoch went back")
            last = state.epoch if state else 0
            world.sleep(1)

    return body
