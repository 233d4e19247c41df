"""A pipeline with a reference table on a real Spark cluster: executors in processes of their own, one shared folder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from slackwater.sinks.files.reader import read_committed
from slackwater.spark.java import ensure_java
from tests.crash.test_tables import FILES, MERCHANTS, PER_FILE, PROGRAM, drop

DEPLOY = "org.apache.spark.deploy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers with a core each, from the pyspark package."""
    ensure_java()
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOG_DIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    address = f"spark://127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    commands = [[f"{DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"]]
    for number in range(2):
        place = str(tmp_path / f"worker-{number}")
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "-d", place]
        commands.append([f"{DEPLOY}.worker.Worker", address, *options])
    logs = [tmp_path / f"{number}.log" for number in range(len(commands))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as out:
                processes.append(
                    subprocess.Popen(
                        [str(home / "bin" / "spark-class"), *command], env=environment, stdout=out, stderr=out
                    )
                )
        deadline = time.monotonic() + 240
        while logs[0].read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, logs[0].read_text()
            time.sleep(0.1)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_executors_of_a_cluster_read_each_micro_batchs_version(tmp_path: Path, master: str) -> None:
    for name in ("input", "feed", "work"):
        (tmp_path / name).mkdir()
    for number in range(FILES // 4):
        ids = range(number * PER_FILE, (number + 1) * PER_FILE)
        drop(tmp_path / "input", f"{number:04d}.json", [{"id": i, "merchant": i % MERCHANTS} for i in ids])
    changes = [{"merchant": m, "change": 1, "risk": f"risk-{m}"} for m in range(MERCHANTS - 1)]
    drop(tmp_path / "feed", "00000001.json", changes)
    command = [sys.executable, "-m", "slackwater.cli", "run", str(PROGRAM), str(tmp_path), "--master", master]
    environment = {**os.environ, "SLACKWATER_WORK": str(tmp_path / "work"), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = [row for path in read_committed(tmp_path / "out") for row in pq.read_table(path).to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(FILES // 4 * PER_FILE))
    assert all(row["risk"] == (f"risk-{m}" if (m := row["merchant"]) < MERCHANTS - 1 else None) for row in rows)
    # It was a cluster: both workers have had an executor.
    assert len(list(tmp_path.glob("worker-*/app-*/*/stderr"))) == 2
    assert re.search(r"delivery is exactly once", ran.stderr)
