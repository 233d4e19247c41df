"""The two file-based sinks behind one face."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import uuid_utils
from deltalake import DeltaTable

from slackwater import failpoints
from slackwater.protocol.sinks import Sink
from slackwater.sinks.delta.sink import DeltaSink
from slackwater.sinks.files.reader import read_committed
from slackwater.sinks.files.sink import FileSink

UID, OTHER_UID = "0a" * 16, "0b" * 16


class Bench:
    """One target folder, and what can be asked of it."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root = kind, root

    def sink(
        self, name: str = "totals", *, uid: str = UID, pipeline: str = "orders", bound: bool = True, **options: Any
    ) -> Any:
        sink: Sink = DeltaSink(self.root, **options) if self.kind == "delta" else FileSink(self.root, **options)
        if bound:
            sink.bind(pipeline, name, uid)
        return sink

    def stage_by_hand(self, attempt: str, *ids: int) -> dict[str, Any]:
        """Stage one row a file where Spark would, without waiting for Spark."""
        column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        files = self._write(attempt, [pa.table({"id": [row]}) for row in ids])
        return {"attempt": attempt, "files": files, "schema": {"type": "struct", "fields": [column]}}

    def stage_table(self, attempt: str, rows: pa.Table, micro_batch: int = 0, **fields: Any) -> dict[str, Any]:
        """Stage a table as one file, with more to say about it: ``mode``, ``key``."""
        types = {pa.int64(): "long", pa.string(): "string"}
        columns = [{"name": f.name, "type": types[f.type], "nullable": True, "metadata": {}} for f in rows.schema]
        files = self._write(attempt, [rows] if rows.num_rows else [])
        schema = {"type": "struct", "fields": columns}
        return {"attempt": attempt, "files": files, "schema": schema, "micro_batch": micro_batch, **fields}

    def _write(self, attempt: str, tables: list[pa.Table]) -> list[dict[str, Any]]:
        tag = hashlib.sha256(f"{UID}/totals".encode()).hexdigest()[:8]
        data = f"slackwater-{tag}" if self.kind == "delta" else f"_slackwater/{UID}/totals/data"
        folder, files = f"{data}/{attempt}/{secrets.token_hex(4)}", []
        for number, table in enumerate(tables):
            path = f"{folder}/part-{number:05d}.parquet"
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, self.root / path)
            files.append({"path": path, "size_bytes": (self.root / path).stat().st_size, "rows": table.num_rows})
        return files

    def fill(self, sink: Any, *epochs: int) -> None:
        """Commit epochs, each with its own number as the one row."""
        for epoch in epochs:
            sink.commit([self.stage_by_hand(new_attempt(), epoch)], epoch)

    def rows(self) -> list[int]:
        """Read the ids with the exact reader."""
        if self.kind == "delta":
            return self.plain_rows()
        return sorted(i for file in read_committed(self.root) for i in pq.read_table(file)["id"].to_pylist())

    def plain_rows(self) -> list[int]:
        """Read the ids as somebody would who has never heard of us."""
        if self.kind == "delta":
            if not DeltaTable.is_deltatable(str(self.root)):
                return []
            return sorted(DeltaTable(str(self.root)).to_pyarrow_table()["id"].to_pylist())
        table = ds.dataset(self.root, format="parquet").to_table()
        return sorted(table["id"].to_pylist()) if table.num_rows else []

    def paths(self) -> set[str]:
        """List every file and folder of the target."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def versions(self) -> int:
        """Count what was committed: versions of the table, or entries of the log."""
        pattern = "_delta_log/*.json" if self.kind == "delta" else "_slackwater/*/*/log/*.json"
        return len(list(self.root.glob(pattern)))


@pytest.fixture(params=["delta", "files"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path / "target folder")


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Arm a failpoint once, in this process, so that it raises."""

    def arm(name: str) -> None:
        monkeypatch.setattr(failpoints, "_armed", {name: (1, "raise")})
        monkeypatch.setattr(failpoints, "_hits", {})

    return arm


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is synced, in order."""
    order: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    return order


def new_attempt() -> str:
    return str(uuid_utils.uuid7())
