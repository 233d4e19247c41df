"""Reference tables in a pipeline: one version a micro-batch, checkpointed with the stream and coming back with it."""

from __future__ import annotations

import datetime
import json
import shutil
import threading
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import slackwater as sw
from slackwater.inboxes.inbox import Inbox
from slackwater.ops.checkpoints import show
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol.verified_reads import load_manifest
from slackwater.sinks.files.reader import read_committed
from slackwater.spark.plan import pipeline_hash
from slackwater.streaming.query import PipelineQuery
from slackwater.tables.table import Table
from tests.spark.trickle import Trickle, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, risk string"


class Risks:
    """Ids from a folder joined with their risks from another: each row says which version of the table it met."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.trickle = spark, folder, Trickle(spark, folder)
        self.feed = folder / "feed"
        self.feed.mkdir()
        self._fed = 0
        self.made = self.table()

    def table(self, **fields: Any) -> Table:
        given = {"key": "id", "schema": SCHEMA, "feed": sw.FileFeed(self.feed), **fields}
        return sw.table("risks", **given)

    def change(self, risks: dict[int, str | None]) -> None:
        """Let the feed have a file more; None deletes."""
        self._fed += 1
        rows = [{"id": key, "risk": risk, "_deleted": risk is None} for key, risk in risks.items()]
        hidden = self.feed / f".{self._fed:08d}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.feed / hidden.name.removeprefix("."))

    def joined(self, how: str = "left") -> DataFrame:
        return self.made.join(self.trickle.rows(), "id", how)

    def start(self, frame: DataFrame | None = None, name: str = "risks", **options: Any) -> PipelineQuery:
        return (
            sw.writeStream(self.joined() if frame is None else frame)
            .queryName(name)
            .options(store=str(self.folder / "store"), workdir=str(self.folder / "work"), **options)
            .to("out", sw.FileSink(self.folder / "out"))
            .start()
        )

    def out(self) -> list[tuple[Any, ...]]:
        files = read_committed(self.folder / "out")
        rows = [tuple(row) for row in self.spark.read.parquet(*files).collect()] if files else []
        return sorted(rows, key=str)


@pytest.fixture
def risks(spark: SparkSession, tmp_path: Path) -> Risks:
    return Risks(spark, tmp_path)


def test_a_micro_batch_meets_the_changes_that_came_before_it(risks: Risks) -> None:
    risks.change({1: "low", 2: "low"})
    query = risks.start()
    risks.trickle.drop([1, 2, 3])
    query.processAllAvailable()
    risks.change({1: "high", 2: None, 3: "new"})
    risks.trickle.drop([1, 2, 3])
    query.processAllAvailable()
    risks.trickle.drop([1])
    query.processAllAvailable()
    query.stop()
    first = [(1, "low"), (2, "low"), (3, None)]
    second = [(1, "high"), (2, None), (3, "new")]
    assert risks.out() == sorted([*first, *second, (1, "high")], key=str)


def test_table_and_stream_come_back_together(risks: Risks) -> None:
    risks.change({1: "low"})
    query = risks.start()
    for number, risk in enumerate(["low", "mid", "high"]):
        risks.change({1: risk, 100 + number: risk})
        risks.trickle.drop([1])
        query.processAllAvailable()
    query.stop()
    pipeline = read_pipeline(str(risks.folder / "store" / "risks"))
    head = pipeline.state.live[-1]
    manifest = load_manifest(pipeline.store, head)
    assert manifest.vnode_count == 256 and manifest.table_offsets["risks"].offsets == {"file": "00000004.json"}
    assert manifest.table_offsets["risks"].source_type == "files"
    assert verify(pipeline.url, read_data=True).sound
    shown = show(pipeline.url).tables
    assert shown == {"risks": {"source_type": "files", "offsets": {"file": "00000004.json"}}}
    # Rolled back, the table is what it was then, and its feed is read again from there.
    plan = sw.rollback(str(risks.folder / "store" / "risks"), "1")
    (feed,) = (source for source in plan.sources if source.name == "table risks")
    assert (feed.source_type, feed.now, feed.then) == ("files", {"file": "00000004.json"}, {"file": "00000002.json"})
    shutil.rmtree(risks.folder / "work")
    risks.made = risks.table()
    again = risks.start()
    again.processAllAvailable()
    again.stop()
    assert load_manifest(pipeline.store, pipeline.state.live[0]).table_offsets["risks"].offsets == {
        "file": "00000002.json"
    }
    # The second and the third row are read again, now that the feed has all its changes.
    assert risks.out() == [(1, "high"), (1, "high"), (1, "low")]


def test_a_restart_without_new_changes_stores_no_table_again(risks: Risks) -> None:
    risks.change({number: f"risk-{number}" for number in range(5_000)})
    risks.trickle.drop([1])
    query = risks.start()
    query.processAllAvailable()
    query.stop()
    risks.made = risks.table()
    risks.trickle.drop([2])
    query = risks.start()
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "risk-1"), (2, "risk-2")]
    pipeline = read_pipeline(str(risks.folder / "store" / "risks"))
    manifests = [load_manifest(pipeline.store, entry) for entry in pipeline.state.live]
    stored = {entry.key for entry in manifests[0].objects}
    tables = manifests[-1].operators["keyed-risks"].partitions[0]
    assert tables.size_bytes == manifests[0].operators["keyed-risks"].partitions[0].size_bytes
    assert stored & {entry.key for entry in manifests[-1].objects}


def test_an_epoch_of_several_micro_batches_reads_one_version(risks: Risks) -> None:
    risks.change({1: "low"})
    query = risks.start(interval_s=3600)
    risks.trickle.drop([1])
    query.processAllAvailable()
    # processAllAvailable closes the epoch; within the next one the table stands still.
    risks.change({1: "mid"})
    risks.trickle.drop([1], [1])
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (1, "mid"), (1, "mid")]


def test_the_table_as_a_dataframe_is_of_the_same_version(risks: Risks, spark: SparkSession) -> None:
    risks.change({1: "low", 2: "low"})
    whole = risks.made.dataframe(spark).withColumnsRenamed({"id": "table_id", "risk": "table_risk"})
    looked_up = risks.joined("inner")
    frame = looked_up.join(whole, looked_up.id == whole.table_id).select("id", "risk", "table_risk")
    query = risks.start(frame)
    for risk in ("low", "mid", "high"):
        risks.change({1: risk, 2: risk})
        risks.trickle.drop([1, 2, 3])
        query.processAllAvailable()
    query.stop()
    assert risks.out() == sorted((number, risk, risk) for number in (1, 2) for risk in ("low", "mid", "high"))


def test_every_type_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    risks = Risks(spark, tmp_path)
    schema = "id bigint, day date, at timestamp, price decimal(10,2), raw binary, ok boolean, rate double, small int"
    made = risks.table(key=["id", "day"], schema=schema)
    day, at = datetime.date(2026, 11, 15), datetime.datetime(2026, 11, 15, 10, 0, 0, 123456)
    row = (7, day, at, Decimal("12.30"), b"\x00\xff", True, 0.5, -3)
    spark.createDataFrame([row], schema).coalesce(1).write.parquet(str(tmp_path / "made"))
    (part,) = (tmp_path / "made").glob("*.parquet")
    part.rename(risks.feed / "00000001.parquet")
    stream = risks.trickle.rows().selectExpr("id", "date'2026-11-15' AS day")
    query = risks.start(made.join(stream))
    risks.trickle.drop([7, 8])
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [row]


def test_a_null_key_matches_nothing(risks: Risks) -> None:
    risks.change({1: "low"})
    frame = risks.made.join(risks.trickle.rows().selectExpr("nullif(id, 2) AS id"), "id", "left")
    query = risks.start(frame)
    risks.trickle.drop([1, 2])
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (None, None)]


@pytest.mark.parametrize("kind", ["int", "decimal(10,2)"])
def test_a_key_beyond_the_tables_type_matches_nothing_and_stops_nothing(risks: Risks, kind: str) -> None:
    risks.change({1: "low"})
    risks.made = risks.table(schema=f"id {kind}, risk string")
    query = risks.start()
    risks.trickle.drop([1, 2**40])
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (2**40, None)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("00000009.json", '{"risk": "low"}\n', "without a key"),
        ("00000009.json", "{", "cannot be read"),
        ("00000009.xml", "<a/>", "of no known kind"),
        ("00000009.csv", "id,risk\nx,low\n", "cannot be read"),
    ],
)
def test_a_bad_change_stops_the_pipeline_and_nothing_of_it_is_applied(
    risks: Risks, name: str, content: str, said: str
) -> None:
    risks.change({1: "low"})
    query = risks.start()
    risks.trickle.drop([1])
    query.processAllAvailable()
    (risks.feed / name).write_text(content)
    risks.trickle.drop([1])
    with pytest.raises(sw.InvalidInput, match=said):
        query.processAllAvailable()
    (risks.feed / name).unlink()
    risks.made = risks.table()
    query = risks.start()
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (1, "low")]


def test_a_table_of_another_shape_is_refused_and_a_missing_one_is_let_go(risks: Risks) -> None:
    risks.change({1: "low"})
    risks.trickle.drop([1])
    query = risks.start()
    query.processAllAvailable()
    query.stop()
    risks.made = risks.table(schema="id bigint, risk string, more string")
    with pytest.raises(sw.Unsupported) as caught:
        risks.start()
    assert caught.value.code == "table.unsupported" and "has other columns or another key" in str(caught.value)
    risks.trickle.drop([5])
    query = risks.start(risks.trickle.rows().selectExpr("id", "'none' AS risk"))
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (5, "none")]


def test_a_second_query_on_a_table_is_refused_before_anything_is_written(risks: Risks) -> None:
    query = risks.start()
    with pytest.raises(sw.Conflict, match=r"pipeline\.running.*another query of this process reads"):
        risks.start(name="others")
    assert not (risks.folder / "store" / "others").exists()
    risks.change({1: "low"})
    risks.trickle.drop([1])
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low")]
    risks.start().stop()


def test_a_table_that_is_made_again_leaves_queries_theirs(risks: Risks, spark: SparkSession) -> None:
    first, frame = risks.made, risks.joined()
    risks.made = risks.table()
    with pytest.raises(sw.InvalidInput, match=r"table\.invalid.*two tables of the name"):
        risks.start(frame.unionByName(risks.joined()))
    # It is the same query, whichever it reads: only where versions are published differs.
    hashes = {pipeline_hash(made.join(risks.trickle.rows()), "append", []) for made in (first, risks.made)}
    assert len(hashes) == 1
    wholes = {pipeline_hash(made.dataframe(spark), "append", []) for made in (first, risks.made)}
    assert len(wholes) == 1
    risks.change({1: "low"})
    risks.trickle.drop([1])
    query = risks.start(frame)
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low")]


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda r: r.table(key="none"), "table.invalid", "has no column 'none'"),
        (lambda r: r.table(key=[]), "table.invalid", "key"),
        (lambda r: r.table(schema="id double, x string"), "table.unsupported", "whose equality says little"),
        (lambda r: r.table(schema="id bigint, x array<int>"), "table.unsupported", "which is not served"),
        (lambda r: r.table(feed="feed"), "table.invalid", "which is not a feed"),
        (
            lambda r: sw.table("a-b", key="id", schema=SCHEMA, feed=sw.FileFeed("x")),
            "name.invalid",
            "cannot be the name of a table",
        ),
        (lambda r: r.made.join(r.trickle.rows(), "none"), "table.invalid", "has no column 'none'"),
        (lambda r: r.made.join(r.trickle.rows(), ["id", "id"]), "table.invalid", "is joined on its key"),
        (lambda r: r.made.join(r.trickle.rows(), "id", "outer"), "table.invalid", "joined inner or left"),
        (
            lambda r: r.made.join(r.trickle.rows().selectExpr("id", "1 AS risk"), "id"),
            "table.invalid",
            "both the stream and the table",
        ),
        (lambda r: r.made.join(r.trickle.rows().selectExpr("array(id) AS id"), "id"), "table.invalid", "is array"),
        (lambda r: r.table(schema="id boolean, risk string").join(r.trickle.rows()), "table.invalid", "is bigint"),
    ],
)
def test_what_cannot_be_a_table_is_refused(risks: Risks, make: Any, code: str, words: str) -> None:
    with pytest.raises(sw.SlackwaterError) as caught:
        make(risks)
    assert caught.value.code == code and words in str(caught.value)


def test_a_stream_feeds_a_table_and_its_position_comes_back_with_it(spark: SparkSession, tmp_path: Path) -> None:
    risks = Risks(spark, tmp_path)

    def make() -> sw.StreamFeed:
        source = spark.readStream.schema("id bigint, risk string, _deleted boolean").option("maxFilesPerTrigger", 1)
        feed = sw.StreamFeed(source.json(str(risks.feed)))
        risks.made = risks.table(feed=feed)
        return feed

    feed = make()
    query = risks.start()
    for risk in ("low", "mid"):
        risks.change({1: risk, 2: risk if risk == "low" else None})
        feed.processAllAvailable()
        risks.trickle.drop([1, 2])
        query.processAllAvailable()
    query.stop()
    feed = make()
    again = risks.start()
    risks.change({3: "new"})
    feed.processAllAvailable()
    risks.trickle.drop([1, 3])
    again.processAllAvailable()
    again.stop()
    assert risks.out() == [(1, "low"), (1, "mid"), (1, "mid"), (2, "low"), (2, None), (3, "new")]
    pipeline = read_pipeline(str(risks.folder / "store" / "risks"))
    newest = load_manifest(pipeline.store, pipeline.state.live[-1])
    assert newest.table_offsets["risks"].offsets == {"micro_batch": "2"}
    assert newest.table_offsets["risks"].source_type == "stream"
    sw.rollback(str(risks.folder / "store" / "risks"), "1")
    feed = make()
    third = risks.start()
    feed.processAllAvailable()
    third.processAllAvailable()
    third.stop()
    # What was undone is joined again, with what the feed has delivered by then.
    assert [row[0] for row in risks.out()] == [1, 1, 1, 2, 2, 3] and (1, "low") in risks.out()
    assert verify(pipeline.url, read_data=True).sound


def streamed(risks: Risks) -> sw.StreamFeed:
    source = risks.spark.readStream.schema("id bigint, risk string")
    return sw.StreamFeed(source.json(str(risks.feed)))


def stop_feeds(spark: SparkSession) -> None:
    for query in spark.streams.active:
        if query.name is None:
            query.stop()


def test_a_stream_that_was_stopped_feeds_no_table_and_the_pipeline_says_so(risks: Risks, spark: SparkSession) -> None:
    risks.change({1: "low"})
    risks.made = risks.table(feed=(feed := streamed(risks)))
    query = risks.start()
    feed.processAllAvailable()
    risks.trickle.drop([1])
    query.processAllAvailable()
    stop_feeds(spark)
    risks.trickle.drop([1])
    with pytest.raises(sw.Unavailable, match=r"table\.unavailable.*was stopped"):
        query.processAllAvailable()
    assert risks.out() == [(1, "low")]


@pytest.mark.parametrize("by_whom", ["the pipeline", "somebody else"])
def test_a_stream_that_is_stopped_before_it_commits_is_waited_for_no_longer(
    risks: Risks, spark: SparkSession, by_whom: str
) -> None:
    feed = streamed(risks)
    feed.start(risks.folder / "fed")
    feed._waiting.append((0, []))  # taken, while Spark has nothing to commit
    told: Future[Any] = Future()

    def read() -> None:
        try:
            told.set_result(feed.read({}, risks.made.codec.schema))
        except BaseException as error:
            told.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    eventually(lambda: not feed._waiting)
    if by_whom == "the pipeline":
        feed.stop()
        assert told.result(30) is None
    else:
        stop_feeds(spark)
        assert isinstance(told.exception(30), sw.Unavailable)


def test_a_pipeline_promises_no_more_than_what_feeds_its_tables(risks: Risks, spark: SparkSession) -> None:
    lines = spark.readStream.format("socket").options(host="127.0.0.1", port=9).load()
    risks.made = risks.table(feed=sw.StreamFeed(lines.selectExpr("cast(value AS bigint) AS id", "'low' AS risk")))
    with pytest.raises(sw.Unsupported, match=r"delivery\.weaker.*the source socket cannot replay"):
        risks.start(delivery="exactly-once")


def test_an_inbox_that_nobody_would_acknowledge_cannot_feed_a_table(risks: Risks, spark: SparkSession) -> None:
    Inbox(risks.folder / "inbox").close()
    with pytest.raises(sw.Unsupported, match=r"table\.unsupported.*an inbox cannot feed a table"):
        sw.StreamFeed(sw.inbox(spark, risks.folder / "inbox").selectExpr("position AS id", "message AS risk"))


def test_a_stream_with_state_cannot_feed_a_table(risks: Risks, spark: SparkSession) -> None:
    with pytest.raises(sw.InvalidInput):
        sw.StreamFeed(spark.range(3))
    source = spark.readStream.schema("id bigint, risk string").json(str(risks.feed))
    risks.made = risks.table(feed=sw.StreamFeed(source.dropDuplicates(["id"])))
    risks.change({1: "low"})
    query = risks.start()
    risks.made.feed.processAllAvailable()  # type: ignore[attr-defined]
    risks.trickle.drop([1])
    with pytest.raises(sw.Unsupported) as caught:
        query.processAllAvailable()
    assert caught.value.code == "table.unsupported" and "has state" in str(caught.value)


def test_a_query_can_be_stopped_while_its_feed_waits_for_changes(risks: Risks) -> None:
    class Waiting(sw.FileFeed):
        reading, stopped = threading.Event(), threading.Event()

        def read(self, position: Any, schema: Any) -> Any:
            self.reading.set()
            self.stopped.wait(120)
            raise OSError("the connection was closed")

        def stop(self) -> None:
            self.stopped.set()

    feed = Waiting(risks.feed)
    risks.made = risks.table(feed=feed)
    risks.trickle.drop([1])
    query = risks.start()
    assert feed.reading.wait(60)
    eventually(lambda: len(query._coordinator._epochs) > 0)  # Spark waits for the version, too
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    ended = not stopping.is_alive()
    feed.stopped.set()
    stopping.join(60)
    assert ended and query.exception() is None


def test_a_feed_that_fails_to_stop_is_told_and_the_query_ends_all_the_same(risks: Risks) -> None:
    class Stubborn(sw.FileFeed):
        stubborn = True

        def stop(self) -> None:
            if self.stubborn:
                raise OSError("the feed's connection is gone")

    feed = Stubborn(risks.feed)
    risks.made = risks.table(feed=feed)
    risks.change({1: "low"})
    risks.trickle.drop([1])
    query = risks.start()
    query.processAllAvailable()
    with pytest.raises(OSError, match="connection is gone"):
        query.stop()
        query.awaitTermination(60)
    assert risks.out() == [(1, "low")]
    # The table was given back, and what was checkpointed is gone on from.
    feed.stubborn = False
    risks.trickle.drop([1])
    query = risks.start()
    query.processAllAvailable()
    query.stop()
    assert risks.out() == [(1, "low"), (1, "low")]
