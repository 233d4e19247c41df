"""A keyed pipeline against a dictionary: whatever crashes, moves or is rolled back, it holds what the model says."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import slackwater as sw
from slackwater import failpoints
from slackwater.cli import forget
from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from tests.keyed_pipelines import ask, restore

KEYS = st.integers(0, 30).map(lambda number: b"%d" % number)
VALUES = st.binary(max_size=200)
CHANGES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=20)
BEFORE = ["keyed.lineage.after", "keyed.cut.after", "artifacts.after", "manifest.after"]
AFTER = ["append.after", "latest.after"]
RETAINED = 3

Content = dict[bytes, bytes]


class KeyedModel(RuleBasedStateMachine):
    """``content`` and ``row`` are what the state must have, ``saved`` what each epoch that counts must."""

    @initialize(incremental=st.sampled_from([True, True, False]), truncate=st.booleans())
    def begin(self, incremental: bool, truncate: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="keyed-model-"))
        self.config = CheckpointConfig(
            self.root / "counts", max_retained=RETAINED, incremental=incremental, truncate_wal=truncate
        )
        self.content, self.row, self.epoch = Content(), 0, 0
        self.saved: dict[int, tuple[Content, int]] = {}
        self.branch: list[int] = []
        self.counts: KeyedCheckpoints = open_keyed(self.config)

    def teardown(self) -> None:
        if hasattr(self, "counts"):
            self.counts.close()
            if self.epoch:
                pipeline = read_pipeline(str(self.root / "counts"))
                assert verify(pipeline.url, read_data=True).sound
            shutil.rmtree(self.root)

    @rule(changes=CHANGES)
    def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        self.row += 1
        self.counts.write(changes, offsets={"rows": {"row": str(self.row)}}, watermark_ms=self.row)
        for key, value in changes:
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.counts.put(key, value)
        self.content[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.counts.delete(key)
        self.content.pop(key, None)

    @rule(state=st.none() | st.binary(max_size=50))
    def checkpoint(self, state: bytes | None) -> None:
        made = self.counts.create_checkpoint(state)
        self.count()
        assert (made.epoch, made.key_count) == (self.epoch, len(self.content))
        assert state is None or sw.outside_state(self.counts.url, made.epoch) == state
        assert not self.counts.should_checkpoint()

    @rule(point=st.sampled_from(BEFORE + AFTER))
    def die_while_it_checkpoints(self, point: str) -> None:
        failpoints._armed, failpoints._hits = {point: (1, "raise")}, {}
        try:
            with pytest.raises(sw.SlackwaterError, match="was armed"):
                self.counts.create_checkpoint()
        finally:
            failpoints._armed = {}
        if point in AFTER:
            self.count()
        self.die()

    @rule()
    def reopen(self) -> None:
        self.counts.close()
        self.counts = open_keyed(self.config)

    @rule()
    def crash(self) -> None:
        """Go on with the files as they are while it is open, as after a crash of the machine."""
        wait_until_idle(self.counts)
        shutil.copytree(self.config.folder, self.root / "crashed")
        self.counts._local.close()
        shutil.rmtree(self.config.folder)
        (self.root / "crashed").rename(self.config.folder)
        self.counts = open_keyed(self.config)

    @precondition(lambda self: self.epoch > 0)
    @rule()
    def move_elsewhere(self) -> None:
        """Lose the local folder: the newest checkpoint is what there is."""
        self.counts.close()
        shutil.rmtree(self.config.folder)
        self.counts = open_keyed(self.config)
        content, self.row = self.saved[self.epoch]
        self.content = dict(content)

    @precondition(lambda self: len(self.branch) > 1)
    @rule(back=st.integers(1, RETAINED - 1), released=st.booleans())
    def roll_back(self, back: int, released: bool) -> None:
        target = self.branch[-1 - min(back, len(self.branch) - 1)]
        if released:
            self.counts.close()
        else:
            self.counts.create_checkpoint()  # so that the one before it is settled
            self.count()
            if target not in self.branch:
                return
            self.counts._local.close()
        sw.rollback(str(self.root / "counts"), str(target))
        if read_pipeline(str(self.root / "counts")).state.epoch == self.epoch:
            self.counts = open_keyed(self.config)
            return  # the head has that content already, and what was written since goes on
        self.content, self.row = dict(self.saved[target][0]), self.saved[target][1]
        # A rollback retires nothing, and does not count as one of the newest until the next checkpoint does.
        kept = self.branch[: self.branch.index(target) + 1]
        self.epoch += 1
        self.saved[self.epoch] = dict(self.content), self.row
        self.branch = [*kept, self.epoch]
        self.counts = open_keyed(self.config)

    @precondition(lambda self: self.branch)
    @rule(data=st.data())
    def restore_older(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.branch))
        folder = restore(self.counts.url, epoch, self.root / "restored")
        restored = KeyedState(folder, read_only=True)
        assert (dict(restored.scan()), row_of(restored)) == self.saved[epoch]
        restored.close()
        shutil.rmtree(self.root / "restored")

    @precondition(lambda self: len(self.branch) > 1)
    @rule(data=st.data())
    def forget_one(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.branch[:-1]))
        ask(forget.command, self.counts.url, epoch)
        self.branch.remove(epoch)

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        if not hasattr(self, "counts"):
            return
        assert dict(self.counts.scan()) == self.content
        assert (self.counts.key_count, row_of(self.counts), self.counts.epoch) == (
            len(self.content), self.row, self.epoch,
        )  # fmt: skip
        assert [made.epoch for made in sw.keyed_checkpoints(self.counts.url) if not made.undone] == self.branch[::-1]

    def count(self) -> None:
        self.epoch += 1
        self.saved[self.epoch] = dict(self.content), self.row
        self.branch = [*self.branch, self.epoch][-RETAINED:]

    def die(self) -> None:
        self.counts._local.close()
        self.counts = open_keyed(self.config)


def row_of(state: Any) -> int:
    return int(state.offsets.get("rows", {}).get("row", 0))


def wait_until_idle(counts: KeyedCheckpoints) -> None:
    """Wait until RocksDB moves no files about: a crash takes all of them at one moment, a copy does not."""
    database: Any = counts._state._rocks._database
    names = ["num-running-compactions", "compaction-pending", "num-running-flushes", "mem-table-flush-pending"]
    while any(database.property_int_value(f"rocksdb.{name}") for name in names):
        time.sleep(0.01)
    time.sleep(0.02)


# Not shrunk: a run takes seconds, and shrinking would take minutes.
KeyedModel.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.generate]
)
TestKeyedModel = KeyedModel.TestCase
