"""The Delta sink among other writers of its table; what it shares with every sink is in ``test_sink_contract.py``."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from slackwater.errors import Conflict, InvalidInput, SlackwaterError, Unavailable, Unsupported
from slackwater.sinks.delta.sink import DeltaSink

from .conftest import Bench, new_attempt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("delta", tmp_path / "table")


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2)


def table(bench: Bench) -> DeltaTable:
    return DeltaTable(str(bench.root))


def append_elsewhere(bench: Bench, *ids: int) -> None:
    write_deltalake(str(bench.root), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def test_the_first_commit_makes_the_table_and_each_later_one_makes_one_version(
    spark: SparkSession, bench: Bench
) -> None:
    sink = bench.sink()
    for epoch in (1, 2, 3):
        sink.commit([sink.stage(numbers(spark, 0, 10), new_attempt(), 0)], epoch)
        assert table(bench).version() == epoch
    fields = table(bench).schema().fields
    assert [(field.name, str(field.type), field.nullable) for field in fields] == [
        ("id", 'PrimitiveType("long")', True)
    ]


def test_every_file_says_how_many_rows_it_has(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    sink.commit([sink.stage(numbers(spark, 0, 9), new_attempt(), 0)], 1)
    adds = table(bench).get_add_actions(flatten=True)
    assert sorted(pa.table(adds)["num_records"].to_pylist()) == [4, 5]
    assert table(bench).count() == 9


def test_the_log_is_synced_after_a_commit(spark: SparkSession, bench: Bench, synced: list[str]) -> None:
    sink, log = bench.sink(), bench.root / "_delta_log"
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    synced.clear()
    sink.commit([staged], 1)
    wanted = {str(log / f"{version:020d}.json") for version in (0, 1)}
    assert wanted <= set(synced[:-2]) and synced[-2:] == [str(log), str(bench.root)]
    # The one who committed may have died before it synced: so whoever finds the epoch there does it.
    synced.clear()
    bench.sink().commit([staged], 1)
    assert wanted <= set(synced[:-2]) and synced[-2:] == [str(log), str(bench.root)]


def test_other_writers_are_no_hindrance(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    for epoch in (1, 2, 3):
        staged = sink.stage(numbers(spark, 10 * epoch, 10 * epoch + 10), new_attempt(), 0)
        append_elsewhere(bench, epoch)
        sink.commit([staged], epoch)
    assert bench.rows() == [1, 2, 3, *range(10, 40)]


def test_four_drivers_beside_another_writer_commit_each_epoch_in_one_version(bench: Bench) -> None:
    epochs, racers, start = 30, [bench.sink() for _ in range(4)], threading.Barrier(4)
    staged = [bench.stage_by_hand(new_attempt(), epoch) for epoch in range(1, epochs + 1)]

    def drive(sink: DeltaSink) -> None:
        for epoch, descriptor in enumerate(staged, 1):
            start.wait()
            sink.commit([descriptor], epoch)

    with ThreadPoolExecutor(4) as pool:
        drivers = [pool.submit(drive, sink) for sink in racers]
        written = 0
        while not all(driver.done() for driver in drivers):
            if DeltaTable.is_deltatable(str(bench.root)):
                append_elsewhere(bench, 0)
                written += 1
        for driver in drivers:
            driver.result()
    assert written > 0
    assert bench.rows() == [0] * written + [*range(1, epochs + 1)]
    log = [json.loads(line) for path in bench.root.glob("_delta_log/*.json") for line in path.read_text().splitlines()]
    ours = [action["txn"]["version"] for action in log if action.get("txn", {}).get("appId", "").count("/") == 3]
    assert sorted(ours) == [*range(1, epochs + 1)]
    assert sum("metaData" in action for action in log) == 1, "the table was made twice"


def test_the_epoch_outlives_the_log_entry_that_brought_it(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    sink.commit([staged], 1)
    append_elsewhere(bench, 10)
    table(bench).create_checkpoint()
    for version in (0, 1):
        os.unlink(bench.root / "_delta_log" / f"{version:020d}.json")
    fresh = bench.sink()
    assert fresh.epoch() == 1
    fresh.commit([staged], 1)
    assert bench.rows() == [*range(11)]


def test_a_compacted_table_is_not_given_its_rows_again(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    sink.commit([staged], 1)
    table(bench).optimize.compact()
    table(bench).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert not any((bench.root / file["path"]).exists() for file in staged["files"])
    bench.sink().commit([staged], 1)
    assert bench.rows() == [*range(10)]


def test_vacuum_takes_what_was_removed_and_neither_tickets_nor_young_staged_files(
    spark: SparkSession, bench: Bench
) -> None:
    sink, attempt = bench.sink(), new_attempt()
    committed = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    sink.commit([committed], 1)
    staged = sink.stage(numbers(spark, 10, 20), attempt, 0)
    table(bench).optimize.compact()
    old = {file["path"] for file in committed["files"]}
    assert table(bench).vacuum(dry_run=True, full=True) == []
    doomed = set(table(bench).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
    assert doomed == old | {file["path"] for file in staged["files"]}
    assert sink.staged() == [attempt]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("cast(id as int) id", "id is integer, in the table long"),
        ("id, 'x' extra", "extra is not in the table"),
        ("id as ID", "ID is not in the table"),
        ("id, named_struct('a', 1L) deep", "deep is"),
        ("id, array(cast(1 as int)) list", "list is"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_staged(
    spark: SparkSession, bench: Bench, query: str, reason: str
) -> None:
    sink = bench.sink()
    fitting = numbers(spark, 0, 10).selectExpr("id", "named_struct('a', cast(1 as int)) deep", "array(1L) list")
    sink.commit([sink.stage(fitting, new_attempt(), 0)], 1)
    before = bench.paths()
    with pytest.raises(Unsupported) as caught:
        bench.sink().stage(spark.sql(f"select {query} from range(10)"), new_attempt(), 0)
    assert caught.value.code == "sink.schema_mismatch" and reason in str(caught.value)
    assert bench.paths() == before


def test_a_column_that_the_query_does_not_have_is_null(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    sink.commit([sink.stage(numbers(spark, 0, 2).selectExpr("id", "'x' text"), new_attempt(), 0)], 1)
    sink.commit([sink.stage(numbers(spark, 2, 4), new_attempt(), 0)], 2)
    rows = sorted(table(bench).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [row["text"] for row in rows] == ["x", "x", None, None]


def test_a_table_that_changed_after_staging_is_checked_again_by_the_commit(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    write_deltalake(str(bench.root), pa.table({"id": ["text"]}))
    with pytest.raises(Unsupported) as caught:
        sink.commit([staged], 1)
    assert caught.value.code == "sink.schema_mismatch"


def test_null_is_not_written_where_the_table_forbids_it(spark: SparkSession, bench: Bench) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    DeltaTable.create(str(bench.root), schema)
    sink = bench.sink()
    with pytest.raises(Unsupported, match="id may be null"):
        sink.stage(numbers(spark, 0, 10).selectExpr("if(id > 3, id, null) id"), new_attempt(), 0)
    sink.commit([sink.stage(numbers(spark, 0, 10), new_attempt(), 0)], 1)
    assert bench.rows() == [*range(10)]


@pytest.mark.parametrize("asks", ["partition by day", "delta.constraints.positive"])
def test_a_table_that_asks_more_of_its_writers_is_refused(spark: SparkSession, bench: Bench, asks: str) -> None:
    if asks.startswith("partition"):
        write_deltalake(str(bench.root), pa.table({"id": [1], "day": ["x"]}), partition_by=["day"])
    else:
        append_elsewhere(bench, 1)
        table(bench).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(Unsupported) as caught:
        bench.sink().stage(numbers(spark, 0, 10), new_attempt(), 0)
    assert caught.value.code == "sink.unsupported" and asks in str(caught.value)


def test_a_type_that_delta_does_not_have_is_refused(spark: SparkSession, bench: Bench) -> None:
    for query in ("interval 3 days wait", "array(interval 3 days) wait", "parse_json('1') wait", "null wait"):
        with pytest.raises(Unsupported, match="the column wait is") as caught:
            bench.sink().stage(spark.sql(f"select 1L id, {query}"), new_attempt(), 0)
        assert caught.value.code == "sink.unsupported"
    assert not bench.root.exists()


def test_a_path_that_delta_rs_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        DeltaSink(tmp_path / "100%20")
    assert caught.value.code == "sink.invalid"


def test_no_secret_of_the_storage_options_gets_out(tmp_path: Path) -> None:
    secrets = {"AWS_ACCESS_KEY_ID": "AKIAHUSH", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_REGION": "r"}
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "retry_timeout": "3s"}
    sink = DeltaSink("s3://bucket/table", storage_options={**secrets, **unreachable, "max_retries": "0"})
    assert sink.address == "s3://bucket/table"
    with pytest.raises(Unavailable) as caught:
        sink.bind("orders", "totals", "0a" * 16)
    seen = f"{caught.value} {caught.value!r} {caught.value.__cause__} {sink!r}"
    assert caught.value.code == "sink.unavailable" and "hush" not in seen.lower()


def test_a_broken_log_of_the_table_is_an_error_of_ours(bench: Bench) -> None:
    (bench.root / "_delta_log").mkdir(parents=True)
    (bench.root / "_delta_log" / f"{0:020d}.json").write_text("{ not json")
    with pytest.raises(SlackwaterError) as caught:
        bench.sink()
    assert not isinstance(caught.value, Conflict) and caught.value.code.startswith("sink.")
