"""Folders as LaminarDB leaves them, written from the text of its documents and never by our own encoders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

IDS = [f"0192d3f0-7b7c-7000-8000-0000000000{n:02x}" for n in range(1, 9)]
MADE_MS = 1_794_736_800_000
AGG = [bytes([n]) * (100 + n) for n in range(4)]
JOIN = b"the state of a join, " * 50


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(root: Path, files: dict[str, bytes | str | dict[str, Any]]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=2) if isinstance(content, dict) else content
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def v1(**fields: Any) -> dict[str, Any]:
    """A whole manifest of version 1, without a fatal finding; the state of ``agg`` is inline, ``join`` is not."""
    document: dict[str, Any] = {
        "version": 1,
        "checkpoint_id": 2,
        "epoch": 7,
        "timestamp_ms": MADE_MS,
        "source_offsets": {
            "clicks": {
                "offsets": {"clicks-0": "9007199254740993"},
                "epoch": 7,
                "metadata": {"connector": "kafka", "topic": "clicks"},
            }
        },
        "sink_epochs": {"pg": 7},
        "sink_commit_statuses": {"pg": "Committed"},
        "table_offsets": {"rates": {"offsets": {"lsn": "0/ABCD"}, "epoch": 7, "metadata": {}}},
        "operator_states": {
            "agg": {
                "state_b64": "c2xhY2sgd2F0ZXI=",
                "external": False,
                "external_offset": 0,
                "external_length": 0,
            },
            "join": {"state_b64": None, "external": True, "external_offset": 0, "external_length": len(JOIN)},
        },
        "table_store_checkpoint_path": None,
        "watermark": 5000,
        "source_watermarks": {"clicks": -1},
        "source_names": ["clicks"],
        "sink_names": ["files", "pg"],
        "pipeline_hash": 0xDEADBEEFCAFE1234,
        "vnode_count": 256,
        "state_checksum": sha256(JOIN),
    }
    return {**document, **fields}


def v1_folder(root: Path, **fields: Any) -> Path:
    """A file system store of version 1: two checkpoints, and the pointer."""
    older = v1(checkpoint_id=1, epoch=6, **_older())
    return write(
        root,
        {
            "checkpoints/checkpoint_000001/manifest.json": older,
            "checkpoints/checkpoint_000001/state.bin": JOIN,
            "checkpoints/checkpoint_000002/manifest.json": v1(**fields),
            "checkpoints/checkpoint_000002/state.bin": JOIN,
            "checkpoints/latest.txt": "checkpoint_000002",
        },
    )


def _older() -> dict[str, Any]:
    document = v1()
    for field in ("source_offsets", "table_offsets"):
        for connector in document[field].values():
            connector["epoch"] = 6
    return {
        "source_offsets": document["source_offsets"],
        "table_offsets": document["table_offsets"],
        "sink_epochs": {"pg": 6},
    }


def partition(number: int, data: bytes, path: str, *, delta: bool = False, **fields: Any) -> dict[str, Any]:
    entry = {"partition_id": number, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256(data)}
    return {**entry, **fields}


def v2(checkpoint_id: str, epoch: int, partitions: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A whole manifest of version 2 with one operator."""
    total = sum(entry["size_bytes"] for entry in partitions)
    document: dict[str, Any] = {
        "version": 2,
        "checkpoint_id": checkpoint_id,
        "epoch": epoch,
        "timestamp_ms": MADE_MS + epoch,
        "operators": {"agg": {"partitions": partitions, "total_bytes": total}},
        "source_offsets": {"clicks": {"source_type": "kafka", "offsets": {"clicks-0": str(epoch)}, "epoch": epoch}},
        "parent_id": None,
        "watermark": 5000,
        "total_size_bytes": total,
    }
    return {**document, **fields}


def v2_folder(root: Path, *, defective: bool = False, base: str = "checkpoints/") -> Path:
    """Three checkpoints: a whole one, a delta on top of it, and another whole one; in one of the two path forms.

    In the defective form manifests and artifacts lie beside the folder that the documents name, and paths are stored
    in full, as LaminarDB's code does it.
    """
    slash = "" if defective else "/"
    files: dict[str, bytes | str | dict[str, Any]] = {}

    def artifact(checkpoint: int, number: int, data: bytes, *, delta: bool = False) -> dict[str, Any]:
        rest = f"operators/agg/partition-{number}.{'delta' if delta else 'snap'}"
        key = f"{base}{IDS[checkpoint]}{slash}{rest}"
        files[key] = data
        return partition(number, data, key if defective else rest, delta=delta)

    first = [artifact(0, n, AGG[n]) for n in (1, 0)]  # in the order in which uploads ended
    second = [artifact(1, 0, b"a delta", delta=True), artifact(1, 1, AGG[2])]
    third = [artifact(2, n, AGG[n + 2]) for n in (0, 1)]
    documents = [v2(IDS[0], 1, first), v2(IDS[1], 2, second, parent_id=IDS[0]), v2(IDS[2], 3, third)]
    for number, document in enumerate(documents):
        files[f"{base}{IDS[number]}{slash}manifest.json"] = document
    files[f"{base}_latest"] = IDS[2]
    return write(root, files)


def incremental_folder(root: Path) -> Path:
    """Two incremental checkpoints, the second with state, and one that was begun."""
    metadata = {
        "id": 1,
        "epoch": 10,
        "timestamp": MADE_MS // 1000,
        "wal_position": 500,
        "source_offsets": {"source1": 100},
        "watermark": None,
        "size_bytes": 0,
        "key_count": 0,
        "is_incremental": False,
        "parent_id": None,
        "sst_files": [],
    }
    newer = {**metadata, "id": 2, "epoch": 11, "size_bytes": 15, "is_incremental": True, "parent_id": 1}
    return write(
        root,
        {
            "checkpoint_0000000000000001/metadata.json": metadata,
            "checkpoint_0000000000000002/metadata.json": newer,
            "checkpoint_0000000000000002/state.bin": b"test state data",
            "checkpoint_0000000000000003/state.bin": b"half",
        },
    )
