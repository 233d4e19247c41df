"""Store, Delta table and files on a real S3 server: killed at every step, and through a proxy that spoils requests.

The protocol is Python's, so it is the Python process that is killed; the JVM goes on, as it does for a while after any
kill, and serves the next one. ``test_crash_points`` has a JVM for each.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.java_gateway import launch_gateway

from demo.jvm import JVM_OPTIONS, SHORT_LIVED_JVM
from demo.oracle import compare, expected_totals
from slackwater import read_committed
from slackwater.errors import NotFound, Unavailable
from slackwater.failpoints import VARIABLE
from slackwater.formats.state import State
from slackwater.ops.pipelines import read_pipeline
from slackwater.spark.java import ensure_java
from slackwater.store import open_store
from tests.crash.drivers import ROOT, ROWS_PER_BATCH, expected_after
from tests.crash.test_crash_points import CHAIN, END, ROLLBACK, UNDO
from tests.services.proxy import CUT, DELAY, FAULTS, LOST_ANSWER, RESET, SLOW_DOWN, TOO_MANY, in_front_of
from tests.services.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed, running

PIPELINE = Path(__file__).with_name("s3_pipeline.py")
ROWS = 20_000
FEW_ROWS = 6_000
# A fifth of all requests is spoilt: in each micro-batch there are several.
SPOILT = {DELAY: 4, RESET: 3, LOST_ANSWER: 4, SLOW_DOWN: 3, TOO_MANY: 2, CUT: 4}
MOST_LIVES = 5
Row = tuple[int, str, int, int]


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a JVM for many drivers, one after the other; give the variables by which they find it."""
    ensure_java()
    folder = tmp_path_factory.mktemp("jvm")
    said = folder / "said.txt"
    with pytest.MonkeyPatch.context() as patch, said.open("wb") as file:
        patch.setenv(JVM_OPTIONS, f"{SHORT_LIVED_JVM} -Xss16m")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        # Its Python workers read the demo's source of payments.
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        gateway = launch_gateway(popen_kwargs={"stdout": file, "stderr": file})
    found = gateway.gateway_parameters
    port = {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}
    yield {**port, "PYSPARK_PYTHON": sys.executable, "SAID": str(said)}
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@dataclass
class Place:
    """One pipeline below a URL of its own, and all that its processes have said."""

    server: Seaweed
    folder: Path
    name: str
    endpoint: str
    variables: dict[str, str] = field(default_factory=dict)
    rows: int = ROWS
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def run(self, *command: str, failpoints: str = "") -> tuple[int, str]:
        """Run a command of slackwater's with credentials in its environment alone."""
        credentials = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": ACCESS_KEY}
        environment = {**os.environ, **self.variables, **credentials, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        # Into a file: the JVM of a killed driver outlives it by seconds, and would hold on to a pipe.
        said = self.folder / f"said-{len(self.said)}.txt"
        with said.open("wb") as file:
            code = subprocess.run(
                [sys.executable, "-m", "slackwater.cli", *command],
                env={**environment, VARIABLE: failpoints},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=240,
                check=False,
            ).returncode
        self.said.append(said.read_text())
        return code, self.said[-1]

    def live(self, point: str = "") -> tuple[int, str]:
        rows = ["--rows", str(self.rows), "--rows-per-batch", str(ROWS_PER_BATCH)]
        program = ["run", str(PIPELINE), self.url, str(self.folder / "work"), *rows]
        return self.run(*program, failpoints=f"{point}=kill" if point else "")

    def die(self, point: str) -> None:
        code, words = self.live(point)
        assert code == -signal.SIGKILL, f"exit code {code}, {point} was not reached:\n{words[-3000:]}"

    def state(self) -> State | None:
        try:
            return read_pipeline(f"{self.url}/store/payments", None, self.server.options).state
        except NotFound:
            return None

    def sinks(self) -> dict[str, list[Row]]:
        """Read both sinks as their readers would."""
        options, files = self.server.options, open_store(f"{self.url}/totals-files", None, **self.server.options)
        committed = read_committed(f"{self.url}/totals-files", storage_options=options)
        keys = [path.removeprefix(f"{self.url}/totals-files/") for path in committed]
        tables = [pq.read_table(io.BytesIO(files.get(key))) for key in keys]
        delta_options = {**options, "allow_http": "true"}
        if DeltaTable.is_deltatable(f"{self.url}/totals-delta", delta_options):
            delta = DeltaTable(f"{self.url}/totals-delta", storage_options=delta_options).to_pyarrow_table()
        else:
            delta = pa.table({})
        return {"delta": rows_of(delta), "files": [row for table in tables for row in rows_of(table)]}

    def judge(self) -> None:
        """Assert that the run is whole, each row there once in each sink, the store sound, and nothing is left over."""
        state = self.state()
        assert state is not None and state.settled_epoch == state.epoch
        for sink, rows in self.sinks().items():
            assert compare(expected_totals(self.rows), iter(rows)).exact, sink
        code, words = self.run("verify", f"{self.url}/store/payments", "--read-data", "--json")
        verified = json.loads(words)
        assert code == 0 and verified["sound"] and verified["findings"] == [] and verified["objects"] > 0
        left = [key for key in self.objects() if "/staged/" in key or "_probe-" in key]
        assert left == [], "staged output or probes were left behind"

    def objects(self) -> dict[str, bytes]:
        store = open_store(self.url, None, **self.server.options)
        return {listed.key: store.get(listed.key) for listed in store.list("")}


def rows_of(table: pa.Table) -> list[Row]:
    return [
        (round(row["window_start"].timestamp() * 1000), row["merchant"], row["amount_cents"], row["payments"])
        for row in table.to_pylist()
    ]


@pytest.fixture(scope="module")
def place(server: Seaweed, jvm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(server, tmp_path_factory.mktemp("s3"), "killed", server.endpoint, jvm)


@pytest.mark.parametrize("point", CHAIN)
def test_a_kill_at_every_step_loses_and_repeats_nothing(point: str, place: Place) -> None:
    place.die(point)
    state = place.state()
    if state is None:
        assert place.sinks() == {"delta": [], "files": []}
        return
    candidates = [
        sorted((*key, *total) for key, total in expected_after(epoch, ROWS).items())
        for epoch in (state.epoch - 1, state.epoch)
        if epoch > 0
    ]
    for sink, rows in place.sinks().items():
        assert sorted(rows) in (candidates or [[]]), f"{sink} has {len(rows)} rows, not those of epoch {state.epoch}"


def test_a_rollback_that_dies_at_any_of_its_steps_is_run_again(place: Place) -> None:
    for point, options in {**ROLLBACK, "": []}.items():
        state = place.state()
        assert state is not None
        command = ["rollback", f"{place.url}/store/payments", "--yes", "--to", str(state.branch[0].epoch), *options]
        code, words = place.run(*command, failpoints=f"{point}=kill" if point else "")
        assert code == (-signal.SIGKILL if point else 0), f"{point}: {words[-3000:]}"


@pytest.mark.parametrize("point", [*UNDO, *END])
def test_a_kill_while_it_undoes_or_ends_leaves_no_row_twice(point: str, place: Place) -> None:
    place.die(point)
    for sink, rows in place.sinks().items():
        assert compare(expected_totals(ROWS), iter(rows)).surplus == 0, sink


def test_after_all_kills_both_sinks_equal_the_oracle(place: Place) -> None:
    code, words = place.live()
    assert code == 0, words[-3000:]
    place.judge()


def live_on(place: Place) -> None:
    """Start it until it ends well; before that it may end only because the server is unavailable."""
    codes: list[int] = []
    while not codes or codes[-1] == Unavailable.exit_code:
        assert len(codes) < MOST_LIVES, codes
        code, words = place.live()
        assert code in (0, Unavailable.exit_code), words[-3000:]
        codes.append(code)


# The second dies when the checkpoint counts and one of its sinks has its rows.
@pytest.mark.parametrize(("seed", "point"), [(1, ""), (2, "commit.after@3")])
def test_through_a_proxy_that_spoils_requests_it_ends_exact(
    seed: int, point: str, server: Seaweed, jvm: dict[str, str], tmp_path: Path
) -> None:
    with in_front_of(server, seed, SPOILT) as proxy:
        place = Place(server, tmp_path, f"spoilt-{seed}", proxy.endpoint, jvm, FEW_ROWS)
        if point:
            place.die(point)
        live_on(place)
        place.judge()
        assert proxy.befell.keys() >= set(FAULTS), "not every fault has befallen it"
    holds_no_secret(place)


def holds_no_secret(place: Place) -> None:
    assert [words for words in place.said if SECRET_KEY in words] == []
    assert [key for key, data in place.objects().items() if SECRET_KEY.encode() in data] == []
    written = [path for path in place.folder.rglob("*") if path.is_file()]
    assert [path for path in written if SECRET_KEY.encode() in path.read_bytes()] == []


def test_no_output_and_no_object_holds_the_secret(place: Place, jvm: dict[str, str]) -> None:
    holds_no_secret(place)
    assert SECRET_KEY not in Path(jvm["SAID"]).read_text()
