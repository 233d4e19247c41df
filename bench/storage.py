"""Storage: what packing small artifacts saves against putting each as an object of its own."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slackwater.artifacts import Cut, CutFile, CutOperator, CutPartition, put_artifacts
from slackwater.settings import Settings
from slackwater.store import open_store

FILES, SIZE_BYTES, ROUNDS = 4_096, 4_096, 3
ID = "0192d3f0-7b7c-7000-8000-0123456789ab"


def main() -> None:
    random.seed(0)
    words = [random.randbytes(16) for _ in range(64)]  # state-like: rows that share their prefixes
    payloads = [b"".join(random.choice(words) for _ in range(SIZE_BYTES // 16)) for _ in range(FILES)]
    ours = min(timed(lambda folder: pack(folder, payloads)) for _ in range(ROUNDS))
    one_by_one = min(timed(lambda folder: put_each(folder, payloads)) for _ in range(ROUNDS))
    print(
        json.dumps(
            {
                "case": "storage/pack-4096x4KiB",
                "ours": round(ours, 4),
                "unit": "s",
                "reference": "the same store, each file put as an object of its own, one by one",
                "reference_value": round(one_by_one, 4),
                "ratio": round(one_by_one / ours, 1),
                "goal": 40,
            }
        )
    )


def timed(job: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        job(Path(folder))
        return time.perf_counter() - began


def pack(folder: Path, payloads: list[bytes]) -> None:
    partitions = [
        CutPartition(
            partition=number,
            path=f"state/0/{number}",
            version=1,
            unique_id="a",
            snapshot=[],
            deltas=[CutFile(f"state/0/{number}/1_a.changelog", data, len(data))],
        )
        for number, data in enumerate(payloads)
    ]
    operator = CutOperator(name="0-sum", operator_id=0, operator_name="sum", store="default", partitions=partitions)
    cut = Cut(micro_batch=0, watermark_ms=0, sources={}, operators=[operator], files=[])
    put_artifacts(open_store(str(folder)), cut, ID, {}, Settings())


def put_each(folder: Path, payloads: list[bytes]) -> None:
    store = open_store(str(folder))
    for number, data in enumerate(payloads):
        store.put(f"state/{number}", data)


if __name__ == "__main__":
    main()
