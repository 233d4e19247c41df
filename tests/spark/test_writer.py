"""The writer in PySpark's words: functions as sinks, and what is refused with what to use instead."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import slackwater as sw
from slackwater.ops.pipelines import pipelines
from slackwater.streaming.writer import PipelineWriter
from tests.pipelines import make_pipeline
from tests.spark.trickle import Trickle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def trickle(spark: SparkSession, tmp_path: Path) -> Trickle:
    return Trickle(spark, tmp_path)


class Seen:
    """A function that notes the ids of each micro-batch, and how often the state was written for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ids: dict[int, list[int]] = {}
        self.changelogs: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: DataFrame, micro_batch: int) -> None:
        # Several actions, and the cache dropped, as functions for foreachBatch do.
        frame.persist()
        assert frame.count() == len(self.ids.setdefault(micro_batch, sorted(row.id for row in frame.collect())))
        frame.unpersist()
        found = self._folder.glob("work/*/*/checkpoint/state/0/*/*_*.changelog")
        self.changelogs = Counter((path.parent.name, path.name.partition("_")[0]) for path in found)


def test_a_function_may_run_several_actions_and_the_state_is_computed_once(trickle: Trickle) -> None:
    seen = Seen(trickle.folder)
    trickle.drop(range(10), range(5, 15), range(12, 20))
    query = trickle.to_files().to("seen", seen).trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen.ids == {0: list(range(10)), 1: list(range(10, 15)), 2: list(range(15, 20))}
    assert seen.changelogs
    assert set(seen.changelogs.values()) == {1}
    assert trickle.out() == list(range(20))


def test_a_lone_function_that_reads_nothing_or_a_part_leaves_the_state_whole(trickle: Trickle) -> None:
    seen = Seen(trickle.folder)

    def function(frame: DataFrame, micro_batch: int) -> None:
        if micro_batch == 1:
            frame.limit(1).collect()
        elif micro_batch == 2:
            seen(frame, micro_batch)

    trickle.drop(range(10), range(10, 20), range(30))
    trickle.writer().foreachBatch(function).trigger(availableNow=True).start().awaitTermination()
    assert seen.ids == {2: list(range(20, 30))}
    assert set(seen.changelogs.values()) == {1}
    # The next run has all of the state too.
    trickle.drop(range(35))
    trickle.writer().foreachBatch(seen).trigger(availableNow=True).start().awaitTermination()
    assert seen.ids[3] == list(range(30, 35))


def test_a_function_is_told_to_be_at_least_once(trickle: Trickle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="slackwater")
    writer = trickle.to_files().to("seen", lambda frame, n: None).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert "delivery is at least once (the sink seen)" in caplog.text
    assert "the sink seen is a function: after a crash a number n may come with other rows" in caplog.text


@pytest.mark.parametrize("mode", ["UPDATE", "complete"])
def test_every_output_mode_goes_to_a_function(trickle: Trickle, mode: str) -> None:
    counts: dict[int, list[int]] = {}

    def function(frame: DataFrame, micro_batch: int) -> None:
        counts[micro_batch] = sorted(row["count"] for row in frame.collect())

    writer = sw.writeStream(trickle.rows().groupBy("id").count()).queryName("modes").outputMode(mode)
    writer = writer.option("store", str(trickle.folder / "store")).foreachBatch(function).trigger(availableNow=True)
    trickle.drop([1, 1, 2], [2])
    writer.start().awaitTermination()
    assert counts == {0: [1, 2], 1: [2] if mode == "UPDATE" else [2, 2]}


@pytest.mark.parametrize(
    ("change", "code", "hint"),
    [
        (lambda w: w.format("delta"), "query.unsupported", "sw.DeltaSink"),
        (lambda w: w.toTable("t"), "query.unsupported", "sw.DeltaSink"),
        (lambda w: w.table("t"), "query.unsupported", "sw.DeltaSink"),
        (lambda w: w.insertInto("t"), "query.unsupported", "sw.DeltaSink"),
        (lambda w: w.foreach(print), "query.unsupported", "foreachBatch"),
        (lambda w: w.partitionBy("id"), "query.unsupported", "foreachBatch"),
        (lambda w: w.clusterBy("id"), "query.unsupported", "foreachBatch"),
        (lambda w: w.option("path", "/x"), "query.unsupported", "sw.FileSink"),
        (lambda w: w.options(Path="/x"), "query.unsupported", "sw.FileSink"),
        (lambda w: w.start("/x"), "query.unsupported", "sw.FileSink"),
        (lambda w: w.start(outputMode="update"), "query.unsupported", ".outputMode"),
        (lambda w: w.start(mergeSchema="true"), "query.unsupported", ".option"),
        (lambda w: w.option("checkpointLocation", "/x"), "option.invalid", 'sw.adopt("DIR", store='),
        (lambda w: w.trigger(continuous="1 second"), "query.unsupported", "processingTime"),
        (lambda w: w.trigger(realTime="1 minute"), "query.unsupported", "processingTime"),
        (lambda w: w.outputMode("upsert"), "option.invalid", "update"),
        (lambda w: w.outputMode("update").start(), "query.unsupported", "sw.DeltaSink"),
        (lambda w: w.to("x", sw.FileSink), "sink.invalid", "sw.FileSink(PATH)"),
        (lambda w: w.to("x", 7), "sink.invalid", "function"),
        (lambda w: w.to("x", sink := sw.FileSink("/x")).to("y", sink), "sink.invalid", "of its own"),
        (lambda w: w.to("x", sw.FileSink("/x")).to("y", sw.FileSink("file:///x/")), "sink.invalid", "twice"),
        (lambda w: w.to("foreachBatch", print).foreachBatch(print), "sink.invalid", "a name of its own"),
        (lambda w: w.option("drop_sink", "files").start(), "option.invalid", "line away, or the option"),
        (lambda w: w.option("fallback", "oldest").start(), "option.invalid", "fallback can be newest-verified"),
        (lambda w: w.option("metrics", "here").start(), "option.invalid", "127.0.0.1:9109"),
        (lambda w: w.option("keepLast", 5), "option.invalid", "did you mean keep_last?"),
        (lambda w: sw.writeStream(None), "option.invalid", "spark.readStream"),  # type: ignore[arg-type]
        (lambda w: w.to("x", sw.DeltaSink(5)), "sink.invalid", "as text"),  # type: ignore[arg-type]
        (lambda w: w.to("x", sw.FileSink(None)), "sink.invalid", "as text"),  # type: ignore[arg-type]
        (lambda w: w.option("workdir", "s3://bucket/work").start(), "folder.unusable", "workdir"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    trickle: Trickle, change: Callable[[PipelineWriter], Any], code: str, hint: str
) -> None:
    with pytest.raises(sw.SlackwaterError) as raised:
        change(trickle.to_files())
    assert raised.value.code == code
    assert hint in (raised.value.hint or "")
    assert not (trickle.folder / "store").exists()


def test_a_pipeline_is_no_store_for_another(trickle: Trickle) -> None:
    orders = make_pipeline(trickle.folder, 1)
    with pytest.raises(sw.InvalidInput, match=re.escape("is a pipeline, not a store of pipelines")) as raised:
        trickle.to_files(store=str(orders)).start()
    assert raised.value.code == "store.invalid"
    assert not (orders / "ids").exists()


@pytest.mark.parametrize("name", ["a/b 50%", "q#1?x", "zürich"])
def test_any_character_may_be_in_the_pipelines_name_and_in_the_path_of_its_working_directory(
    trickle: Trickle, name: str
) -> None:
    trickle.drop(range(3))
    writer = trickle.to_files(workdir=str(trickle.folder / "wörk 1%20:#?{a,b}*"))
    query = writer.queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    assert (trickle.out(), len(query.checkpoints())) == (list(range(3)), 1)
    assert [query.url] == [found.url for found in pipelines(str(trickle.folder / "store"))]


def test_what_has_become_of_sinks_is_said_and_one_may_move_after_a_clean_end(
    trickle: Trickle, caplog: pytest.LogCaptureFixture
) -> None:
    def run(ids: range, **sinks: sw.FileSink) -> str:
        caplog.clear()
        trickle.drop(ids)
        writer = trickle.writer().trigger(availableNow=True)
        for name, sink in sinks.items():
            writer.to(name, sink)
        writer.start().awaitTermination()
        return "; ".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")

    def at(name: str) -> sw.FileSink:
        return sw.FileSink(trickle.folder / name)

    assert run(range(3), a=at("a"), b=at("b")) == ""
    assert run(range(3, 6), a=at("moved")) == (
        f"since epoch 1, the sink 'a' has moved: what comes from now on goes to file://{trickle.folder}/moved; "
        "since epoch 1, the sink 'b' has gone, and gets nothing of what comes from now on"
    )
    assert run(range(6, 9), a=at("moved"), b=at("b")) == (
        "since epoch 2, the sink 'b' is new, and gets nothing of what came before"
    )
    assert (trickle.out("a"), trickle.out("moved")) == ([0, 1, 2], [3, 4, 5, 6, 7, 8])
    assert trickle.out("b") == [0, 1, 2, 6, 7, 8]


def test_a_sink_object_serves_its_pipeline_again_and_no_other(trickle: Trickle) -> None:
    sink = sw.FileSink(trickle.folder / "out")
    for ids in (range(3), range(3, 6)):
        trickle.drop(ids)
        trickle.writer().to("files", sink).trigger(availableNow=True).start().awaitTermination()
        with pytest.raises(sw.InvalidInput, match=re.escape("'files' of the pipeline 'ids' already")) as raised:
            trickle.writer().queryName("others").to("files", sink).start()
        assert raised.value.code == "sink.invalid"
        assert not (trickle.folder / "store" / "others").exists()
    assert trickle.out() == list(range(6))


def test_every_public_method_of_sparks_writer_is_served_or_refused_by_name(trickle: Trickle) -> None:
    writer = trickle.writer()
    theirs = [name for name in dir(trickle.ids().writeStream) if not name.startswith("_")]
    assert len(theirs) > 10
    assert [name for name in theirs if not hasattr(writer, name)] == []


def test_a_typo_is_pythons_own_error(trickle: Trickle) -> None:
    with pytest.raises(AttributeError, match="outputmode"):
        trickle.writer().outputmode("append")
    with pytest.raises(TypeError, match="avaliableNow"):
        trickle.writer().trigger(avaliableNow=True)  # type: ignore[call-arg]


def test_a_start_is_refused_before_it_fences_a_program_or_a_keyed_state_that_has_no_checkpoint_yet(
    trickle: Trickle,
) -> None:
    trickle.drop(range(3))
    with sw.open_pipeline(trickle.folder / "store", "ids") as program:
        with pytest.raises(sw.Unsupported, match=r"\[pipeline.foreign\].*no checkpoint yet"):
            trickle.to_files().start()
        assert program.checkpoint(offsets={}, state={}).epoch == 1, "nobody has fenced it"
    shutil.rmtree(trickle.folder / "store")
    with sw.open_keyed(sw.CheckpointConfig(trickle.folder / "store" / "ids")) as keyed:
        with pytest.raises(sw.Unsupported, match=r"\[pipeline.foreign\].*no checkpoint yet"):
            trickle.to_files().start()
        assert keyed.create_checkpoint().epoch == 1, "nobody has fenced it"
    assert not (trickle.folder / "out").exists()


def test_a_source_that_cleans_up_behind_spark_is_refused(spark: SparkSession, trickle: Trickle) -> None:
    source = spark.readStream.schema("id bigint").option("CleanSource", "delete")
    frame = source.json(str(trickle.folder / "input")).union(trickle.ids())
    writer = sw.writeStream(frame).queryName("ids").option("store", str(trickle.folder / "store"))
    with pytest.raises(sw.Unsupported, match=re.escape("[query.unsupported] cleanSource=delete")):
        writer.to("files", sw.FileSink(trickle.folder / "out")).start()
    assert not (trickle.folder / "store").exists()
