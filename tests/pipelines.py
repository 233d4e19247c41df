"""A small pipeline in a store, made by the real code from a hand-made working directory, without Spark."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from slackwater.clock import SystemClock
from slackwater.formats.keys import format_name
from slackwater.formats.manifest import Manifest, SinkOutput
from slackwater.protocol.artifacts import Holdings
from slackwater.protocol.driver import Claimed, open_driver
from slackwater.protocol.pipeline import locate
from slackwater.protocol.sinks import Attempt
from slackwater.settings import Settings
from slackwater.spark.capture import capture
from slackwater.spark.hydrate import hydrate

PARTITIONS = 2
START_MS = 1_794_736_800_000  # 2026-11-15T10:00:00Z
STEP_MS = 60_000
# So small that a few files show all three placements: inline, in a batch, in an object.
SETTINGS = Settings(inline_max_bytes=100, inline_budget_bytes=400, object_min_bytes=4096)


class SteppedClock(SystemClock):
    """The real clock, but its time moves on only when it is told to."""

    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms


class FolderSink:
    """A sink of plain files: ``staged/{attempt}``, and ``rows.json``, replaced in one step by commit and undo."""

    kind, can_undo = "folder", True

    def __init__(self, root: Path) -> None:
        self.root, self.address, self._staged = root, str(root), root / "staged"
        self._staged.mkdir(parents=True, exist_ok=True)

    def stage(self, attempt: str, text: str) -> SinkOutput:
        (self._staged / attempt).write_text(text)
        descriptor = {"attempt": attempt, "files": [attempt]}
        return SinkOutput(kind=self.kind, address=self.address, can_undo=True, descriptors=[descriptor])

    def bind(self, pipeline: str, sink: str, uid: str) -> None:
        (self.root / "owner").write_text(f"{pipeline}/{sink}/{uid}")

    def _read(self) -> tuple[int, list[tuple[int, str]]]:
        try:
            epoch, rows = json.loads((self.root / "rows.json").read_text())
        except FileNotFoundError:
            return 0, []
        return epoch, [(of, text) for of, text in rows]

    def _write(self, epoch: int, rows: list[tuple[int, str]]) -> None:
        (self.root / "new.json").write_text(json.dumps([epoch, rows]))
        (self.root / "new.json").replace(self.root / "rows.json")

    def rows(self) -> list[str]:
        return [text for _, text in self._read()[1]]

    def epoch(self) -> int:
        return self._read()[0]

    def commit(self, descriptors: list[dict[str, Any]], epoch: int) -> None:
        newest, rows = self._read()
        if epoch > newest:
            staged = [self._staged / descriptor["attempt"] for descriptor in descriptors]
            self._write(epoch, [*rows, *((epoch, path.read_text()) for path in staged)])
            for path in staged:
                path.unlink()

    def undo(self, to_epoch: int, epoch: int) -> None:
        newest, rows = self._read()
        if epoch > newest:
            self._write(epoch, [(of, text) for of, text in rows if of <= to_epoch])

    def keep(self, epoch: int) -> None:
        newest, rows = self._read()
        self._write(max(epoch, newest), rows)

    def plan_undo(self, to_epoch: int) -> str:
        return f"{sum(of > to_epoch for of, _ in self._read()[1])} rows"

    def staged(self) -> list[str]:
        return [path.name for path in self._staged.iterdir()]

    def discard(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            (self._staged / attempt).unlink(missing_ok=True)


class Driver:
    """One run over a pipeline in ``{root}/store/{name}``, through the real code, with hand-made micro-batches.

    Micro-batch m stages the row "rows of m", so a sink that got each once, in order, holds just those.
    """

    def __init__(
        self,
        root: Path,
        *,
        name: str = "orders",
        keep_last: int = 10,
        sinks: Iterable[str] = ("totals",),
        dropped: Collection[str] = (),
        fallback: bool = False,
    ) -> None:
        self.settings = msgspec.structs.replace(SETTINGS, keep_last=keep_last)
        self.pipeline, self.clock = root / "store" / format_name(name), SteppedClock()
        self.sinks = {sink: self.sink_at(root, name, sink) for sink in sinks}
        self.place = locate(str(self.pipeline), self.settings, clock=self.clock)
        self.store, self.log = self.place.store, self.place.log

        def hydrate_into(manifest: Manifest | None, claimed: Claimed) -> tuple[Path, Holdings]:
            first = claimed.permit.generation == 1
            folder = root / "work" / (format_name(name) + ("" if first else f"-{claimed.permit.generation}"))
            return folder, hydrate(self.store, manifest, folder, self.settings) if manifest else {}

        self.driver, folder = open_driver(
            self.place,
            "test:1",
            hydrate=hydrate_into,
            sinks=self.sinks,
            dropped=dropped,
            fallback=(lambda damage, target: None) if fallback else None,
            pipeline_hash=hashlib.sha256(name.encode()).hexdigest(),
        )
        self.micro_batch = self.driver.head.micro_batch if self.driver.head else -1
        self.work = SparkDirectory(folder, self.micro_batch)

    @staticmethod
    def sink_at(root: Path, name: str = "orders", sink: str = "totals") -> FolderSink:
        return FolderSink(root / "lake" / format_name(name) / sink)

    def step(self, state_bytes: int = 6000) -> None:
        """Run one micro-batch: partition 0 adds ``state_bytes``, partition 1 a tenth of it; each takes a minute."""
        self.micro_batch += 1
        self.clock.at_ms = START_MS + self.micro_batch * STEP_MS
        self.work.commit(self.micro_batch, [state_bytes, state_bytes // 10])
        attempt = self.clock.checkpoint_id()
        outputs = {name: sink.stage(attempt, f"rows of {self.micro_batch}") for name, sink in self.sinks.items()}
        cut = capture(self.work.root, self.micro_batch, ["rate"])
        self.driver.checkpoint(cut, Attempt(checkpoint_id=attempt, outputs=outputs))

    def release(self) -> None:
        """End this run on record."""
        if hindrance := self.driver.end():
            raise hindrance


def make_pipeline(
    root: Path, epochs: int, *, name: str = "orders", keep_last: int = 10, state_bytes: int = 6000, release: bool = True
) -> Path:
    """Make ``{root}/store/{name}`` with one checkpoint a minute, the first at ``START_MS``; return its folder."""
    driver = Driver(root, name=name, keep_last=keep_last)
    for _ in range(epochs):
        driver.step(state_bytes)
    if release:
        driver.release()
    return driver.pipeline


class SparkDirectory:
    """A working directory as Spark 4.3 leaves it: one aggregation on RocksDB, format 2, changelogs only."""

    def __init__(self, root: Path, micro_batch: int = -1) -> None:
        """Begin a fresh directory; or, after ``micro_batch``, go on in one that was hydrated."""
        self.root = root
        self._lineage: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
        if micro_batch >= 0:
            for partition in capture(root, micro_batch).operators[0].partitions:
                names = [file.path.rpartition("/")[2].removesuffix(".changelog") for file in partition.deltas]
                self._lineage[partition.partition] = [
                    {"version": int(version), "checkpointUniqueId": unique_id}
                    for version, _, unique_id in (name.partition("_") for name in names)
                ]
            return
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


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
