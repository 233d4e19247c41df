"""A reference table as the user sees it: ``join`` and ``dataframe``."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from ..errors import Conflict, InvalidInput
from ..keyed.vnodes import VNODE_COUNT
from ..spark.working_directory import working_root
from .feeds import Feed
from .lookup import make_lookup, plan_name, version_of_task
from .published_versions import PublishedVersions
from .rows import RowCodec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PARTITIONS = 8
_ROWS = 10_000
# By their names in plans, for as long as the process lives: a query may be all that is left of a table.
_made: dict[str, Table] = {}


def table(name: str, *, key: str | Sequence[str], schema: str | StructType, feed: Feed) -> Table:
    """Make a table that a pipeline keeps current from a feed of changes, and checkpoints with its stream.

    ``key`` names the columns that tell rows apart, ``schema`` all columns, as for ``spark.read.schema``. The pipeline
    whose query uses it finds it by its name, which stays the same from run to run.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r:.100} cannot be the name of a table",
            code="name.invalid",
            hint="use letters, digits and underscores, up to 64, not a digit first",
        )
    if not isinstance(feed, Feed):
        raise InvalidInput(
            f"the table {name!r} is given {feed!r:.100}, which is not a feed",
            code="table.invalid",
            hint="feed=sw.FileFeed(DIR), sw.StreamFeed(df), or an object of a class that extends sw.Feed",
        )
    types = cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    made = Table(
        name,
        RowCodec(name, to_arrow_schema(types, timezone="UTC"), [key] if isinstance(key, str) else key),
        types,
        feed,
    )
    _made[plan_name(name, made.published)] = made
    return made


class Table:
    """A reference table. Within a micro-batch, and a checkpoint, all that reads it sees one version."""

    def __init__(self, name: str, codec: RowCodec, types: StructType, feed: Feed) -> None:
        self.name, self.codec, self.types, self.feed = name, codec, types, feed
        # Named before a run makes it: it is in the query's plan.
        self.published = PublishedVersions(working_root() / f"table-{name}-{secrets.token_hex(8)}")
        self._taken = threading.Lock()

    def take(self) -> None:
        """Let one run have the table until it gives it back: micro-batches of two would read each other's versions."""
        if not self._taken.acquire(blocking=False):
            raise self._in_use()

    def give_back(self) -> None:
        self.published.close()
        self._taken.release()

    def refuse_taken(self) -> None:
        """Refuse the table of a query that runs."""
        if self._taken.locked():
            raise self._in_use()

    def _in_use(self) -> Conflict:
        return Conflict(
            f"another query of this process reads the table {self.name!r}",
            code="pipeline.running",
            hint="make a table for each query, by a call of sw.table and with a feed of its own; or stop() the other",
        )

    def join(self, frame: DataFrame, on: str | Sequence[str] | None = None, how: str = "inner") -> DataFrame:
        """Join a stream with the table's row of the same key; ``on`` names the stream's columns, if not as the key's.

        ``how`` is ``inner`` or ``left``. A watermark does not pass through: call ``withWatermark`` on the result.
        """
        columns = self.codec.key if on is None else [on] if isinstance(on, str) else list(on)
        if how not in ("inner", "left"):
            raise InvalidInput(
                f"a table is joined inner or left, not {how!r:.50}",
                code="table.invalid",
                hint="for any other join there is dataframe(spark), which reads the table whole in each micro-batch",
            )
        if missing := [name for name in columns if name not in frame.columns]:
            raise InvalidInput(
                f"the stream has no column {missing[0]!r:.100} to join the table {self.name!r} on",
                code="table.invalid",
                hint=f"its columns are {', '.join(frame.columns)}; say on=NAME where it is not called as the key is",
            )
        if len(columns) != len(self.codec.key):
            raise InvalidInput(
                f"the table {self.name!r} is joined on its key ({', '.join(self.codec.key)}), not on {columns!r:.100}",
                code="table.invalid",
                hint=f"name as many columns of the stream: {', '.join(frame.columns)}",
            )
        for name, column in zip(self.codec.key, columns, strict=True):
            (given,) = to_arrow_schema(StructType([frame.schema[column]]), timezone="UTC").types
            if not self.codec.can_match(name, given):
                raise InvalidInput(
                    f"the stream's column {column!r} is {frame.schema[column].dataType.simpleString()}, and the key "
                    f"{name!r} of the table {self.name!r} {self.types[name].dataType.simpleString()}: which values are "
                    "equal cannot be told",
                    code="table.invalid",
                    hint="cast it in the stream first: withColumn",
                )
        if both := set(frame.columns) & set(self.codec.values):
            raise InvalidInput(
                f"both the stream and the table {self.name!r} have a column {min(both)!r}",
                code="table.invalid",
                hint="rename it in the stream first: withColumnRenamed",
            )
        added = [field for field in self.types.fields if field.name in self.codec.values]
        schema = StructType(
            [*frame.schema.fields, *(StructField(field.name, field.dataType, nullable=True) for field in added)]
        )
        return frame.mapInArrow(make_lookup(self.published, self.codec, columns, how), schema)

    def dataframe(self, spark: SparkSession) -> DataFrame:
        """Give the table as a DataFrame, for any join; in a stream, each micro-batch reads its version whole."""
        published, codec, types = self.published, self.codec, self.types

        class Source(DataSource):
            @classmethod
            def name(cls) -> str:
                return plan_name(codec.table, published)

            def schema(self) -> StructType:
                return types

            def reader(self, schema: StructType) -> DataSourceReader:
                return _Reader(published, codec)

        spark.dataSource.register(Source)
        return spark.read.format(Source.name()).load()


class _Reader(DataSourceReader):
    """Planned once, read anew in every micro-batch."""

    def __init__(self, published: PublishedVersions, codec: RowCodec) -> None:
        self._published, self._codec = published, codec

    def partitions(self) -> Sequence[InputPartition]:
        step = VNODE_COUNT // _PARTITIONS
        return [InputPartition((first, first + step)) for first in range(0, VNODE_COUNT, step)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        state = version_of_task(self._published, self._codec.table)
        rows: list[tuple[bytes, bytes]] = []
        for vnode in range(*cast(tuple[int, int], partition.value)):
            rows.extend(state.scan(vnode))
            if len(rows) >= _ROWS:
                yield self._codec.decode_rows(rows)
                rows = []
        if rows:
            yield self._codec.decode_rows(rows)


def tables_of(frame: DataFrame) -> dict[str, Table]:
    """Find the tables of this process that a query reads, by the names in its plan."""
    text = frame._jdf.queryExecution().analyzed().toString()
    found: dict[str, Table] = {}
    for name, made in _made.items():
        if name in text and found.setdefault(made.name, made) is not made:
            raise InvalidInput(
                f"the query reads two tables of the name {made.name!r}",
                code="table.invalid",
                hint="make it once, and join with that; tables that differ have names that do",
            )
    return found
