"""Output modes as real queries bring them: what each sink takes, refuses, and makes of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from slackwater.errors import InvalidInput, Unsupported
from slackwater.protocol.sinks import Sink
from slackwater.sinks.delta.sink import DeltaSink
from slackwater.sinks.files.sink import FileSink
from slackwater.sinks.function import FunctionSink
from slackwater.sinks.registry import open_sink

from .conftest import UID, Bench, new_attempt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("delta", tmp_path / "table")


def frame(spark: SparkSession, rows: dict[Any, Any]) -> DataFrame:
    return spark.createDataFrame(list(rows.items()), "id long, text string").repartition(2)


def content(bench: Bench) -> dict[Any, Any]:
    rows = DeltaTable(str(bench.root)).to_pyarrow_table()
    assert len(set(rows["id"].to_pylist())) == rows.num_rows, "a key is there twice"
    return dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))


def serving(bench: Bench, mode: str, **options: Any) -> DeltaSink:
    sink: DeltaSink = bench.sink(**options)
    sink.serve(mode)
    return sink


def test_each_sink_takes_the_modes_that_it_can_serve(tmp_path: Path) -> None:
    keyed, plain, folder = DeltaSink(tmp_path, key="id"), DeltaSink(tmp_path), FileSink(tmp_path)
    function = FunctionSink(print)
    served: list[tuple[Sink, str]] = [
        (keyed, "update"),
        (keyed, "append"),
        (keyed, "complete"),
        (plain, "append"),
        (plain, "complete"),
    ]
    for sink, mode in [*served, (folder, "append"), *((function, mode) for mode in ("append", "update", "complete"))]:
        sink.serve(mode)
    refused: list[tuple[Sink, str, str]] = [
        (plain, "update", 'key="'),
        (folder, "update", "DeltaSink"),
        (folder, "complete", "DeltaSink"),
    ]
    for sink, mode, hint in refused:
        with pytest.raises(Unsupported, match=mode) as caught:
            sink.serve(mode)
        assert caught.value.code == "query.unsupported" and hint in str(caught.value)


def test_update_mode_upserts_what_spark_has_written(spark: SparkSession, bench: Bench) -> None:
    sink = serving(bench, "update", key="id")
    first = sink.stage(frame(spark, {1: "a", 2: "b", None: "none", 3: None}), new_attempt(), 0)
    assert (first["mode"], first["key"], first["micro_batch"]) == ("upsert", ["id"], 0)
    sink.commit([first], 1)
    attempt = new_attempt()
    staged = [
        sink.stage(frame(spark, rows), attempt, number)
        for number, rows in ((1, {2: "old", 4: "d"}), (2, {2: "B", None: "still"}))
    ]
    before = content(bench)
    sink.commit(staged, 2)
    assert before == {1: "a", 2: "b", None: "none", 3: None}
    assert content(bench) == {1: "a", 2: "B", None: "still", 3: None, 4: "d"}
    sink.commit(staged, 2)
    bench.sink().undo(1, 3)
    assert content(bench) == before


def test_append_mode_with_a_key_upserts_too(spark: SparkSession, bench: Bench) -> None:
    for sink in (bench.sink(key="id"), serving(bench, "append", key="id")):
        sink.commit([sink.stage(frame(spark, {1: str(sink), 2: "b"}), new_attempt(), 0)], sink.epoch() + 1)
        assert content(bench) == {1: str(sink), 2: "b"}


def test_complete_mode_replaces_and_an_empty_result_empties(spark: SparkSession, bench: Bench) -> None:
    sink, attempt = serving(bench, "complete", key="id"), new_attempt()
    staged = [sink.stage(frame(spark, rows), attempt, n) for n, rows in enumerate(({1: "a"}, {1: "a", 2: "b"}))]
    assert (staged[0]["mode"], staged[0]["key"]) == ("replace", [])
    sink.commit(staged, 1)
    assert content(bench) == {1: "a", 2: "b"}
    sink.commit([sink.stage(frame(spark, {3: "c"}), new_attempt(), 2)], 2)
    assert content(bench) == {3: "c"}
    sink.commit([sink.stage(frame(spark, {}), new_attempt(), 3)], 3)
    assert content(bench) == {} and sink.epoch() == 3


def test_a_key_that_comes_twice_in_a_micro_batch_is_refused_before_anything_counts(
    spark: SparkSession, bench: Bench
) -> None:
    sink, attempt = serving(bench, "update", key="id"), new_attempt()
    twice = frame(spark, {1: "a", None: "b"}).unionAll(frame(spark, {None: "c", 2: "d"}))
    with pytest.raises(InvalidInput, match="4 rows of one micro-batch have only 3") as caught:
        sink.stage(twice, attempt, 0)
    assert caught.value.code == "sink.invalid"
    sink.discard([attempt])
    assert bench.paths() == set()


@pytest.mark.parametrize("key", ["ID", "nope", "window", "real"])
def test_a_key_that_the_query_does_not_have_is_refused_before_anything_is_staged(
    spark: SparkSession, bench: Bench, key: str
) -> None:
    query = spark.sql("select 1L id, named_struct('start', now()) window, 1.5d real")
    with pytest.raises(InvalidInput) as caught:
        serving(bench, "update", key=["id", key]).stage(query, new_attempt(), 0)
    assert caught.value.code == "sink.invalid" and key in str(caught.value)
    assert not bench.root.exists()


def test_a_table_in_which_rows_cannot_be_replaced_is_refused_before_anything_is_staged(
    spark: SparkSession, bench: Bench
) -> None:
    sink = bench.sink()
    sink.commit([sink.stage(frame(spark, {1: "a"}), new_attempt(), 0)], 1)
    DeltaTable(str(bench.root)).alter.set_table_properties({"delta.appendOnly": "true"})
    before = bench.paths()
    for sink in (serving(bench, "update", key="id"), serving(bench, "complete")):
        with pytest.raises(Unsupported, match=r"delta\.appendOnly"):
            sink.stage(frame(spark, {1: "b"}), new_attempt(), 1)
    assert bench.paths() == before


def test_spark_reads_what_was_written_anew_as_it_wrote_it(spark: SparkSession, bench: Bench) -> None:
    sink = serving(bench, "update", key=["day", "at"])
    query = """
        select id, date'1066-10-14' + cast(id as int) day, timestamp'1066-10-14 09:00:00.000001' at,
               timestamp_ntz'1066-10-14 09:00:00.000001' wall, cast(id as decimal(38, 9)) money,
               array(named_struct('a', id)) list, map('k', id) map
        from range({}, {}, 1, 1)
    """
    sink.commit([sink.stage(spark.sql(query.format(0, 5)), new_attempt(), 0)], 1)
    sink.commit([sink.stage(spark.sql(query.format(4, 6)).selectExpr("*"), new_attempt(), 1)], 2)
    paths = [str(bench.root / path) for path in DeltaTable(str(bench.root)).get_add_actions()["path"].to_pylist()]
    # Were the note of Spark's version lost, Spark would not know by which calendar to read such days.
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    try:
        got = spark.read.parquet(*paths).orderBy("id").collect()
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
    assert len(paths) == 2 and got == spark.sql(query.format(0, 6)).orderBy("id").collect()


# --- a function


def test_a_function_is_called_at_stage_and_never_again(spark: SparkSession) -> None:
    calls: list[tuple[int, int]] = []
    sink: Sink = FunctionSink(lambda frame, micro_batch: calls.append((frame.count(), micro_batch)))
    sink.bind("orders", "totals", UID)
    attempt = new_attempt()
    staged = sink.stage(frame(spark, {1: "a", 2: "b"}), attempt, 7)
    assert calls == [(2, 7)] and staged == {"attempt": attempt, "micro_batch": 7}
    sink.commit([staged], 1)
    sink.discard([attempt])
    sink.undo(0, 2)
    sink.keep(3)
    assert calls == [(2, 7)] and sink.epoch() == 0 and sink.staged() == []
    assert sink.plan_undo(0) == "nothing is undone: rows that the function wrote stay, and come again"
    assert (sink.kind, sink.can_undo, sink.delivery) == ("function", False, "at-least-once")


def test_what_a_function_raises_goes_up_as_it_is(spark: SparkSession) -> None:
    wrong = KeyError("mine")

    def fail(frame: DataFrame, micro_batch: int) -> None:
        raise wrong

    with pytest.raises(KeyError) as caught:
        FunctionSink(fail).stage(frame(spark, {}), new_attempt(), 0)
    assert caught.value is wrong


class Writer:
    def __call__(self, frame: DataFrame, micro_batch: int) -> None: ...

    def write(self, frame: DataFrame, micro_batch: int) -> None: ...


def test_a_function_is_known_by_its_name() -> None:
    module = Writer.__module__
    names = {
        f"{module}.Writer": Writer(),
        f"{module}.Writer.write": partial(partial(Writer().write), micro_batch=1),
        "builtins.print": print,
    }
    assert {FunctionSink(function).address: function for function in names.values()} == names  # type: ignore[arg-type]


def test_a_sink_is_opened_by_what_a_manifest_says_of_it(tmp_path: Path) -> None:
    for bench in (Bench("delta", tmp_path / "a table"), Bench("files", tmp_path / "a folder")):
        sink = bench.sink()
        bench.fill(sink, 1, 2)
        opened = open_sink(sink.kind, sink.address)
        assert opened is not None and (opened.kind, opened.address) == (sink.kind, sink.address)
        opened.bind("orders", "totals", UID)
        assert opened.epoch() == 2 and opened.plan_undo(1) == "1 file, 1 row of 1 epoch"
    assert open_sink("function", "module.name") is None and open_sink("kafka", "topic") is None
