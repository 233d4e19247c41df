"""The catalogue: every kind of query that a pipeline may run, over the same two inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.streaming.state import GroupStateTimeout

from tests.crash import processors
from tests.crash.inputs import DELAY_MS, SPAN_MS

BALANCES = [("a", 1_000), ("c", 3_000), ("y", 5_000)]
NAMES = [("a", "Ada"), ("b", "Bea"), ("c", "Cyd")]
LIMIT = 45
SESSION_GAP_MS = 90_000
CLICK_WITHIN_MS = 6 * 60_000


@dataclass(frozen=True)
class Query:
    """A query, the mode and the sink that it is written with; ``key`` is that of an upsert."""

    frame: Callable[[Inputs], DataFrame]
    mode: str = "append"
    sink: str = "files"
    key: tuple[str, ...] = ()
    conf: dict[str, str] = field(default_factory=dict)


class Inputs:
    """The two inputs as streams: event times as timestamps, a file of each in every micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self._folder = spark, folder

    def _reader(self, schema: str) -> DataStreamReader:
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)

    @property
    def views(self) -> DataFrame:
        files = self._reader("id long, user string, n long, at_ms long").json(str(self._folder / "views"))
        return files.withColumn("at", F.timestamp_millis("at_ms"))

    @property
    def clicks(self) -> DataFrame:
        files = self._reader("view long, price long, clicked_ms long").parquet(str(self._folder / "clicks"))
        return files.withColumn("clicked", F.timestamp_millis("clicked_ms"))

    @property
    def marked_views(self) -> DataFrame:
        return self.views.withWatermark("at", f"{DELAY_MS} milliseconds")

    @property
    def marked_clicks(self) -> DataFrame:
        return self.clicks.withWatermark("clicked", f"{DELAY_MS} milliseconds")

    @property
    def visits(self) -> GroupedData:
        """Views by user and visit: what comes between two full times of twenty minutes."""
        until = (F.floor(F.col("at_ms") / (2 * SPAN_MS)) + 1) * (2 * SPAN_MS)
        return self.marked_views.withColumn("until_ms", until).groupBy("user", "until_ms")


CATALOGUE: dict[str, Query] = {}


def query(**how: Any) -> Callable[[Callable[[Inputs], DataFrame]], Callable[[Inputs], DataFrame]]:
    def add(frame: Callable[[Inputs], DataFrame]) -> Callable[[Inputs], DataFrame]:
        CATALOGUE[frame.__name__] = Query(frame, **how)
        return frame

    return add


def window(column: str, span_ms: int = SPAN_MS) -> Column:
    return F.window(column, f"{span_ms} milliseconds")


def start_ms(name: str = "window") -> Column:
    return F.unix_millis(F.col(f"{name}.start")).alias("start_ms")


def sums(grouped: GroupedData) -> DataFrame:
    return grouped.agg(F.count("*").alias("views"), F.sum("n").alias("n"))


# These always have another micro-batch to run, and so would never end.
TIMED = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


# --- without state


@query(sink="both")
def map_filter_explode(inputs: Inputs) -> DataFrame:
    letters = F.explode(F.array("user", F.concat("user", F.col("n").cast("string")))).alias("letter")
    return inputs.views.filter("n % 3 != 0").select("id", letters, (F.col("n") * 2).alias("n"))


@query()
def map_in_pandas(inputs: Inputs) -> DataFrame:
    return inputs.views.select("id", "n").mapInPandas(processors.scaled, "id long, n long")


@query()
def union_of_two_sources(inputs: Inputs) -> DataFrame:
    return inputs.views.select("id", "n").union(inputs.clicks.select("view", "price"))


@query(sink="delta")
def join_with_a_table(inputs: Inputs) -> DataFrame:
    return inputs.views.join(inputs.spark.createDataFrame(NAMES, "user string, name string"), "user").select(
        "id", "name"
    )


@query()
def limit(inputs: Inputs) -> DataFrame:
    return inputs.views.select("id", "n").limit(LIMIT)


# --- aggregation


@query(sink="both")
def windowed_aggregation(inputs: Inputs) -> DataFrame:
    return sums(inputs.marked_views.groupBy(window("at"), "user")).select(start_ms(), "user", "views", "n")


@query()
def session_windows(inputs: Inputs) -> DataFrame:
    session = F.session_window("at", f"{SESSION_GAP_MS} milliseconds")
    sessions = sums(inputs.marked_views.groupBy(session, "user"))
    return sessions.select(start_ms("session_window"), "user", "views", "n")


@query()
def aggregation_of_an_aggregation(inputs: Inputs) -> DataFrame:
    by_user = inputs.marked_views.groupBy(window("at"), "user").agg(F.sum("n").alias("n"))
    longer = by_user.groupBy(window("window", 2 * SPAN_MS)).agg(F.max("n").alias("most"), F.count("*").alias("users"))
    return longer.select(start_ms(), "most", "users")


@query(mode="update", sink="delta", key=("user",))
def aggregation_in_update_mode(inputs: Inputs) -> DataFrame:
    return sums(inputs.views.groupBy("user"))


@query(mode="update", sink="delta", key=("start_ms", "user"))
def windowed_aggregation_in_update_mode(inputs: Inputs) -> DataFrame:
    return sums(inputs.marked_views.groupBy(window("at"), "user")).select(start_ms(), "user", "views", "n")


@query(mode="complete", sink="delta")
def aggregation_in_complete_mode(inputs: Inputs) -> DataFrame:
    return sums(inputs.views.groupBy("user")).orderBy("n")


@query(mode="complete", sink="delta")
def global_aggregation_in_complete_mode(inputs: Inputs) -> DataFrame:
    return sums(inputs.views.groupBy())


# --- dedup


@query()
def drop_duplicates(inputs: Inputs) -> DataFrame:
    return inputs.views.dropDuplicates(["id"]).select("id", "user", "n")


@query(sink="delta")
def drop_duplicates_with_watermark(inputs: Inputs) -> DataFrame:
    return inputs.marked_views.dropDuplicates(["id", "at"]).select("id", "user", "n")


@query()
def drop_duplicates_within_watermark(inputs: Inputs) -> DataFrame:
    return inputs.marked_views.dropDuplicatesWithinWatermark(["id"]).select("id", "user", "n")


@query()
def dedup_then_aggregation(inputs: Inputs) -> DataFrame:
    once = inputs.marked_views.dropDuplicates(["id", "at"])
    return sums(once.groupBy(window("at"), "user")).select(start_ms(), "user", "views", "n")


# --- joins


def join(inputs: Inputs, how: str, views: DataFrame | None = None) -> DataFrame:
    within = F.expr(f"id = view and clicked between at and at + interval {CLICK_WITHIN_MS // 1000} seconds")
    return (inputs.marked_views if views is None else views).join(inputs.marked_clicks, within, how)


@query()
def inner_join(inputs: Inputs) -> DataFrame:
    return join(inputs, "inner").select("id", "n", "view", "price")


@query()
def left_outer_join(inputs: Inputs) -> DataFrame:
    return join(inputs, "left_outer").select("id", "n", "view", "price")


@query(sink="delta")
def right_outer_join(inputs: Inputs) -> DataFrame:
    return join(inputs, "right_outer").select("id", "n", "view", "price")


@query()
def full_outer_join(inputs: Inputs) -> DataFrame:
    return join(inputs, "full_outer").select("id", "n", "view", "price")


@query()
def dedup_then_left_semi_join(inputs: Inputs) -> DataFrame:
    # Without the dedup Spark gives a row once that has an equal one before it and comes together with its match.
    return join(inputs, "left_semi", inputs.marked_views.dropDuplicates(["id", "at"])).select("id", "n")


@query()
def join_without_bounds(inputs: Inputs) -> DataFrame:
    return inputs.views.join(inputs.clicks, F.expr("id = view")).select("id", "n", "price")


@query()
def join_of_a_stream_with_itself(inputs: Inputs) -> DataFrame:
    views = inputs.views
    return views.alias("one").join(views.alias("other"), "id").select("id", F.expr("one.n + other.n").alias("n"))


@query()
def join_then_aggregation(inputs: Inputs) -> DataFrame:
    matched = join(inputs, "inner").withColumn("n", F.col("price"))
    return sums(matched.groupBy(window("at"))).select(start_ms(), "views", "n")


@query()
def union_then_aggregation(inputs: Inputs) -> DataFrame:
    both = inputs.marked_views.select("at", "n").union(inputs.marked_clicks.select("clicked", "price"))
    return sums(both.groupBy(window("at"))).select(start_ms(), "views", "n")


# --- state of the user's own making


@query()
def transform_with_state_values_lists_maps_and_event_time_timers(inputs: Inputs) -> DataFrame:
    processor = processors.Visits()
    return inputs.visits.transformWithStateInPandas(processor, processor.schema, "Append", "EventTime")


@query(conf=TIMED)
def transform_with_state_processing_time_timers(inputs: Inputs) -> DataFrame:
    processor = processors.Reminders()
    return inputs.views.groupBy("user").transformWithState(processor, processor.schema, "Append", "ProcessingTime")


@query(conf=TIMED)
def transform_with_state_that_expires(inputs: Inputs) -> DataFrame:
    processor = processors.Expiring()
    return inputs.views.groupBy("user").transformWithState(processor, processor.schema, "Append", "ProcessingTime")


@query()
def transform_with_initial_state(inputs: Inputs) -> DataFrame:
    processor = processors.Balances()
    table = inputs.spark.createDataFrame(BALANCES, "user string, balance long").groupBy("user")
    return inputs.views.groupBy("user").transformWithState(processor, processor.schema, "Append", "None", table)


@query()
def apply_in_pandas_with_event_time_timeout(inputs: Inputs) -> DataFrame:
    told = "user string, until_ms long, views long"
    timeout = GroupStateTimeout.EventTimeTimeout
    return inputs.visits.applyInPandasWithState(processors.visits, told, "views long", "append", timeout)


@query(conf=TIMED)
def apply_in_pandas_with_processing_time_timeout(inputs: Inputs) -> DataFrame:
    by_user, told = inputs.views.groupBy("user"), "user string, views long"
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    return by_user.applyInPandasWithState(processors.silences, told, "views long", "append", timeout)
