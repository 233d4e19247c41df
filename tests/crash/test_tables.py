"""A reference table and its stream, killed: no row is joined with a version that its checkpoint does not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from demo.jvm import quick_start
from slackwater.failpoints import VARIABLE
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol.verified_reads import load_manifest
from slackwater.sinks.files.log import parse_published
from slackwater.sinks.files.reader import read_committed
from tests.crash.drivers import CLASSES

FILES, PER_FILE, MERCHANTS = 16, 50, 10
KILLS = ("capture.before@3", "append.after@2", "commit.after@2")
PROGRAM = Path(__file__).with_name("table_pipeline.py")


def drop(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / name)


def feed_until(ended: threading.Event, folder: Path) -> None:
    """Change every merchant at once, again and again: each row says by which change it came about."""
    for number in count(1):
        rows = [{"merchant": m, "change": number, "risk": f"risk-{m}-{number}"} for m in range(MERCHANTS)]
        drop(folder, f"{number:08d}.json", rows)
        if ended.wait(0.2):
            return


def run(folder: Path, failpoint: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "slackwater.cli", "run", str(PROGRAM), str(folder)]
    environment = {**os.environ, **quick_start(CLASSES), VARIABLE: f"{failpoint}=kill" if failpoint else ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    return ran.returncode, ran.stderr


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name in ("input", "feed"):
        (folder / name).mkdir()
    for number in range(FILES):
        ids = range(number * PER_FILE, (number + 1) * PER_FILE)
        drop(folder / "input", f"{number:04d}.json", [{"id": i, "merchant": i % MERCHANTS} for i in ids])
        os.utime(folder / "input" / f"{number:04d}.json", (1_700_000_000 + number,) * 2)
    ended = threading.Event()
    feeder = threading.Thread(target=feed_until, args=(ended, folder / "feed"))
    feeder.start()
    try:
        for failpoint in KILLS:
            code, words = run(folder, failpoint)
            assert code == -9 and f"failpoint {failpoint.partition('@')[0]}: kill" in words, words
        code, words = run(folder, "")
        assert code == 0, words
    finally:
        ended.set()
        feeder.join()
    return folder


def test_every_row_is_there_once_with_the_version_that_its_checkpoint_holds(killed: Path) -> None:
    pipeline = read_pipeline(str(killed / "store" / "scores"))
    versions = {
        entry.epoch: int(load_manifest(pipeline.store, entry).table_offsets["merchants"].offsets["file"][:8])
        for entry in pipeline.state.live
    }
    rows: list[tuple[int, int]] = []
    for path in read_committed(killed / "out"):
        published = parse_published(str(Path(path).relative_to(killed / "out")))
        assert published is not None
        for row in pq.read_table(path).to_pylist():
            assert row["change"] == versions[published.epoch]
            assert row["risk"] == f"risk-{row['merchant']}-{row['change']}" and row["merchant"] == row["id"] % MERCHANTS
            rows.append((row["id"], row["change"]))
    assert sorted(number for number, _ in rows) == list(range(FILES * PER_FILE))
    assert len(set(versions.values())) > len(KILLS), "the table has changed all the time"
    assert verify(pipeline.url, read_data=True).sound
