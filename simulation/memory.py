"""The simulated operator state: what a driver keeps between its micro-batches, as Spark's working directory has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from simulation.scheduler import SimClock, Violation
from slackwater.formats.manifest import Manifest, SourcePosition
from slackwater.protocol.artifacts import Write
from slackwater.protocol.cut import Cut, CutFile, CutOperator, CutPartition

PARTITIONS = 2
TABLE = "prices"
TABLE_KEYS = 2


def table_at(position: int) -> list[int]:
    """Compute the table after so many changes of its feed: change n adds n + 1 to one key, so each counts once."""
    return [sum(range(key + 1, position + 1, TABLE_KEYS)) for key in range(TABLE_KEYS)]


def into(files: dict[str, bytes]) -> Write:
    """Keep what is restored here."""

    def write(path: str, parts: Iterator[bytes]) -> None:
        files[path] = b"".join(parts)

    return write


class Memory:
    """Per partition a chain of immutable files; the rows that they hold are those read so far."""

    def __init__(self) -> None:
        self.position = 0
        self.micro_batch = -1
        self.files: dict[str, bytes] = {}
        self.ids: list[str | None] = [None] * PARTITIONS
        # A reference table, and how many changes of its feed it has.
        self.table, self.table_position = table_at(0), 0

    @classmethod
    def restored(cls, files: dict[str, bytes], manifest: Manifest) -> Memory:
        memory = cls()
        memory.files = {path: data for path, data in files.items() if path.startswith("state/")}
        memory.micro_batch = manifest.micro_batch
        offsets = manifest.source_offsets["0"].offsets
        memory.position = int(offsets.get("row") or offsets["position"])
        memory.ids = [p.unique_id for p in manifest.operators["0-sum"].partitions]
        if memory.rows() != list(range(memory.position)):
            if "inbox" in offsets:
                raise Violation(f"acknowledged: epoch {manifest.epoch} holds {memory.rows()} at {memory.position}")
            raise Violation(f"restorable: epoch {manifest.epoch} holds {memory.rows()} at {memory.position}")
        memory.table = json.loads(files[f"tables/{TABLE}/{memory.micro_batch}"])
        memory.table_position = int(manifest.table_offsets[TABLE].offsets["change"])
        if memory.table != table_at(memory.table_position):
            raise Violation(f"one-version: epoch {manifest.epoch} holds a table that is not at {memory.table_position}")
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

    def follow(self, feed: int) -> None:
        """Apply the changes that the feed has beyond those that the table has."""
        for change in range(self.table_position, feed):
            self.table[change % TABLE_KEYS] += change + 1
        self.table_position = max(feed, self.table_position)

    def join(self, rows: list[int]) -> list[int]:
        return [self.table[row % TABLE_KEYS] for row in rows]

    def advance(self, rows: list[int], end: int, mint: SimClock) -> None:
        self.micro_batch += 1
        self.position = end
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

    def cut(self, describe: Callable[[int], SourcePosition]) -> Cut:
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
        change, table = str(self.table_position), json.dumps(self.table).encode()
        feed = SourcePosition(source_type="changes", offsets={"change": change}, verbatim=change, metadata={})
        return Cut(
            micro_batch=self.micro_batch,
            watermark_ms=0,
            sources={"0": describe(self.position)},
            operators=[
                CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=partitions)
            ],
            files=[
                CutFile(f"offsets/{self.micro_batch}", offsets, len(offsets)),
                CutFile(f"tables/{TABLE}/{self.micro_batch}", table, len(table)),
            ],
            table_offsets={TABLE: feed},
        )


def content(cut: Cut) -> dict[str, bytes]:
    """Tell every file of a cut."""
    files = [*cut.files, *(file for op in cut.operators for partition in op.partitions for file in partition.files)]
    return {file.path: file.source for file in files if isinstance(file.source, bytes)}


def encode_delta(rows: list[int], parent: str | None) -> bytes:
    return json.dumps({"rows": rows, "parent": parent}).encode()


def decode_delta(data: bytes) -> tuple[list[int], str | None]:
    """Read the rows of a file, and the id of the one that it comes after."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise Violation("restorable: a state file holds what nobody wrote")
    return document["rows"], document["parent"]
