"""The simulated operator state: what a driver keeps between its micro-batches, as Spark's working directory has it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ...artifacts import Cut, CutFile, CutOperator, CutPartition, Write
from ...formats.manifest import Manifest, SourcePosition
from .scheduler import SimWorld, Violation

PARTITIONS = 2


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

    @classmethod
    def restored(cls, files: dict[str, bytes], manifest: Manifest) -> Memory:
        memory = cls()
        memory.files = {path: data for path, data in files.items() if path.startswith("state/")}
        memory.micro_batch = manifest.micro_batch
        memory.position = int(manifest.source_offsets["0"].offsets["row"])
        memory.ids = [p.unique_id for p in manifest.operators["0-sum"].partitions]
        if memory.rows() != list(range(memory.position)):
            raise Violation(f"restorable: epoch {manifest.epoch} holds {memory.rows()} at {memory.position}")
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
        row = str(self.position)
        position = SourcePosition(source_type="rows", offsets={"row": row}, verbatim=row, metadata={})
        return Cut(
            micro_batch=self.micro_batch,
            watermark_ms=0,
            sources={"0": position},
            operators=[
                CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=partitions)
            ],
            files=[CutFile(f"offsets/{self.micro_batch}", offsets, len(offsets))],
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
