"""The file sink's entries and readers; what it shares with every sink is in ``test_sink_contract.py``."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from slackwater.errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unsupported
from slackwater.formats import sealed
from slackwater.sinks.files.reader import read_committed
from slackwater.sinks.files.sink import FileSink

from .conftest import UID, Bench, new_attempt

TAG = hashlib.sha256(f"{UID}/totals".encode()).hexdigest()[:8]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("files", tmp_path / "folder")


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2)


def test_files_are_published_in_the_order_of_their_epochs(spark: SparkSession, bench: Bench) -> None:
    sink, attempts = bench.sink(), [new_attempt() for _ in range(3)]
    for epoch, attempt in zip((1, 2, 11), attempts, strict=True):
        sink.commit([sink.stage(numbers(spark, epoch, epoch + 2), attempt, 0)], epoch)
    published = sorted(path.name for path in bench.root.glob("*.parquet"))
    assert published == [
        f"{epoch:020d}-{number:05d}-{attempt}-{TAG}.parquet"
        for epoch, attempt in zip((1, 2, 11), attempts, strict=True)
        for number in (0, 1)
    ]
    assert read_committed(bench.root) == [str(bench.root / name) for name in published]
    assert not list(bench.root.glob("_slackwater/*/*/data/*"))


def test_a_delta_table_is_no_folder_for_files(bench: Bench) -> None:
    DeltaTable.create(str(bench.root), pa.schema([("id", pa.int64())]))
    before = bench.paths()
    with pytest.raises(InvalidInput, match="is a Delta table") as raised:
        bench.sink()
    assert raised.value.code == "sink.invalid" and "sw.DeltaSink" in str(raised.value.hint)
    assert bench.paths() == before


def test_an_epoch_that_is_committed_and_not_published_is_read_where_it_was_staged(
    spark: SparkSession, bench: Bench, arm
) -> None:
    sink = bench.sink()
    sink.commit([sink.stage(numbers(spark, 0, 4), new_attempt(), 0)], 1)
    staged = sink.stage(numbers(spark, 4, 8), new_attempt(), 0)
    arm("files.publish.between")
    with pytest.raises(SlackwaterError):
        sink.commit([staged], 2)
    files = read_committed(bench.root)
    assert [Path(file).parent == bench.root for file in files] == [True, True, True, False]
    assert sorted(row.id for row in spark.read.parquet(*files).collect()) == [*range(8)]
    assert bench.plain_rows() == [*range(6)]


@pytest.mark.parametrize("ids", [(1, 2), ()], ids=["rows", "no rows"])
def test_a_micro_batch_that_an_epoch_was_cut_before_is_deleted(
    bench: Bench, ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, attempt, other = bench.sink(), new_attempt(), new_attempt()
    staged = [bench.stage_by_hand(attempt, *ids)]
    bench.stage_by_hand(attempt, 3)  # done again by the next run, in another attempt
    later = bench.stage_by_hand(other, 3)
    with monkeypatch.context() as dying:
        dying.setattr(sink._target, "clear", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.commit(staged, 1)
    assert bench.rows() == bench.plain_rows() == [*ids]
    # The next start drives the newest epoch again.
    for heir in (bench.sink(), bench.sink()):
        heir.commit(staged, 1)
        assert {path.name for path in bench.root.glob("_slackwater/*/*/data/*")} == {other}
    heir.commit([later], 2)
    assert bench.rows() == bench.plain_rows() == [*ids, 3]
    assert not list(bench.root.glob("_slackwater/*/*/data/*"))


def test_a_consumer_may_take_published_files_away(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    sink.commit([staged], 1)
    for path in bench.root.glob("*.parquet"):
        path.unlink()
    fresh = bench.sink()
    fresh.commit([staged], 1)
    assert read_committed(bench.root) == [] and fresh.epoch() == 1


def test_one_epoch_of_two_attempts_is_a_conflict(bench: Bench) -> None:
    sink = bench.sink()
    sink.commit([bench.stage_by_hand(new_attempt(), 1)], 1)
    with pytest.raises(Conflict) as caught:
        sink.commit([bench.stage_by_hand(new_attempt(), 2)], 1)
    assert caught.value.code == "sink.ahead" and "has epoch" in str(caught.value)
    with pytest.raises(Corrupt):
        sink.commit([bench.stage_by_hand(new_attempt(), 3), bench.stage_by_hand(new_attempt(), 4)], 2)
    assert bench.rows() == [1]


def test_the_log_is_bounded_and_still_remembers_the_newest_epoch(bench: Bench) -> None:
    sink = bench.sink()
    for epoch in range(1, 121):
        sink.commit([bench.stage_by_hand(new_attempt(), epoch)], epoch)
    assert bench.versions() == 100
    assert bench.sink().epoch() == 120
    stage = bench.stage_by_hand(new_attempt(), 999)
    bench.sink().commit([stage], 3)
    assert bench.rows() == bench.plain_rows() == [*range(1, 121)]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "spaced", "swapped", "hostile"])
def test_a_damaged_entry_is_never_believed(bench: Bench, damage: str) -> None:
    sink = bench.sink()
    staged = bench.stage_by_hand(new_attempt(), 1)
    sink.commit([staged], 1)
    sink.commit([bench.stage_by_hand(new_attempt(), 2)], 2)
    log = bench.root / "_slackwater" / UID / "totals" / "log"
    entry = log / f"{2:020d}.json"
    data = entry.read_bytes()
    damaged = {
        "flipped": data.replace(b'"rows":1', b'"rows":2'),
        "cut": data[:-1],
        "empty": b"",
        "spaced": data.replace(b":", b": "),
        "swapped": (log / f"{1:020d}.json").read_bytes(),
        "hostile": data.replace(b".parquet", b"./../x"),
    }[damage]
    assert damaged != data
    entry.write_bytes(damaged)
    for call in (lambda: read_committed(bench.root), lambda: bench.sink().commit([staged], 2)):
        with pytest.raises(Corrupt) as caught:
            call()
        assert caught.value.code == "sink.damaged" and "entry" in str(caught.value)


def test_an_entry_of_a_newer_format_is_unsupported_and_not_corrupt(bench: Bench) -> None:
    bench.sink().commit([bench.stage_by_hand(new_attempt(), 1)], 1)
    entry = bench.root / f"_slackwater/{UID}/totals/log/{1:020d}.json"
    newer = {**json.loads(entry.read_text())["body"], "version": 2}
    entry.write_bytes(sealed.seal(json.dumps(newer, separators=(",", ":")).encode()))
    with pytest.raises(Unsupported) as caught:
        read_committed(bench.root)
    assert caught.value.code == "format.unknown_version" and "the entry" in str(caught.value)


def test_an_entry_is_canonical_and_holds_its_own_digest(bench: Bench) -> None:
    attempt = new_attempt()
    staged = bench.stage_by_hand(attempt, 5)
    bench.sink().commit([staged], 7)
    text = (bench.root / f"_slackwater/{UID}/totals/log/{7:020d}.json").read_text()
    entry = json.loads(text)["body"]
    size = next(bench.root.glob("*.parquet")).stat().st_size
    assert entry == {
        "version": 1,
        "epoch": 7,
        "attempt": attempt,
        "files": [
            {
                "staged": staged["files"][0]["path"],
                "published": f"{7:020d}-00000-{attempt}-{TAG}.parquet",
                "size_bytes": size,
                "rows": 1,
            }
        ],
    }
    assert text.startswith('{"body":' + json.dumps(entry, sort_keys=True, separators=(",", ":")))


def test_the_owner_is_written_with_the_first_entry_and_not_before(bench: Bench) -> None:
    sink, owner = bench.sink(), bench.root / "_slackwater/owners/orders/totals.json"
    sink.commit([{"attempt": new_attempt(), "files": [], "schema": {"type": "struct", "fields": []}}], 1)
    assert not owner.exists()
    sink.commit([bench.stage_by_hand(new_attempt(), 1)], 2)
    assert json.loads(owner.read_bytes()) == {"uid": UID}
    owner.write_bytes(b"{")
    with pytest.raises(Corrupt):
        bench.sink()


def test_only_files_of_ours_are_committed_files(bench: Bench) -> None:
    bench.sink().commit([bench.stage_by_hand(new_attempt(), 1)], 1)
    pq.write_table(pa.table({"id": [99]}), bench.root / "foreign.parquet")
    assert bench.rows() == [1]


def test_a_folder_that_is_not_there_has_no_committed_files_to_list(bench: Bench) -> None:
    with pytest.raises(NotFound) as caught:
        read_committed(bench.root / "nothing here")
    assert caught.value.code == "folder.not_found" and "nothing here" in str(caught.value)


def test_a_reader_sees_whole_epochs_while_they_are_committed(bench: Bench) -> None:
    epochs, rows = 60, 4
    sink = bench.sink()
    seen: set[int] = set()

    def write() -> None:
        for epoch in range(epochs):
            ids = range(epoch * rows, (epoch + 1) * rows)
            sink.commit([bench.stage_by_hand(new_attempt(), *ids)], epoch + 1)

    bench.root.mkdir()
    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        try:
            got = bench.rows()
        except (FileNotFoundError, SlackwaterError):
            continue  # published between listing and opening, or too busy to list
        assert got == [*range(len(got))] and len(got) % rows == 0
        seen.add(len(got))
    writer.join()
    assert bench.rows() == [*range(epochs * rows)]
    assert len(seen) > 3, "the reader never met the writer"


@pytest.mark.parametrize(
    ("url", "options"), [("memory:x", {}), ("az://container/x", {"account_name": "a", "skip_signature": "true"})]
)
def test_a_target_that_executors_do_not_reach_is_refused(url: str, options: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        FileSink(url, storage_options=options)
    assert caught.value.code == "sink.invalid"
