"""What plans tell: one hash and one description for an unchanged query, others for a changed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import slackwater as sw
from slackwater.formats.query import Query, QueryOperator, differences
from slackwater.spark.logical import Text
from slackwater.spark.plan import describe_query, pipeline_hash, source_types
from tests.spark.queries import SCHEMA, Queries, add_one, counted, plus_one

ROOT = Path(__file__).parents[2]
TIME_ZONE = "spark.sql.session.timeZone"


def hash_of(frame: DataFrame) -> str:
    return pipeline_hash(frame, "append", ["delta:totals"])


def tell(folder: str) -> None:
    """Print, as a process of its own, what every query of the catalogue tells; other queries come before."""
    conf = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2}
    spark = sw.session("another", master="local[1]", conf=conf)
    queries = Queries(spark, Path(folder))
    queries.joined().select(F.transform("parts", lambda part: part))
    frames = queries.catalogue()
    told = {
        name: [hash_of(frame), msgspec.to_builtins(describe_query(frame, "append"))] for name, frame in frames.items()
    }
    print(json.dumps(told))
    spark.stop()


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Queries:
    return Queries(spark, tmp_path / "in")


def test_an_unchanged_query_tells_the_same_in_another_process_on_another_machine(
    queries: Queries, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    java = "-Duser.timezone=Asia/Tokyo -Duser.name=somebody -Duser.language=tr -Duser.country=TR"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONHASHSEED": "4711",
        "TZ": "Asia/Tokyo",
        "HOME": str(place),
        "TMPDIR": str(place),
        "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java}",
    }
    command = f"from tests.spark.test_plan import tell; tell({str(place / 'other')!r})"
    answer = subprocess.run(
        [sys.executable, "-c", command], env=environment, cwd=place, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    frames = queries.catalogue()
    assert told.keys() == frames.keys()
    for name, frame in frames.items():
        sha256, words = told[name]
        query = describe_query(frame, "append")
        assert sha256 == hash_of(frame), name
        zone = [f"setting {TIME_ZONE} was Asia/Tokyo, is UTC"] if query.operators else []
        assert differences(msgspec.convert(words, Query), query) == zone, name


def test_a_query_built_twice_has_one_hash_and_no_two_queries_share_one(
    queries: Queries, spark: SparkSession, tmp_path: Path
) -> None:
    first = {name: hash_of(frame) for name, frame in queries.catalogue().items()}
    again = {name: hash_of(frame) for name, frame in Queries(spark, tmp_path / "elsewhere").catalogue().items()}
    assert first == again
    assert len(set(first.values())) == len(first)


def test_the_settings_of_the_session_are_not_in_the_hash(queries: Queries, spark: SparkSession) -> None:
    frames = queries.catalogue()
    settings = {
        TIME_ZONE: "Europe/Berlin",
        "spark.sql.debug.maxToStringFields": "1",
        "spark.sql.maxPlanStringLength": "9",
    }
    before = {key: str(spark.conf.get(key)) for key in settings}
    hashes = {name: hash_of(frame) for name, frame in frames.items()}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        assert {name: hash_of(frame) for name, frame in queries.catalogue().items()} == hashes
        assert spark.conf.get(TIME_ZONE) == "Europe/Berlin"
        assert spark.range(1).select(F.current_timezone()).head() == ("Europe/Berlin",)
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def self_join(queries: Queries, column: str) -> DataFrame:
    files = queries.files()
    return files.alias("a").join(files.alias("b"), F.expr("a.at = b.at")).select(column)


def wide(queries: Queries, last: str) -> DataFrame:
    return queries.files().select(*[F.col("amount").alias(f"c{i}") for i in range(40)], F.expr(last))


def plus(function: Callable[[int], int]) -> Column:
    return F.udf(function, "bigint")("amount")


@pytest.mark.parametrize(
    "make",
    [
        lambda q: (q.files().where("amount > 1"), q.files().where("amount > 2")),
        lambda q: (q.files().where("note = '#112233'"), q.files().where("note = '#445566'")),
        lambda q: (q.files().where("note = 'a@cafe.org'"), q.files().where("note = 'a@fade.org'")),
        lambda q: (q.files().where("at > timestamp'2026-01-01'"), q.files().where("at > timestamp'2026-01-02'")),
        lambda q: (q.files().select(plus(plus_one)), q.files().select(plus(add_one))),
        lambda q: (q.files().groupBy().sum("amount"), q.files().groupBy().max("amount")),
        lambda q: (q.windowed("10 minutes"), q.windowed("20 minutes")),
        lambda q: (q.files(delay="1 minute"), q.files(delay="2 minutes")),
        lambda q: (q.files(), q.files(SCHEMA + ", more int")),
        lambda q: (q.files().selectExpr("cast(note AS int) n"), q.files().selectExpr("try_cast(note AS int) n")),
        lambda q: (self_join(q, "a.note"), self_join(q, "b.note")),
        lambda q: (wide(q, "note"), wide(q, "merchant AS note")),
        lambda q: (
            q.sql("SELECT note FROM payments"),
            q.sql("SELECT note FROM payments WHERE amount IN (SELECT id FROM range(3))"),
        ),
    ],
    ids=lambda make: None,
)
def test_a_change_in_what_is_computed_changes_the_hash(queries: Queries, make: Callable[[Queries], Any]) -> None:
    before, now = make(queries)
    assert hash_of(before) != hash_of(now)


def test_names_for_people_change_nothing(queries: Queries) -> None:
    named = counted(queries.files().alias("x")).observe("seen", F.count("*").alias("rows"))
    assert hash_of(named) == hash_of(counted(queries.files()))


def test_where_things_lie_in_memory_is_not_in_the_text_of_a_plan() -> None:
    words = (
        "MapElements org.acme.Job$$Lambda/0x00007f12@6e1f3a, class org.acme.Row, org.acme.table.Table@{}, a@cafe.org"
    )
    assert Text("UTC").clean(words.format("1f")) == Text("UTC").clean(words.replace("6e1f", "77").format("2a"))
    assert "a@cafe.org" in Text("UTC").clean(words)


def test_the_output_mode_and_the_sinks_are_in_the_hash(queries: Queries) -> None:
    frame = queries.files()
    assert pipeline_hash(frame, "Append", ["a", "b"]) == pipeline_hash(frame, "append", ["b", "a"])
    assert len({pipeline_hash(frame, mode, sinks) for mode in ("append", "update") for sinks in (["a"], ["b"])}) == 4


WINDOW = "window struct<start:timestamp,end:timestamp>"
BOTH_SIDES = [
    "left merchant string",
    "left amount bigint",
    "left at timestamp",
    "left note string",
    "left parts array<int>",
    "right shop string",
    "right paid_at timestamp",
    "right paid bigint",
]
# What the operators of the catalogue's queries are; the others have none.
OPERATORS: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "demo": [
        ("aggregate", [f"{WINDOW} of 600 s", "merchant string"], ["sum(amount_cents) bigint", "count(1) bigint"]),
        ("deduplicate", ["id bigint", "at timestamp"], []),
    ],
    "aggregate": [("aggregate", [f"{WINDOW} of 600 s", "merchant string"], ["sum(amount) bigint", "count(1) bigint"])],
    "sliding window": [
        (
            "aggregate",
            [f"{WINDOW} of 600 s every 300 s from 60 s", "merchant string"],
            ["sum(amount) bigint", "count(1) bigint"],
        )
    ],
    "session window": [
        ("session aggregate", [f"session_{WINDOW} of 5 minutes", "merchant string"], ["count(1) bigint"])
    ],
    "global aggregate": [("aggregate", [], ["sum(amount) bigint", "count(note) bigint"])],
    "deduplicate": [("deduplicate", ["merchant string", "at timestamp"], [])],
    "deduplicate within watermark": [("deduplicate within watermark", ["merchant string"], [])],
    "inner join": [
        (
            "inner join",
            ["merchant = shop string"],
            [
                "left merchant string",
                "left at timestamp",
                "right shop string",
                "right paid_at timestamp",
                "right paid bigint",
            ],
        )
    ],
    "left outer join": [("left outer join", ["merchant = shop string"], BOTH_SIDES)],
    "self-join": [
        (
            "inner join",
            ["merchant = merchant string", "at = at timestamp"],
            [f"{side} {column}" for side in ("left", "right") for column in SCHEMA.split(", ")],
        )
    ],
    "join with a table": [("aggregate", ["rank int"], ["count(1) bigint"])],
    "applyInPandasWithState": [("applyInPandasWithState", ["merchant string"], ["n bigint", "timeout NoTimeout"])],
    "transformWithState": [("transformWithState", ["merchant string"], ["output mode Append", "time mode NoTime"])],
    "transformWithStateInPandas": [
        ("transformWithState", ["merchant string"], ["output mode Update", "time mode EventTime"])
    ],
    "limit": [("limit", [], [])],
    "SQL": [("aggregate", ["merchant string"], ["sum(amount) bigint", "count(1) bigint"])],
    "common table": [("distinct", ["merchant string"], [])] * 2,
}


def test_every_kind_of_state_is_described(queries: Queries) -> None:
    frames = queries.catalogue()
    assert OPERATORS.keys() <= frames.keys()
    for name, frame in frames.items():
        operators = [QueryOperator(name=n, keys=k, values=v) for n, k, v in OPERATORS.get(name, [])]
        query = describe_query(frame, "Append")
        assert query.operators == operators, name
        zone = {TIME_ZONE: "UTC", "spark.sql.shuffle.partitions": "2"}
        settings = {**zone, "spark.sql.streaming.multipleWatermarkPolicy": "min"} if operators else {}
        assert (query.output_mode, query.settings) == ("append", settings), name


def test_a_limit_keeps_nothing_where_all_rows_come_each_time(queries: Queries) -> None:
    frame = queries.files().groupBy("merchant").count().orderBy("count").limit(3)
    assert [operator.name for operator in describe_query(frame, "complete").operators] == ["aggregate"]


@pytest.mark.parametrize(
    "make",
    [
        lambda q: (counted(q.files()), counted(q.files().where("amount > 3"))),
        lambda q: (counted(q.files()), counted(q.files()).where("total > 3").withColumn("day", F.current_date())),
        lambda q: (counted(q.files()), counted(q.files().withColumn("more", F.lit(1)))),
        lambda q: (counted(q.files()), counted(q.files(SCHEMA + ", more int", delay="1 hour"))),
        lambda q: (counted(q.files()), counted(q.files()).withColumn("total", F.col("total") * 100)),
        lambda q: (q.joined().select("paid"), q.joined(left=q.files(SCHEMA + ", more int")).select("paid")),
        lambda q: (q.joined().select("paid"), q.joined().where("amount > 5").select("paid")),
        lambda q: (q.joined().select("paid"), q.joined().where("note = 'x'").select((F.col("paid") * 2).alias("paid"))),
        lambda q: (q.files().select("note"), q.files().select("at").where("at > now()")),
        lambda q: (q.remembered(), q.remembered().withColumn("more", F.lit(1))),
    ],
    ids=lambda make: None,
)
def test_what_needs_no_other_state_is_no_difference(queries: Queries, make: Callable[[Queries], Any]) -> None:
    before, now = make(queries)
    assert hash_of(before) != hash_of(now)
    assert differences(describe_query(before, "append"), describe_query(now, "append")) == []


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (
            lambda q: (counted(q.files()), q.files().groupBy("merchant", "note").count()),
            [
                "operator 0 (aggregate) was grouped by merchant string; now by merchant string, note string",
                "operator 0 (aggregate): sum(amount) bigint is gone",
            ],
        ),
        (
            lambda q: (q.windowed("10 minutes"), q.windowed("5 minutes")),
            [
                f"operator 0 (aggregate) was grouped by {WINDOW} of 600 s, merchant string; "
                f"now by {WINDOW} of 300 s, merchant string"
            ],
        ),
        (
            # The optimizer keeps only what is selected.
            lambda q: (counted(q.files()).select("total"), counted(q.files())),
            ["operator 0 (aggregate): count(1) bigint is new"],
        ),
        (
            lambda q: (q.joined().select("paid"), q.joined().select("paid", "note")),
            ["operator 0 (inner join): left note string is new"],
        ),
        (
            lambda q: (q.joined(), q.joined("left_outer")),
            ["operator 0 was inner join, is left outer join"],
        ),
        (
            lambda q: (q.files().dropDuplicates(["merchant", "at"]), q.files().dropDuplicates(["merchant"])),
            ["operator 0 (deduplicate) was keyed by merchant string, at timestamp; now by merchant string"],
        ),
        (
            lambda q: (counted(q.files().dropDuplicates(["merchant", "at"])), counted(q.files())),
            ["operator 1 (deduplicate) is gone"],
        ),
        (
            lambda q: (q.remembered(), q.remembered("n int", GroupStateTimeout.ProcessingTimeTimeout)),
            [
                "operator 0 (applyInPandasWithState): n bigint is gone, timeout NoTimeout is gone, n int is new, "
                "timeout ProcessingTimeTimeout is new"
            ],
        ),
        (
            lambda q: (q.files().select("at"), q.spark.readStream.format("rate").load()),
            ["source 0 was file, is rate"],
        ),
    ],
    ids=lambda each: None if callable(each) else each[0],
)
def test_what_needs_another_state_is_said(queries: Queries, make: Callable[[Queries], Any], lines: list[str]) -> None:
    before, now = make(queries)
    assert differences(describe_query(before, "append"), describe_query(now, "append")) == lines


def test_a_changed_setting_is_said(queries: Queries, spark: SparkSession) -> None:
    before = describe_query(counted(queries.files()), "append")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        spark.conf.set(TIME_ZONE, "Etc/UTC")
        now = describe_query(counted(queries.files()), "append")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.set(TIME_ZONE, "UTC")
    assert differences(before, now) == ["setting spark.sql.shuffle.partitions was 2, is 8"]


def test_a_plan_of_any_size_has_a_short_description(queries: Queries) -> None:
    def broad(last: str) -> Query:
        sums = [F.sum(F.col("amount") * i) for i in range(120)]
        return describe_query(queries.files().groupBy("merchant").agg(*sums, F.expr(last)), "append")

    before, now = broad("max(note)"), broad("min(note)")
    assert len(msgspec.json.encode(before)) < 4 * 1024
    lines = differences(before, now)
    assert len(lines) == 1
    assert lines[0].startswith("operator 0 (aggregate): ")


def once(frame: DataFrame, folder: Path, output_mode: str = "append") -> None:
    """Have Spark itself run one micro-batch."""
    writer = frame.writeStream.format("noop").outputMode(output_mode).trigger(once=True)
    writer.option("checkpointLocation", str(folder)).start().awaitTermination()


def payment(queries: Queries, number: int) -> None:
    row = {"merchant": "hotel", "amount": number, "at": "2026-01-01T00:00:00Z"}
    (queries.folder / f"{number}.json").write_text(json.dumps(row))


def offsets_of(folder: Path) -> list[str]:
    offsets = (folder / "offsets" / "0").read_text().splitlines()[2:]
    return ["file" if "logOffset" in offset else "rate-micro-batch" for offset in offsets]


def test_sources_are_in_the_order_of_sparks_own_offsets(queries: Queries, tmp_path: Path) -> None:
    payment(queries, 1)
    rate = queries.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rate.createOrReplaceTempView("rates")
    common = queries.sql(
        "WITH first AS (SELECT value FROM rates), second AS (SELECT amount FROM payments) "
        "SELECT amount FROM second UNION ALL SELECT value FROM first UNION ALL SELECT amount + 1 FROM second"
    )
    files = queries.files().select("amount")
    rates = rate.select("value")
    union = files.union(rates).union(files).union(queries.files().select("amount")).union(rates)
    for name, frame in {"common": common, "union": union}.items():
        once(frame, tmp_path / name)
        assert source_types(frame) == offsets_of(tmp_path / name), name


def test_the_operators_are_those_that_spark_keeps_and_compatible_is_what_it_accepts(
    queries: Queries, tmp_path: Path
) -> None:
    def unique(joined: DataFrame) -> DataFrame:
        return counted(joined.select("merchant", "amount", "at").dropDuplicates(["merchant", "at"]))

    payment(queries, 1)
    frame = unique(queries.joined())
    once(frame, tmp_path / "spark", "update")
    metadata = sorted((tmp_path / "spark").glob("state/*/_metadata/metadata"), key=lambda path: int(path.parts[-3]))
    names = [json.loads(path.read_text().splitlines()[1])["operatorInfo"]["operatorName"] for path in metadata]
    assert names == ["stateStoreSave", "dedupe", "symmetricHashJoin"]
    before = describe_query(frame, "update")
    assert [operator.name for operator in before.operators] == ["aggregate", "deduplicate", "inner join"]

    payment(queries, 2)
    compatible = unique(queries.joined(left=queries.files(SCHEMA + ", more int")).where("note IS NULL"))
    assert differences(before, describe_query(compatible, "update")) == []
    once(compatible, tmp_path / "spark", "update")

    payment(queries, 3)
    other = unique(queries.joined()).select("merchant", "total")
    lines = ["operator 0 (aggregate): count(1) bigint is gone"]
    assert differences(before, describe_query(other, "update")) == lines
    with pytest.raises(StreamingQueryException, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        once(other, tmp_path / "spark", "update")
