"""A pipeline in the hands of its user: one process, real Spark, both sinks."""

from __future__ import annotations

import ast
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
import pytest
from pyspark.sql.functions import col, raise_error, when

import slackwater as sw
from demo.judge import read_sinks
from demo.oracle import compare, expected_totals
from demo.payments_stream import totals
from slackwater.clock import SystemClock
from slackwater.ops.savepoint import create_label
from slackwater.protocol.log import Log
from slackwater.protocol.sinks import SinkFailed
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.spark.session import REQUIRED, check_session
from slackwater.store import open_store
from slackwater.streaming.query import PipelineQuery, active
from slackwater.streaming.writer import PipelineWriter
from tests.spark.trickle import Failing, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = Path(sw.__file__).parent
CORE = ["formats/*.py", "protocol/*.py"]
# What is done about damage, and about pipelines that are not Spark's, has tests of its own.
NOT_HERE = {"protocol/kinds.py", "protocol/log_damage.py"}
ROWS = 3_000
PER_BATCH = 500
CODEC = "spark.sql.streaming.stateStore.compression.codec"


@pytest.fixture(scope="module", autouse=True)
def trace() -> Iterator[coverage.Coverage]:
    """Record which functions of the core the pipelines of this module reach."""
    trace = coverage.Coverage(data_file=None, include=[str(SOURCE / pattern) for pattern in CORE], config_file=False)
    trace.start()
    yield trace
    trace.stop()


def writer(spark: SparkSession, folder: Path, *, frame: DataFrame | None = None, **options: Any) -> PipelineWriter:
    frame = frame if frame is not None else totals(spark, rows=ROWS, rows_per_batch=PER_BATCH)
    return (
        sw.writeStream(frame)
        .queryName("payments")
        .outputMode("append")
        .options(store=str(folder / "store"), workdir=str(folder / "work"), **options)
        .to("delta", sw.DeltaSink(folder / "totals-delta"))
        .to("files", sw.FileSink(folder / "totals-files"))
    )


def open_log(folder: Path) -> Log:
    return Log(open_store(str(folder / "store" / "payments")), SystemClock(), Settings())


def equals_the_oracle(folder: Path, rows: int = ROWS) -> None:
    for name, found in read_sinks(folder).items():
        comparison = compare(expected_totals(rows), found)
        assert comparison.exact, f"{name}: {comparison}"


def test_available_now_settles_every_micro_batch_and_ends_on_record(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slackwater")
    query = writer(spark, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination()
    equals_the_oracle(tmp_path)
    state = open_log(tmp_path).read()
    assert state is not None
    # Six micro-batches of data, and the one without that closes the last windows.
    assert state.epoch == state.settled_epoch == ROWS // PER_BATCH + 1
    assert state.release_append_id is not None
    assert "delivery is exactly once" in caplog.text
    assert len([r for r in caplog.records if r.message.startswith("epoch ")]) == state.epoch
    assert not list((tmp_path / "work").glob("*/*")), "the working directory was left behind"
    assert not active()


def test_the_manifest_is_filled_from_real_things(spark: SparkSession, tmp_path: Path) -> None:
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    state = open_log(tmp_path).read()
    assert state is not None
    assert state.head is not None
    manifest = load_manifest(open_store(str(tmp_path / "store" / "payments")), state.head)
    assert manifest.source_offsets["0"].source_type == "payments"
    assert manifest.source_offsets["0"].offsets == {"seq": str(ROWS)}
    assert manifest.source_offsets["0"].verbatim == f'{{"seq": {ROWS}}}'
    assert manifest.watermark_ms > 0
    assert manifest.sink_names == ["delta", "files"]
    assert manifest.sinks["delta"].kind == "delta"
    assert manifest.parent_id == state.live[-2].checkpoint_id
    assert {op.operator_name for op in manifest.operators.values()} == {"stateStoreSave", "dedupe"}
    assert all(len(op.partitions) == 2 and op.size_bytes > 0 for op in manifest.operators.values())


def test_a_pipeline_can_be_stopped_and_started_again_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    # Every partition in an object of its own: the other runs keep their small state in batches.
    query = writer(spark, tmp_path, object_min_bytes=1).start()
    eventually(lambda: len(query.checkpoints()) >= 2)
    query.stop()
    assert not query.isActive
    stopped_at = query.checkpoints()[-1].epoch
    again = writer(spark, tmp_path).trigger(availableNow=True).start()
    again.awaitTermination()
    assert again.checkpoints()[-1].epoch > stopped_at
    equals_the_oracle(tmp_path)


def test_the_pipeline_hash_of_an_unchanged_query_is_equal_across_runs(spark: SparkSession, tmp_path: Path) -> None:
    hashes = set()
    for rows in (1_000, 2_000):
        frame = totals(spark, rows=rows, rows_per_batch=PER_BATCH)
        writer(spark, tmp_path, frame=frame).trigger(availableNow=True).start().awaitTermination()
        state = open_log(tmp_path).read()
        assert state is not None
        assert state.head is not None
        hashes.add(load_manifest(open_store(str(tmp_path / "store" / "payments")), state.head).pipeline_hash)
    assert len(hashes) == 1
    other = totals(spark, rows=2_000, rows_per_batch=PER_BATCH).where(col("merchant") != "hotel")
    writer(spark, tmp_path / "other", frame=other).trigger(availableNow=True).start().awaitTermination()
    state = open_log(tmp_path / "other").read()
    assert state is not None
    assert state.head is not None
    store = open_store(str(tmp_path / "other" / "store" / "payments"))
    assert load_manifest(store, state.head).pipeline_hash not in hashes


def test_the_handle_is_sparks_own_with_checkpoints_added(spark: SparkSession, tmp_path: Path) -> None:
    query = writer(spark, tmp_path).start()
    try:
        query.processAllAvailable()
        assert query.isActive
        assert query.name == "payments"
        assert query.status["isDataAvailable"] in (True, False)
        assert query.lastProgress is not None
        assert query.awaitTermination(0) is False
        assert query.exception() is None
        assert active() == [query]
        savepoint = query.savepoint("before-release")
        assert savepoint.epoch == query.checkpoints()[-1].epoch
        with pytest.raises(sw.Conflict, match=r"\[label.taken\]"):
            query.savepoint("before-release")
        with pytest.raises(sw.Conflict, match=r"\[pipeline.running\]"):
            writer(spark, tmp_path).start()
    finally:
        query.stop()


def test_a_label_between_two_checkpoints_stops_nobody(spark: SparkSession, tmp_path: Path) -> None:
    query = writer(spark, tmp_path, keep_last=1).start()
    try:
        eventually(lambda: len(query.checkpoints()) >= 1)
        # From outside, over the number that the driver would have created next.
        savepoint = create_label(open_log(tmp_path), "kept", "latest")
        eventually(lambda: query.checkpoints()[-1].epoch > savepoint.epoch + 1)
    finally:
        query.stop()
    writer(spark, tmp_path, keep_last=1).trigger(availableNow=True).start().awaitTermination()
    equals_the_oracle(tmp_path)
    state = open_log(tmp_path).read()
    assert state is not None
    assert [entry.epoch for entry in state.live] == [savepoint.epoch, state.epoch]


@pytest.mark.parametrize("verb", ["stage", "commit"])
def test_a_sink_that_raises_stops_the_query_and_loses_nothing(spark: SparkSession, tmp_path: Path, verb: str) -> None:
    failing = Failing(sw.FileSink(tmp_path / "totals-files"), verb, OSError("password=hunter2"))
    pipeline = writer(spark, tmp_path).trigger(availableNow=True)
    pipeline._sinks["files"] = failing
    with pytest.raises(SinkFailed if verb == "commit" else OSError) as raised:
        pipeline.start().awaitTermination()
    if verb == "commit":
        # It is on record, in our words only, and the start afterwards commits the epoch first.
        log = open_log(tmp_path)
        state = log.read()
        assert state is not None
        assert state.settled_epoch < state.epoch
        assert "hunter2" not in str(raised.value)
        assert b"hunter2" not in b"".join(p.read_bytes() for p in (tmp_path / "store").rglob("*.json"))
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    equals_the_oracle(tmp_path)


def test_a_query_that_raises_is_told_in_sparks_own_words_and_resumes(spark: SparkSession, tmp_path: Path) -> None:
    frame = totals(spark, rows=ROWS, rows_per_batch=PER_BATCH)
    bad = frame.withColumn(
        "payments", when(col("merchant") == "bakery", raise_error(col("merchant"))).otherwise(col("payments"))
    )
    with pytest.raises(Exception, match="bakery"):
        writer(spark, tmp_path, frame=bad.select(frame.columns)).trigger(availableNow=True).start().awaitTermination()
    writer(spark, tmp_path, frame=frame).trigger(availableNow=True).start().awaitTermination()
    equals_the_oracle(tmp_path)


def test_a_failure_stops_the_query_even_when_the_source_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    gate = threading.Event()

    class LateFailure(Failing):
        def __getattr__(self, name: str) -> Any:
            if name == "commit":
                gate.wait(60)
            return super().__getattr__(name)

    # Two micro-batches, of which the second has no data; then the source has nothing more, and nobody stops the query.
    frame = totals(spark, rows=PER_BATCH, rows_per_batch=PER_BATCH)
    pipeline = writer(spark, tmp_path, frame=frame)
    pipeline._sinks["files"] = LateFailure(sw.FileSink(tmp_path / "totals-files"), "commit", OSError())
    query = pipeline.start()
    eventually(lambda: query.status["message"] == "Waiting for data to arrive")
    gate.set()
    with pytest.raises(SinkFailed, match=r"\[sink.commit_failed\]"):
        query.awaitTermination(60)
    assert not query.isActive


def test_back_pressure_waits_and_stop_breaks_the_wait(spark: SparkSession, tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(Failing):
        def __getattr__(self, name: str) -> Any:
            if name == "commit":
                gate.wait(60)
            return getattr(self._sink, name)

    pipeline = writer(spark, tmp_path, epochs_in_flight=1)
    pipeline._sinks["files"] = Slow(sw.FileSink(tmp_path / "totals-files"), "commit", OSError())
    query = pipeline.start()
    eventually(lambda: len(query.checkpoints()) >= 1)
    time.sleep(3)
    # One is settling, so none may be staged beside it.
    assert query._coordinator.state.epoch == 1
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    time.sleep(1)
    gate.set()
    stopper.join(60)
    assert not stopper.is_alive()
    assert not query.isActive
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    equals_the_oracle(tmp_path)


def test_a_wiped_store_beside_a_table_that_remembers_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(sw.Conflict, match=r"\[sink.other_pipeline\]"):
        writer(spark, tmp_path).trigger(availableNow=True).start()
    assert not (tmp_path / "store" / "payments" / "log").exists(), "a refused start must not claim"
    equals_the_oracle(tmp_path)


def test_a_lost_log_beside_checkpoints_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(tmp_path / "store" / "payments" / "log")
    with pytest.raises(sw.Corrupt, match=r"\[log.missing\]"):
        writer(spark, tmp_path).trigger(availableNow=True).start()


def flip_a_bit_of(folder: Path, epoch: int) -> str:
    """Damage an object that this epoch stored itself; return its key."""
    state = open_log(folder).read()
    entry = state.find(epoch) if state else None
    assert entry is not None
    victim = min((folder / "store" / "payments" / "checkpoints" / entry.checkpoint_id / "batches").iterdir())
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    return str(victim.relative_to(folder / "store" / "payments"))


def test_a_damaged_head_stops_the_start_until_it_is_told_to_roll_back(spark: SparkSession, tmp_path: Path) -> None:
    # Without inlining, so that every epoch has an object to damage; stopped early, so that there is more to do.
    query = writer(spark, tmp_path, inline_max_bytes=0).start()
    eventually(lambda: len(query.checkpoints()) >= 3)
    query.stop()
    newest = query.checkpoints()[-1].epoch
    key = flip_a_bit_of(tmp_path, newest)
    before = {name: sorted(rows) for name, rows in read_sinks(tmp_path).items()}
    with pytest.raises(sw.Corrupt, match=r"\[head.damaged\]") as raised:
        writer(spark, tmp_path).trigger(availableNow=True).start()
    assert raised.value.exit_code == 13
    assert raised.value.details == {"epoch": newest, "key": key, "lost": [newest], "newest_verified": newest - 1}
    assert key in str(raised.value) and f"--to {newest - 1} --yes" in str(raised.value)
    assert not list((tmp_path / "work").glob("*/*"))
    assert {name: sorted(rows) for name, rows in read_sinks(tmp_path).items()} == before  # nothing was undone yet
    state = open_log(tmp_path).read()
    assert state is not None and state.epoch == newest and state.release_append_id is not None
    again = writer(spark, tmp_path, fallback="newest-verified").trigger(availableNow=True).start()
    again.awaitTermination()
    assert [entry.rollback_to for entry in again.checkpoints() if entry.epoch == newest + 1] == [newest - 1]
    equals_the_oracle(tmp_path)


def test_a_rollback_takes_rows_back_out_of_both_sinks_and_they_come_again(spark: SparkSession, tmp_path: Path) -> None:
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    url = str(tmp_path / "store" / "payments")
    plan = sw.rollback(url, "3", dry_run=True)
    assert [(sink.name, sink.action) for sink in plan.sinks] == [("delta", "undo"), ("files", "undo")]
    assert [(source.now, source.then) for source in plan.sources] == [({"seq": str(ROWS)}, {"seq": str(3 * PER_BATCH)})]
    sw.rollback(url, "3")
    equals_the_oracle(tmp_path)  # the sinks follow with the next start
    query = writer(spark, tmp_path).start()
    # The driver that starts undoes before it lets Spark run; what it has added since is of later epochs.
    held = {name: len(list(rows)) for name, rows in read_sinks(tmp_path).items()}
    assert max(held.values()) < len(expected_totals(ROWS))
    query.stop()
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    state = open_log(tmp_path).read()
    assert state is not None and [entry.epoch for entry in state.live if entry.undone] == [4, 5, 6, 7]
    assert state.settled_epoch == state.epoch
    equals_the_oracle(tmp_path)


def test_a_damaged_newest_record_stops_the_start_until_it_is_repaired(spark: SparkSession, tmp_path: Path) -> None:
    # Stopped early: Spark closes the last windows only when new rows have come.
    query = writer(spark, tmp_path).start()
    eventually(lambda: len(query.checkpoints()) >= 3)
    query.stop()
    lost = query.checkpoints()[-1].epoch
    url, log = str(tmp_path / "store" / "payments"), tmp_path / "store" / "payments" / "log"
    max(log.iterdir()).unlink()  # the release: now the newest record is a checkpoint that both sinks have
    newest = max(log.iterdir())
    newest.write_bytes(newest.read_bytes().replace(b'"epoch"', b'"epocH"', 1))
    with pytest.raises(sw.Corrupt, match=f"may have been checkpoint {lost}") as raised:
        writer(spark, tmp_path).trigger(availableNow=True).start()
    assert raised.value.code == "log.corrupt" and "slackwater repair URL" in str(raised.value)
    plan = sw.repair(url)
    assert plan is not None and (plan.to_epoch, plan.epoch, plan.unsettled) == (lost - 1, lost + 1, True)
    assert [(sink.name, sink.action) for sink in plan.sinks] == [("delta", "undo"), ("files", "undo")]
    writer(spark, tmp_path).trigger(availableNow=True).start().awaitTermination()
    assert sw.repair(url, dry_run=True) is None
    state = open_log(tmp_path).read()
    assert state is not None and state.settled_epoch == state.epoch > lost + 1
    equals_the_oracle(tmp_path)


def test_a_session_with_wrong_settings_is_told_each_line_that_mends_it(spark: SparkSession, tmp_path: Path) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    own.conf.set("spark.sql.streaming.minBatchesToRetain", "3")
    rows = own.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    with pytest.raises(sw.Unsupported) as raised:
        writer(own, tmp_path, frame=rows).start()
    hint = str(raised.value)
    assert 'spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")' in hint
    assert 'spark.conf.set("spark.sql.streaming.minBatchesToRetain", "5")' in hint
    assert "providerClass" not in hint
    for key, value in raised.value.details["settings"].items():
        own.conf.set(key, value)
    query = writer(own, tmp_path, frame=rows).start()
    eventually(lambda: len(query.checkpoints()) >= 1)
    query.stop()


def test_a_session_that_sets_nothing_is_told_so_with_sparks_own_values(spark: SparkSession) -> None:
    own = spark.newSession()
    for key in [*REQUIRED, "spark.sql.streaming.minBatchesToRetain"]:
        own.conf.unset(key)
    with pytest.raises(sw.Unsupported, match=re.escape("checkpointFormatVersion is 1")) as raised:
        check_session(own, Settings())
    assert raised.value.code == "spark.unsupported"
    # The codec is Spark's own, and it keeps enough micro-batches.
    assert set(raised.value.details["settings"]) == REQUIRED.keys() - {CODEC}
    for key, value in raised.value.details["settings"].items():
        own.conf.set(key, value)
    check_session(own, Settings())


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda w: w.option("checkpointLocation", "/tmp/x"), "option.invalid", "Spark's own location"),
        (lambda w: w.option("kep_last", 3), "option.invalid", "there is no option"),
        (lambda w: w.option("keep_last", 0).start(), "option.invalid", "keep_last cannot be 0"),
        (lambda w: w.trigger(continuous="1 second"), "query.unsupported", "the trigger"),
        (lambda w: w.to("delta", None), "sink.invalid", "there are two sinks named"),
        (lambda w: w.queryName("../x\n"), "name.invalid", "cannot be a name"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_code(
    spark: SparkSession, tmp_path: Path, change: Callable[[PipelineWriter], Any], code: str, words: str
) -> None:
    with pytest.raises(sw.SlackwaterError) as raised:
        change(writer(spark, tmp_path))
    assert raised.value.code == code and words in str(raised.value)
    assert not (tmp_path / "store").exists()


def test_an_incomplete_pipeline_says_what_is_missing(spark: SparkSession) -> None:
    frame = totals(spark, rows=ROWS, rows_per_batch=PER_BATCH)
    with pytest.raises(sw.InvalidInput, match=r"queryName.*store.*to\("):
        sw.writeStream(frame).start()
    with pytest.raises(sw.InvalidInput, match="the DataFrame is not a streaming one"):
        sw.writeStream(spark.range(3))


def test_a_stateless_query_is_checkpointed_too(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().select("value")
    query: PipelineQuery = (
        sw.writeStream(rows)
        .queryName("plain")
        .option("store", str(tmp_path / "store"))
        .option("workdir", str(tmp_path / "work"))
        .to("rows", sw.FileSink(tmp_path / "rows"))
        .start()
    )
    eventually(lambda: len(query.checkpoints()) >= 2)
    query.stop()
    values = [row.value for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    assert sorted(values) == list(range(len(values)))
    assert len(values) == 10 * query.checkpoints()[-1].epoch


# What only tools, or programs without Spark, call over the same records and keys; what a log needs that is long; and
# what speaks of damage that a digest shows first, of queries too long to be described in full, or that have changed.
ELSEWHERE = {
    "formats/batch.py:_corrupt",
    "formats/manifest.py:fail",
    "formats/positions.py:text_position",
    "formats/query.py:_digest",
    "formats/query.py:_join",
    "formats/query.py:_stand_in",
    "formats/sealed.py:unknown_version",
    "protocol/address.py:pipeline_name",
    "protocol/address.py:refuse_inside_pipeline",
    "protocol/artifacts.py:_slices",
    "protocol/artifacts.py:check_object",
    "protocol/decision.py:_sink_ahead",
    "protocol/decision.py:_sink_missing",
    "protocol/directory.py:_unwritable",
    "protocol/directory.py:refuse_inside",
    "protocol/directory.py:remove_unfinished",
    "protocol/directory.py:spool",
    "protocol/driver.py:make_first",
    "protocol/driver.py:store_all_again",
    "protocol/keep_rules.py:_judge",
    "protocol/keep_rules.py:_name_period",
    "protocol/keep_rules.py:_standing",
    "protocol/keep_rules.py:plan_forget",
    "protocol/keep_rules.py:plan_forget_one",
    "protocol/keep_rules.py:plan_retire_forgotten",
    "protocol/log.py:trim",
    "protocol/log.py:unless_retired",
    "protocol/recovery.py:tell_fallback",
    "protocol/sinks.py:exit_code",
    "protocol/sinks.py:settle_without_sinks",
    "protocol/state.py:_apply_unlabel",
    "protocol/state.py:_does_not_follow",
}


def test_no_function_of_the_core_is_off_the_path(trace: coverage.Coverage) -> None:
    trace.stop()
    off_the_path = set()
    for path in (path for pattern in CORE for path in SOURCE.glob(pattern)):
        if str(path.relative_to(SOURCE)) in NOT_HERE:
            continue
        _, statements, _, missing, _ = trace.analysis2(str(path))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = {line for line in statements if node.body[0].lineno <= line <= (node.end_lineno or 0)}
                if body and body <= set(missing):
                    off_the_path.add(f"{path.relative_to(SOURCE)}:{node.name}")
    assert (sorted(off_the_path - ELSEWHERE), sorted(ELSEWHERE - off_the_path)) == ([], [])
