"""Every bit of a small store, one after the other: ``verify --read-data`` finds its flip, and no restore takes it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from slackwater.clock import SystemClock
from slackwater.errors import Corrupt
from slackwater.formats.keys import LATEST, LOG, manifest_key, record_key
from slackwater.formats.manifest import Manifest, SourcePosition, references
from slackwater.formats.state import LiveCheckpoint
from slackwater.ops.savepoint import create_label
from slackwater.ops.verify import Finding, verify_checkpoints
from slackwater.protocol.artifacts import Holdings, get_artifacts
from slackwater.protocol.checkpoint import Checkpointer
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition
from slackwater.protocol.driver import claim_driver
from slackwater.protocol.log import Log
from slackwater.protocol.pipeline import Pipeline
from slackwater.protocol.recovery import recover
from slackwater.protocol.rollback import roll_back
from slackwater.protocol.sinks import Attempt
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.store import Store, open_store
from slackwater.store.checked import Checked
from tests.commands import answer

# So small that a few bytes show all three places: inline, in a batch, in an object.
SETTINGS = Settings(keep_last=3, inline_max_bytes=20, inline_budget_bytes=40, object_min_bytes=64, concurrency=1)
Files = dict[str, bytes]
Changes = Callable[[bytes], Iterator[bytes]]


def content(path: str, size: int) -> CutFile:
    data = random.Random(path).randbytes(size)
    return CutFile(path, data, size)


def cut(n: int) -> Cut:
    """Partition 0 has a snapshot of the version before the last, and changes after it; partition 1 changes alone."""
    large = CutPartition(
        partition=0,
        path="state/0/0",
        version=n + 1,
        unique_id=f"large-{n}",
        snapshot=[content(f"state/0/0/{n - 2}.zip", 40)],
        deltas=[content(f"state/0/0/{version}.changelog", 30) for version in (n - 1, n)],
    )
    small = CutPartition(
        partition=1,
        path="state/0/1",
        version=n + 1,
        unique_id=f"small-{n}",
        snapshot=[],
        deltas=[content(f"state/0/1/{version}.changelog", 25) for version in (n - 1, n)],
    )
    return Cut(
        micro_batch=n,
        watermark_ms=0,
        sources={"0": SourcePosition(source_type="rows", offsets={"row": str(n)}, verbatim=str(n), metadata={})},
        operators=[
            CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=[large, small])
        ],
        files=[content(f"offsets/{n}", 8), content("metadata", 30)],
    )


def files_of(n: int) -> Files:
    made = cut(n)
    files = [*made.files, *(file for op in made.operators for partition in op.partitions for file in partition.files)]
    return {file.path: cast(bytes, file.source) for file in files}


def into(files: Files) -> Callable[[str, Iterator[bytes]], None]:
    return lambda path, parts: files.update({path: b"".join(parts)})


def place_of(store: Store) -> Pipeline:
    clock = SystemClock()
    log = Log(store, clock, SETTINGS)
    return Pipeline(name="orders", url=store.url, store=store, log=log, clock=clock, settings=SETTINGS)


class Driver:
    """One run over the store, which deletes nothing that it retires."""

    def __init__(self, store: Store) -> None:
        self.place = place = place_of(store)
        self.permit = claim_driver(place, "test").permit
        files: Files = {}

        def hydrate(manifest: Manifest | None) -> Holdings:
            return get_artifacts(store, manifest, SETTINGS, into(files)) if manifest else {}

        found = recover(place, self.permit, {}, hydrate=hydrate)
        self._checkpointer = Checkpointer(place, self.permit, {}, holdings=found.hydrated, settlement=found.settlement)

    def step(self, n: int) -> None:
        self._checkpointer.checkpoint(cut(n), Attempt(checkpoint_id=self.place.clock.checkpoint_id(), outputs={}))


def make_store(store: Store) -> None:
    """Epochs 1 (retired), 2 (a savepoint), 3, 4 (undone), 5 (a rollback to 3), 6."""
    driver = Driver(store)
    driver.step(2)
    driver.step(3)
    create_label(driver.place.log, "before-upgrade")
    driver.step(4)
    driver.step(5)
    roll_back(driver.place, driver.permit, 3)
    driver = Driver(store)
    driver.step(5)


# The content of each epoch that is left.
LEFT = {2: 3, 3: 4, 4: 5, 5: 4, 6: 5}


class Bytes:
    """A store's objects, of which some can be changed for a while; None is missing. The checks around it are real."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.sound, self.objects = objects, dict(objects)

    def change(self, changed: Mapping[str, bytes | None]) -> None:
        self.objects = {key: data for key, data in (self.sound | dict(changed)).items() if data is not None}

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(key)
        data = self.objects[key]
        return data[offset : offset + admit(len(data))]

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        return [
            (key, len(data)) for key, data in self.objects.items() if key.startswith(prefix) and key > (after or "")
        ]


class Sound:
    """The store as it was made, and what is known of it."""

    def __init__(self) -> None:
        made = open_store("memory:")
        make_store(made)
        self.bytes = Bytes({listed.key: made.get(listed.key) for listed in made.list("")})
        self.store: Store = Checked("memory:every-bit", cast(Any, self.bytes))
        self.state = self.open().state
        live = {entry: load_manifest(self.store, entry) for entry in self.state.live}
        self.records = sorted(key for key in self.bytes.sound if key.startswith(LOG))
        self.newest = self.records[-1]
        # The live checkpoints that need an object, and those whose manifest it is.
        self.needs = {
            key: [e for e, manifest in live.items() if key in {*references(manifest), manifest_key(e.checkpoint_id)}]
            for key in self.bytes.sound
        }
        self.manifests = {manifest_key(checkpoint_id) for checkpoint_id in self.state.checkpoint_ids}

    def open(self) -> Pipeline:
        place = place_of(self.store)
        assert place.log.read() is not None
        return place

    def find(self, changed: Mapping[str, bytes | None], *, log_only: bool = False) -> list[Finding]:
        """Verify the store with some objects changed; ``log_only``: without a checkpoint, which takes half the time."""
        self.bytes.change(changed)
        try:
            pipeline = self.open()
            entries = [] if log_only else pipeline.state.live
            return verify_checkpoints(pipeline, entries, read_data=True).findings
        finally:
            self.bytes.change({})

    def restore(self, entry: LiveCheckpoint) -> Files:
        files: Files = {}
        manifest = load_manifest(self.store, entry)
        get_artifacts(self.store, manifest, SETTINGS, into(files))
        return files

    def is_error(self, key: str) -> bool:
        """Damage to what a live checkpoint needs, or to history, is an error; to a hint or a rest it is a note."""
        return bool(self.needs[key]) or key.startswith(LOG)


@pytest.fixture(scope="module")
def sound() -> Sound:
    return Sound()


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_the_store_has_one_of_everything_and_is_sound(sound: Sound) -> None:
    assert sound.find({}) == []
    state = sound.state
    assert [entry.epoch for entry in state.live] == list(LEFT)
    assert [entry.epoch for entry in state.live if entry.undone] == [4]
    assert state.live[3].rollback_to == 3 and state.labels[0].epoch == 2 and state.retired[0].epoch == 1
    kinds = {key.rpartition(".")[2] for key in sound.bytes.sound}
    assert kinds == {"json", "lcb", "snap", "checkpoints/_latest"}
    assert b'"inline"' in sound.bytes.sound[manifest_key(state.live[-1].checkpoint_id)]
    assert any(len(needing) > 1 for needing in sound.needs.values())
    for entry in state.live:
        restored = sound.restore(entry)
        # A batch is restored whole, so older files of its folders may come with it.
        assert {path: restored[path] for path in files_of(LEFT[entry.epoch])} == files_of(LEFT[entry.epoch])


# --- found


def check_found(sound: Sound, changed: Mapping[str, bytes | None], what: str, *, log_only: bool = False) -> None:
    findings = sound.find(changed, log_only=log_only)
    for key in changed:
        named = {finding.severity for finding in findings if finding.key == key}
        assert named, f"{what} of {key} is not found"
        assert ("error" in named) == sound.is_error(key), f"{what} of {key} is {named}"


def flips(data: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(data)):
        yield flipped(data, bit)


def cuts(data: bytes) -> Iterator[bytes]:
    for size in range(len(data)):
        yield data[:size]


CHANGES = pytest.mark.parametrize("changes", [flips, cuts], ids=["flip", "cut"])


@CHANGES
@pytest.mark.parametrize("group", ["manifests", "records", "data"])
def test_every_change_of_every_object_is_found(sound: Sound, group: str, changes: Changes) -> None:
    """In each round one change of every object of a group: their digests do not depend on one another.

    Without its manifest it is not known what a checkpoint needs, so manifests have rounds of their own.
    """
    keys = {
        "manifests": sound.manifests,
        "records": {key for key in sound.bytes.sound if key.startswith(LOG) and key != sound.newest},
        "data": {key for key in sound.bytes.sound if not key.startswith(LOG) and key not in sound.manifests},
    }[group]
    changing = {key: changes(sound.bytes.sound[key]) for key in keys}
    for number in itertools.count():
        changed = {key: data for key, several in changing.items() if (data := next(several, None)) is not None}
        if not changed:
            break
        check_found(sound, changed, f"{changes.__name__} {number}", log_only=group == "records")
    assert number == max(len(list(changes(sound.bytes.sound[key]))) for key in keys)


@CHANGES
def test_every_change_of_the_newest_record_is_an_error_before_anything_else(sound: Sound, changes: Changes) -> None:
    for data in changes(sound.bytes.sound[sound.newest]):
        with pytest.raises(Corrupt, match=f"log record {len(sound.records)}"):
            sound.find({sound.newest: data})


def test_one_change_alone_is_found_as_well_as_many_at_once(sound: Sound) -> None:
    chosen = random.Random(7)
    for key in sound.bytes.sound.keys() - {sound.newest}:
        data = sound.bytes.sound[key]
        for bit in chosen.sample(range(8 * len(data)), 20):
            check_found(sound, {key: flipped(data, bit)}, f"bit {bit}")


def test_every_missing_object_is_found_unless_nothing_needs_it(sound: Sound) -> None:
    for key in sound.bytes.sound:
        findings = sound.find({key: None})
        named = {(finding.severity, finding.code, finding.key) for finding in findings}
        if key == sound.newest:
            assert named == {("error", "log.records_lost", LATEST)}, "the pointer knows of a newer checkpoint"
        elif key.startswith(LOG):
            following = record_key(sound.records.index(key) + 2)
            assert named == {("error", "log.inconsistent", following)}
        elif key == LATEST:
            assert named == {("note", "latest.stale", LATEST)}
        elif sound.needs[key]:
            assert [(severity, where) for severity, _, where in named] == [("error", key)]
        else:
            assert named == set(), "it is left of a retired checkpoint, and was to be deleted"


# --- never restored


@CHANGES
def test_no_change_is_ever_restored(sound: Sound, changes: Changes) -> None:
    """All that need an object are restored with other bytes in its place: the right files, or damage that is told."""
    good = {entry.epoch: sound.restore(entry) for entry in sound.state.live}
    refused = 0
    for key, needing in sound.needs.items():
        for number, data in enumerate(changes(sound.bytes.sound[key]) if needing else []):
            sound.bytes.change({key: data})
            for entry in needing:
                try:
                    restored = sound.restore(entry)
                except Corrupt:
                    refused += 1
                else:
                    assert restored == good[entry.epoch], f"{changes.__name__} {number} of {key} was restored"
    sound.bytes.change({})
    assert refused > 10_000


def test_nothing_is_restored_without_an_object_that_it_needs(sound: Sound) -> None:
    for key, needing in sound.needs.items():
        sound.bytes.change({key: None})
        for entry in needing:
            with pytest.raises(Corrupt):
                sound.restore(entry)
    sound.bytes.change({})


# --- as a user meets it


def test_the_command_line_exits_with_13(sound: Sound, tmp_path: Path) -> None:
    pipeline = tmp_path / "store" / "orders"
    for key, data in sound.bytes.sound.items():
        (pipeline / key).parent.mkdir(parents=True, exist_ok=True)
        (pipeline / key).write_bytes(data)
    assert answer("verify", pipeline, "--read-data")["sound"]
    chosen = random.Random(11)
    for key in chosen.sample(sorted(key for key in sound.bytes.sound if sound.is_error(key)), 6):
        data = sound.bytes.sound[key]
        (pipeline / key).write_bytes(flipped(data, chosen.randrange(8 * len(data))))
        told = answer("verify", pipeline, "--read-data", code=13)
        if key == sound.newest:
            assert told["error"]["code"] == "log.corrupt"
        else:
            assert [finding["key"] for finding in told["findings"] if finding["severity"] == "error"] == [key]
        (pipeline / key).write_bytes(data)
    (pipeline / LATEST).write_bytes(flipped(sound.bytes.sound[LATEST], 9))
    told = answer("verify", pipeline, "--read-data")
    assert [(f["severity"], f["key"]) for f in told["findings"]] == [("note", LATEST)]
