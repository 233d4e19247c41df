"""A small pipeline in a store, made by the real code from a hand-made working directory, without Spark."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slackwater import recovery
from slackwater.checkpointer import Attempt, Checkpointer
from slackwater.formats.layout import format_name
from slackwater.formats.manifest import SinkOutput
from slackwater.log import Log
from slackwater.retention import References, delete_retired
from slackwater.settings import Settings
from slackwater.spark.capture import capture
from slackwater.store import open_store
from slackwater.world import RealWorld

PARTITIONS = 2
START_MS = 1_794_736_800_000  # 2026-11-15T10:00:00Z
STEP_MS = 60_000
# So small that a few files show all three placements: inline, in a batch, in an object.
SETTINGS = Settings(inline_max_bytes=100, inline_budget_bytes=400, object_min_bytes=4096)


class SteppedWorld(RealWorld):
    """A real world but for its clock, which moves on only when it is told to."""

    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms


class FolderSink:
    """A sink of plain files: ``staged/{attempt}``, renamed to ``{epoch}`` by the commit."""

    def __init__(self, root: Path) -> None:
        self.root, self._staged = root, root / "staged"
        self._staged.mkdir(parents=True)

    def stage(self, attempt: str, text: str) -> SinkOutput:
        (self._staged / attempt).write_text(text)
        descriptor = {"attempt": attempt, "files": [attempt]}
        return SinkOutput(kind="folder", address=str(self.root), can_undo=False, descriptors=[descriptor])

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        owner = self.root / "staged" / "owner"
        owner.write_text(f"{pipeline}/{sink}/{uid}")

    def epoch(self) -> int:
        return max((int(path.name) for path in self.root.iterdir() if path.name.isdecimal()), default=0)

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        if epoch > self.epoch():
            for descriptor in descriptors:
                (self._staged / descriptor["attempt"]).rename(self.root / str(epoch))

    def staged(self) -> list[str]:
        return [path.name for path in self._staged.iterdir() if path.name != "owner"]

    def discard(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            (self._staged / attempt).unlink(missing_ok=True)


def make_pipeline(
    root: Path, epochs: int, *, name: str = "orders", keep_last: int = 10, state_bytes: int = 6000, release: bool = True
) -> Path:
    """Make ``{root}/store/{name}`` with one checkpoint a minute, the first at ``START_MS``; return its folder.

    Partition 0 adds ``state_bytes`` with each epoch and partition 1 a tenth of it.
    """
    world, pipeline = SteppedWorld(), root / "store" / format_name(name)
    settings = Settings(
        keep_last=keep_last,
        inline_max_bytes=SETTINGS.inline_max_bytes,
        inline_budget_bytes=SETTINGS.inline_budget_bytes,
        object_min_bytes=SETTINGS.object_min_bytes,
    )
    store = open_store(str(pipeline), settings)
    log = Log(store, world, settings)
    sink = FolderSink(root / "lake" / format_name(name))
    sinks = {"totals": sink}
    claimed = recovery.claim(store, log, world, pipeline=name, driver="test:1", sinks=sinks)
    checkpointer = Checkpointer(
        store=store,
        log=log,
        world=world,
        settings=settings,
        pipeline=name,
        pipeline_hash=hashlib.sha256(name.encode()).hexdigest(),
        sinks=sinks,
        holdings={},
        settlement=claimed.settlement,
    )
    references = References(store, settings)
    work = SparkDirectory(root / "work" / format_name(name))
    for micro_batch in range(epochs):
        world.at_ms = START_MS + micro_batch * STEP_MS
        work.commit(micro_batch, [state_bytes, state_bytes // 10])
        checkpoint_id = world.checkpoint_id()
        attempt = Attempt(
            checkpoint_id=checkpoint_id, outputs={"totals": sink.stage(checkpoint_id, f"rows of {micro_batch}\n")}
        )
        checkpointer.checkpoint(capture(work.root, micro_batch, ["rate"]), attempt)
        checkpointer.note_deleted(delete_retired(store, checkpointer.state, references))
    if release:
        checkpointer.release()
    return pipeline


class SparkDirectory:
    """A working directory as Spark 4.3 leaves it: one aggregation on RocksDB, format 2, changelogs only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lineage: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}]
        operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
        self._write("state/0/_metadata/metadata", f"v1\n{json.dumps(operator)}")

    def commit(self, micro_batch: int, sizes: list[int]) -> None:
        """Add one micro-batch that changes ``sizes[p]`` bytes of each partition p."""
        conf = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
        offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
        self._write(f"offsets/{micro_batch}", f"v1\n{json.dumps(offsets)}\n{micro_batch * 100}")
        for partition, lineage in enumerate(self._lineage):
            newest = {"version": micro_batch + 1, "checkpointUniqueId": str(uuid.uuid4())}
            data = _write_utf(b"v3") + _write_utf(json.dumps(lineage).encode()) + _noise(newest, sizes[partition])
            # One block of lz4-java, kept as it is: magic, method with size class, sizes, checksum.
            block = struct.pack("<8sBiiI", b"LZ4Block", 0x10 | 0x0F, len(data), len(data), 0) + data
            name = f"{newest['version']}_{newest['checkpointUniqueId']}.changelog"
            self._write(f"state/0/{partition}/{name}", block)
            lineage.append(newest)
        ids = {"0": [[lineage[-1]["checkpointUniqueId"]] for lineage in self._lineage]}
        commit = {"nextBatchWatermarkMs": 1000 * micro_batch, "stateUniqueIds": ids}
        self._write(f"commits/{micro_batch}", f"v2\n{json.dumps(commit)}")

    def _write(self, path: str, data: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)


def _write_utf(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def _noise(seed: dict[str, Any], size: int) -> bytes:
    """Bytes that do not compress."""
    return hashlib.shake_128(json.dumps(seed).encode()).digest(size)
