"""One streaming query of each kind, and parts to make others of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from demo.payments_stream import totals

SCHEMA = "merchant string, amount bigint, at timestamp, note string, parts array<int>"


# Without types, from which Spark would choose another kind of function.
def plus_one(value):
    return value + 1


def add_one(value):
    return value + 1


def double(values: pd.Series) -> pd.Series:
    return values * 2


def remember(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"merchant": [key[0]]})


class Remember(StatefulProcessor):
    def init(self, handle: Any) -> None: ...
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"merchant": [key[0]]})

    def close(self) -> None: ...


class Queries:
    """Queries over one folder of files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def files(self, schema: str = SCHEMA, delay: str = "10 minutes") -> DataFrame:
        return self.spark.readStream.schema(schema).json(str(self.folder)).withWatermark("at", delay)

    def others(self) -> DataFrame:
        return self.files().selectExpr("merchant AS shop", "at AS paid_at", "amount AS paid")

    def joined(self, how: str = "inner", left: DataFrame | None = None) -> DataFrame:
        condition = "shop = merchant AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR"
        return (self.files() if left is None else left).join(self.others(), F.expr(condition), how)

    def windowed(self, *window: str) -> DataFrame:
        counted = self.files().groupBy(F.window("at", *window), "merchant")
        return counted.agg(F.sum("amount").alias("total"), F.count("*"))

    def remembered(self, state: str = "n bigint", timeout: str = GroupStateTimeout.NoTimeout) -> DataFrame:
        grouped = self.files().groupBy("merchant")
        return grouped.applyInPandasWithState(remember, "merchant string", state, "append", timeout)

    def sql(self, text: str) -> DataFrame:
        self.files().createOrReplaceTempView("payments")
        return self.spark.sql(text)

    def catalogue(self) -> dict[str, DataFrame]:
        """Make one query of each kind; each time anew."""
        files, rate = self.files(), self.spark.readStream.format("rate").load()
        static = self.spark.createDataFrame([("hotel", 1)], "merchant string, rank int")
        return {
            "demo": totals(self.spark, rows=1_000, rows_per_batch=100),
            "aggregate": self.windowed("10 minutes"),
            "sliding window": self.windowed("10 minutes", "5 minutes", "1 minute"),
            "session window": files.groupBy(F.session_window("at", "5 minutes"), "merchant").count(),
            "global aggregate": files.agg(F.sum("amount") / F.count("note"), F.sum("amount")),
            "deduplicate": files.dropDuplicates(["merchant", "at"]),
            "deduplicate within watermark": files.dropDuplicatesWithinWatermark(["merchant"]),
            "inner join": self.joined().select("merchant", "paid"),
            "left outer join": self.joined("left_outer"),
            "self-join": files.alias("a").join(files.alias("b"), F.expr("a.merchant = b.merchant AND a.at = b.at")),
            "self-union": files.union(files),
            "join with a table": files.join(static, "merchant").groupBy("rank").count(),
            "UDF": rate.select(F.udf(plus_one, "bigint")("value"), F.udf(lambda value: value, "bigint")("value")),
            "pandas UDF": rate.select(
                pandas_udf(double, "bigint")("value")  # type: ignore[call-overload]
            ).where("value > 1"),
            "mapInPandas": rate.mapInPandas(lambda frames: frames, rate.schema),
            "applyInPandasWithState": self.remembered(),
            "transformWithState": files.groupBy("merchant").transformWithState(
                Remember(), "merchant string", "Append", "None"
            ),
            "transformWithStateInPandas": files.groupBy("merchant").transformWithStateInPandas(
                Remember(), "merchant string", "Update", "EventTime"
            ),
            "limit": rate.limit(5),
            "time of day": rate.select(F.current_timestamp(), F.current_date(), F.to_date("timestamp")),
            "instant": files.where(F.col("at") > F.lit(datetime(2026, 1, 1, tzinfo=UTC))),
            "chance": files.select(
                F.rand(), F.uuid(), F.shuffle("parts"), F.expr("randstr(5)"), F.expr("uniform(1, 5)")
            ).sample(0.5),
            "lambda function": files.select(F.transform("parts", lambda part: part + 1)),
            "observed": files.observe("seen", F.count("*").alias("rows")),
            "numbers": rate.join(self.spark.range(5), F.col("id") == F.col("value")),
            "SQL": self.sql("SELECT merchant, sum(amount) AS s FROM payments GROUP BY merchant HAVING count(*) > 2"),
            "common table": self.sql(
                "WITH big AS (SELECT DISTINCT merchant FROM payments WHERE amount > (SELECT max(id) FROM range(9))) "
                "SELECT merchant FROM big UNION ALL SELECT upper(merchant) FROM big"
            ),
        }


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("merchant").agg(F.sum("amount").alias("total"), F.count("*").alias("payments"))
