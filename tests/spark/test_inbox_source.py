"""An inbox as a stream: what a pipeline reads, acknowledges and refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import slackwater as sw
from slackwater.errors import Conflict, InvalidInput, NotFound, Unsupported
from slackwater.inboxes.files import read_covered
from slackwater.inboxes.inbox import Inbox
from slackwater.inboxes.reader import Message
from slackwater.ops.pipelines import read_pipeline
from slackwater.protocol.verified_reads import load_manifest
from slackwater.sources.inbox import record_batch
from slackwater.streaming.query import PipelineQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    opened = Inbox(tmp_path / "inbox")
    yield opened
    opened.close()


def start(
    spark: SparkSession, root: Path, seen: list[Any], name: str = "clicks", acknowledge: str = "oldest", **options: Any
) -> PipelineQuery:
    frame = sw.inbox(spark, root / "inbox", **options)
    writer = sw.writeStream(frame).queryName(name).option("store", root / "store").option("workdir", root / "work")
    writer = writer.option("keep_last", 3 if acknowledge == "newest" else 2).trigger(availableNow=True)
    writer = writer.option("acknowledge", acknowledge)
    return writer.to("seen", lambda frame, number: seen.append([tuple(row) for row in frame.collect()])).start()


def test_a_pipeline_reads_by_position_and_lets_go_of_what_its_oldest_checkpoint_covers(spark, tmp_path, inbox, caplog):
    caplog.set_level("INFO", "slackwater")
    inbox.append([f"é{number}".encode() for number in range(1, 8)]).result()
    seen: list[Any] = []
    start(spark, tmp_path, seen, max_rows=3).awaitTermination()
    assert [[row[0] for row in rows] for rows in seen] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [row[2] for row in seen[0]] == ["é1", "é2", "é3"]
    assert seen[0][0][1].year >= 2026
    covered = read_covered(tmp_path / "inbox")
    assert covered is not None and covered.position == 6, "two checkpoints are live, at 6 and at 7"
    inbox.append([b"8"]).result()

    # Another pipeline on the same inbox would have what it needs dropped.
    with pytest.raises(Conflict, match=r"inbox\.other_pipeline"):
        start(spark, tmp_path, seen, "others")

    # The next run goes on after the newest checkpoint; with what it adds, one more is let go.
    start(spark, tmp_path, seen).awaitTermination()
    assert [row[0] for row in seen[3]] == [8]
    assert read_covered(tmp_path / "inbox").position == 7  # type: ignore[union-attr]

    # A wiped inbox, which has got further in the meantime, is another one.
    inbox.close()
    shutil.rmtree(tmp_path / "inbox")
    fresh = Inbox(tmp_path / "inbox")
    fresh.append([b"x"] * 20).result()
    fresh.close()
    with pytest.raises(Exception, match=r"\[inbox\.swapped\]"):
        start(spark, tmp_path, seen).awaitTermination()
    assert len(seen) == 4


def test_told_so_a_pipeline_lets_go_up_to_its_newest_checkpoint_and_then_no_rollback_goes_past_it(
    spark, tmp_path, inbox
):
    url, seen = str(tmp_path / "store" / "clicks"), list[Any]()
    inbox.append([b"%d" % number for number in range(1, 8)]).result()
    start(spark, tmp_path, seen, max_rows=3, acknowledge="newest").awaitTermination()
    covered = read_covered(tmp_path / "inbox")
    assert covered is not None and covered.position == 7
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"rollback\.impossible.*stands at message 6 .* up to 7"):
            sw.rollback(url, "2", dry_run=dry_run)

    # Told otherwise, later checkpoints keep what they need; what is gone stays on record.
    inbox.append([b"8"]).result()
    start(spark, tmp_path, seen).awaitTermination()
    inbox.append([b"9"]).result()
    start(spark, tmp_path, seen).awaitTermination()
    assert read_covered(tmp_path / "inbox").position == 8  # type: ignore[union-attr]
    sw.rollback(url, "4")
    start(spark, tmp_path, seen).awaitTermination()
    assert [row[0] for rows in seen[3:] for row in rows] == [8, 9, 9]
    manifest = read_pipeline(url)
    (source,) = load_manifest(manifest.store, manifest.state.live[-1]).source_offsets.values()
    assert source.metadata == {"acknowledged": "7"}


def test_messages_that_are_no_text_are_read_as_bytes_or_refused():
    messages = [Message(1, 1_000, b"\xc3"), Message(2, 1_000, b"\xa9")]  # only together they would be one letter
    with pytest.raises(Unsupported, match=r"inbox\.unsupported.*is not UTF\-8"):
        record_batch(messages, binary=False)
    assert record_batch(messages, binary=True).column("message").to_pylist() == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize("options", [{"max_rows": 0}, {"partitions": 0}, {"partitions": True}, {"max_rows": "3"}])
def test_options_out_of_their_bounds_are_refused(tmp_path, options):
    with pytest.raises(InvalidInput, match=r"inbox\.invalid.*of an inbox cannot be"):
        sw.inbox(None, tmp_path, **options)  # type: ignore[arg-type]


def test_a_folder_that_no_receiver_has_made_is_refused_with_the_command(tmp_path):
    with pytest.raises(NotFound, match="slackwater receive http"):
        sw.inbox(None, tmp_path)  # type: ignore[arg-type]
