"""``slackwater run`` and a signal: how a program with Spark ends, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.jvm import JVM_OPTIONS, SHORT_LIVED_JVM
from slackwater.ops.pipelines import read_pipeline
from tests.commands import command, environment
from tests.spark.trickle import eventually

APP = """
import sys
import slackwater as sw
spark = sw.session("orders", master="local[2]", conf={"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": False})
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().dropDuplicates(["value"])
rows = sw.writeStream(rows).queryName("orders").options(store=sys.argv[1] + "/store", workdir=sys.argv[1] + "/work")
rows.to("rows", sw.FileSink(sys.argv[1] + "/rows")).start()
"""


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the program in a process of its own. Whoever reads all it prints has waited for its JVM, too."""
    (folder / "app.py").write_text(APP)
    with subprocess.Popen(
        command("run", folder / "app.py", folder),
        env=environment(**{JVM_OPTIONS: SHORT_LIVED_JVM}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    assert any(words in line for line in process.stdout), f"it has not said {words!r}"


def test_ctrl_c_ends_after_the_newest_epoch_and_says_which_that_is(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        read_until(process, "epoch 2, micro-batch 1")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    state = read_pipeline(str(tmp_path / "store" / "orders")).state
    assert state.release_append_id is not None
    told = rest[rest.index("stopping: ") :]
    assert "the micro-batch under way is dropped and done again next time" in told.splitlines()[0]
    assert told.splitlines()[-1] == f"orders: ended cleanly, at epoch {state.epoch}"
    assert "ERROR" not in told and "Traceback" not in told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", ["the JVM starts", "the session is made"])
def test_sigterm_while_spark_starts_ends_without_a_traceback_or_a_jvm_left_behind(tmp_path: Path, moment: str) -> None:
    with running(tmp_path) as process:
        if moment == "the JVM starts":
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            eventually(lambda: children.read_text() != "" or process.poll() is not None)
        else:
            read_until(process, "Setting default log level")
        os.kill(process.pid, signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in rest) == (0, False), rest
    assert "stopping: no pipeline is running" in rest
