"""The payments as a Spark stream: the data source ``payments`` under the query ``totals``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from demo import payments as p

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = "id bigint, merchant string, amount_cents bigint, at timestamp"
_ARROW_SCHEMA = pa.schema(
    {"id": pa.int64(), "merchant": pa.string(), "amount_cents": pa.int64(), "at": pa.timestamp("us", tz="UTC")}
)


def totals(spark: SparkSession, *, rows: int, rows_per_batch: int, partitions: int = 2) -> DataFrame:
    """Total ``rows`` payments by merchant and ten-minute window, each payment once; for output mode append."""
    spark.dataSource.register(PaymentsSource)
    source = spark.readStream.format(PaymentsSource.name())
    options = {"rows": rows, "rows_per_batch": rows_per_batch, "partitions": partitions}
    paid = source.options(**options).load().withWatermark("at", f"{p.WATERMARK_DELAY_MS} milliseconds")
    # With the event time in the key, the watermark bounds the state.
    return total_by_window(paid.dropDuplicates(["id", "at"]))


def total_by_window(paid: DataFrame) -> DataFrame:
    return (
        paid.groupBy(F.window("at", f"{p.WINDOW_MS} milliseconds").alias("window"), "merchant")
        .agg(F.sum("amount_cents").alias("amount_cents"), F.count("*").alias("payments"))
        .select(F.col("window.start").alias("window_start"), "merchant", "amount_cents", "payments")
    )


def record_batch(start: int, end: int) -> pa.RecordBatch:
    """Make payments ``start`` to ``end`` (exclusive) as ``payment`` does, a column at a time."""
    row = np.arange(start, end, dtype=np.uint64)
    kind = np.where(row % 2 == 1, p.draw(row, p.KIND, 100), 100)
    duplicate = (kind < p.DUPLICATE_PERCENT) & (row >= p.DUPLICATE_FROM)
    late = (kind >= p.DUPLICATE_PERCENT) & (kind < p.DUPLICATE_PERCENT + p.LATE_PERCENT) & (row >= p.LATE_FROM)
    row = np.where(duplicate, row - 1 - 2 * p.draw(row, p.DISTANCE, 100), row)

    ids = row.astype(np.int64)
    merchant = np.minimum(*(p.draw(row, field, len(p.MERCHANTS)) for field in (p.MERCHANT, p.MERCHANT_AGAIN)))
    amount_cents = 100 + p.draw(row, p.AMOUNT, 20_000).astype(np.int64)
    lateness_ms = p.LATE_BY_MS + p.draw(row, p.LATENESS, p.LATE_BY_MS).astype(np.int64)
    jitter_ms = p.draw(row, p.JITTER, 2 * p.JITTER_MS + 1).astype(np.int64) - p.JITTER_MS
    at_ms = p.EPOCH_MS + ids * p.STEP_MS + np.where(late, -lateness_ms, jitter_ms)
    return _table(ids, merchant, amount_cents, at_ms)


def flush_batch(rows: int) -> pa.RecordBatch:
    """Make the one-row batch that ends a run of ``rows``."""
    last = p.flush(rows)
    values = (last.id, p.MERCHANTS.index(last.merchant), last.amount_cents, last.at_ms)
    return _table(*(np.array([value]) for value in values))


def _table(
    ids: NDArray[Any], merchant: NDArray[Any], amount_cents: NDArray[Any], at_ms: NDArray[Any]
) -> pa.RecordBatch:
    """Put columns of numbers together; ``merchant`` is the place in the list of merchants."""
    names = "".join(p.MERCHANTS).encode()
    ends = np.cumsum([0, *map(len, p.MERCHANTS)], dtype=np.int32)
    merchants = pa.StringArray.from_buffers(len(p.MERCHANTS), pa.py_buffer(ends), pa.py_buffer(names))
    arrays = [_numbers(ids), merchants.take(_numbers(merchant)), _numbers(amount_cents), _numbers(at_ms * 1_000)]
    columns = [array.cast(field.type) for array, field in zip(arrays, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _numbers(values: NDArray[Any]) -> pa.Array:
    # pa.array() imports pandas, which costs each Python worker of Spark a second.
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values.astype(np.int64))])


class Span(InputPartition):
    """The sequence numbers that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class PaymentsSource(DataSource):
    """Payments, with the options ``rows``, ``rows_per_batch`` and ``partitions`` (2 unless told)."""

    @classmethod
    def name(cls) -> str:
        return "payments"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> PaymentsReader:
        return PaymentsReader(
            rows=self._option("rows"),
            rows_per_batch=self._option("rows_per_batch", most=p.MAX_ROWS_PER_BATCH),
            partitions=self._option("partitions", "2"),
        )

    def _option(self, name: str, default: str = "", most: int = 2**53) -> int:
        text = self.options.get(name, default)
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise ValueError(f"the option {name} of the payments source is {text!r}: it goes from 1 to {most}")
        return int(text)


class PaymentsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Serve the run in micro-batches that end at multiples of ``rows_per_batch``; after the last row, nothing more."""

    def __init__(self, *, rows: int, rows_per_batch: int, partitions: int) -> None:
        self.rows = rows
        self.rows_per_batch = rows_per_batch
        self.splits = partitions

    def initialOffset(self) -> dict[str, Any]:
        return {"seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows_per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Go on to the next multiple, whatever the limit: late rows are sure to be late only in small micro-batches."""
        boundary = (start["seq"] // self.rows_per_batch + 1) * self.rows_per_batch
        return {"seq": min(boundary, self.rows)}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"seq": self.rows}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the end of a run is known from the start."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Span]:
        size = end["seq"] - start["seq"]
        edges = [start["seq"] + size * split // self.splits for split in range(self.splits + 1)]
        return [Span(low, high) for low, high in pairwise(edges) if low < high]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        yield record_batch(partition.start, min(partition.end, self.rows - 1))
        if partition.end == self.rows:
            yield flush_batch(self.rows)
