"""What every sink with staged files must hold to, whatever it writes."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from slackwater import sinks
from slackwater.errors import Conflict, Corrupt, InvalidInput, SlackwaterError
from slackwater.protocol.sinks import Sink
from slackwater.sinks.files.reader import read_committed

from .conftest import OTHER_UID, UID, Bench, new_attempt

SOURCES = Path(sinks.__file__).parent


def failpoints_of(kind: str) -> list[str]:
    """Every failpoint of a sink, read from its source."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob(f"{kind}/*.py"))]
    return [point for source in sources for point in re.findall(r'reach\("([^"]+)"\)', source)]


POINTS = [(kind, point) for kind in ("delta", "files") for point in failpoints_of(kind)]
STAGE_POINTS = [place for place in POINTS if ".ticket." in place[1]]
UNDO_POINTS = [place for place in POINTS if ".undo." in place[1]]
COMMIT_POINTS = [place for place in POINTS if place not in STAGE_POINTS + UNDO_POINTS]


def test_the_failpoints_stand_between_the_durable_steps() -> None:
    assert {point for _, point in STAGE_POINTS} == {"delta.ticket.after", "files.ticket.after"}
    assert {point for _, point in COMMIT_POINTS} == {
        *("delta.untick.after", "delta.commit.before", "delta.commit.after"),
        *("files.untick.after", "files.entry.after", "files.publish.between", "files.publish.after"),
    }
    assert {point for _, point in UNDO_POINTS} == {
        *("delta.undo.after", "files.undo.before", "files.undo.entry", "files.undo.between"),
    }


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2)


def test_binding_leaves_no_mark(bench: Bench) -> None:
    sink = bench.sink()
    assert sink.epoch() == 0 and sink.staged() == []
    assert not bench.root.exists()


@pytest.mark.parametrize(("pipeline", "name"), [("orders", "alerts"), ("returns", "totals")])
def test_a_sink_object_is_one_sink_of_one_pipeline(bench: Bench, pipeline: str, name: str) -> None:
    sink = bench.sink()
    with pytest.raises(InvalidInput, match=r"'totals' of the pipeline 'orders' already.*for each \.to") as caught:
        sink.bind(pipeline, name, OTHER_UID)
    assert caught.value.code == "sink.invalid"
    # Who was first goes on as if nothing had been, and starts again in the same process.
    bench.fill(sink, 1)
    sink.bind("orders", "totals", UID)
    bench.fill(sink, 2)
    assert bench.sink().epoch() == 2 and bench.rows() == [1, 2]
    # The target is not the object: another sink may write there, through one of its own.
    bench.sink(name, pipeline=pipeline, uid=OTHER_UID)


def test_a_sink_object_changes_its_uid_only_before_it_is_used(bench: Bench) -> None:
    sink = bench.sink(uid=OTHER_UID)
    sink.bind("orders", "totals", UID)  # as a claim does when another driver began the pipeline
    bench.fill(sink, 1)
    sink.bind("orders", "totals", UID)
    with pytest.raises(InvalidInput, match="in another store, already") as caught:
        sink.bind("orders", "totals", OTHER_UID)
    assert caught.value.code == "sink.invalid"
    bench.fill(sink, 2)
    assert bench.sink().epoch() == 2 and bench.rows() == [1, 2]


def test_a_target_that_refuses_an_identity_leaves_the_object_the_one_it_has(bench: Bench) -> None:
    bench.fill(bench.sink(), 1)
    sink = bench.sink()
    with pytest.raises(Conflict) as caught:
        sink.bind("orders", "totals", OTHER_UID)
    assert caught.value.code == "sink.other_pipeline"
    bench.fill(sink, 2)
    assert bench.sink().epoch() == 2 and bench.rows() == [1, 2]


def test_an_unbound_sink_says_so(bench: Bench) -> None:
    sink = bench.sink(bound=False)
    for call in (sink.epoch, sink.staged, lambda: sink.commit([], 1), lambda: sink.discard([])):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "sink.invalid" and "was not bound to a pipeline" in str(caught.value)


def test_staged_output_is_there_and_nobody_sees_it(spark: SparkSession, bench: Bench) -> None:
    sink, first, second = bench.sink(), new_attempt(), new_attempt()
    sink.commit([sink.stage(numbers(spark, 0, 10), first, 0)], 1)
    staged = sink.stage(numbers(spark, 10, 20), second, 0)
    assert sink.staged() == [second]
    assert sum(file["rows"] for file in staged["files"]) == 10
    assert all((bench.root / file["path"]).stat().st_size == file["size_bytes"] for file in staged["files"])
    assert bench.rows() == bench.plain_rows() == [*range(10)]
    if bench.kind == "files":
        assert spark.read.parquet(str(bench.root)).count() == 10


def test_only_data_and_tickets_are_left_by_staging(spark: SparkSession, bench: Bench) -> None:
    attempt = new_attempt()
    staged = bench.sink().stage(numbers(spark, 0, 10), attempt, 0)
    files = {path for path in bench.paths() if (bench.root / path).is_file()}
    ticket = f"_slackwater/{'0a' * 16}/totals/staged/{attempt}"
    assert files == {ticket, *(file["path"] for file in staged["files"])}
    assert json.loads(json.dumps(staged)) == staged


def test_staging_runs_one_spark_job_and_leaves_the_session_as_it_was(spark: SparkSession, bench: Bench) -> None:
    settings = {name: spark.conf.get(name) for name in ("spark.sql.parquet.outputTimestampType",)}
    spark.sparkContext.setJobGroup(group := new_attempt(), "staging")
    bench.sink().stage(numbers(spark, 0, 10), new_attempt(), 0)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 1
    assert {name: spark.conf.get(name) for name in settings} == settings


def test_what_was_staged_is_synced_before_it_is_described(spark: SparkSession, bench: Bench, synced: list[str]) -> None:
    staged = bench.sink().stage(numbers(spark, 0, 10), new_attempt(), 0)
    files = [str(bench.root / file["path"]) for file in staged["files"]]
    folders = [str(path) for path in (bench.root / staged["files"][0]["path"]).parents]
    folders = folders[: folders.index(str(bench.root)) + 1]
    order = synced[-len(files) - len(folders) :]
    assert sorted(order[: len(files)]) == sorted(files)
    assert order[len(files) :] == folders


def test_the_removal_of_a_ticket_is_synced(spark: SparkSession, bench: Bench, synced: list[str], arm) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    synced.clear()
    arm(f"{bench.kind}.untick.after")
    with pytest.raises(SlackwaterError):
        sink.commit([staged], 1)
    assert str(bench.root) in synced


def test_committing_twice_is_committing_once(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    sink.commit([staged], 1)
    versions = bench.versions()
    for again in (sink, bench.sink()):
        again.commit([staged], 1)
        assert again.epoch() == 1 and again.staged() == []
    assert bench.rows() == bench.plain_rows() == [*range(10)]
    assert bench.versions() == versions


def test_an_epoch_that_was_passed_is_ignored(spark: SparkSession, bench: Bench) -> None:
    sink = bench.sink()
    late = sink.stage(numbers(spark, 90, 99), new_attempt(), 0)
    sink.commit([sink.stage(numbers(spark, 0, 10), new_attempt(), 0)], 3)
    sink.commit([late], 2)
    bench.sink().commit([late], 1)
    assert bench.rows() == [*range(10)]
    assert sink.epoch() == 3


def test_an_empty_frame_makes_no_file_and_no_version(spark: SparkSession, bench: Bench) -> None:
    sink, attempt = bench.sink(), new_attempt()
    staged = sink.stage(numbers(spark, 0, 0), attempt, 0)
    assert staged["files"] == []
    assert sink.staged() == [attempt]
    sink.commit([staged], 1)
    assert bench.paths() == set() and sink.epoch() == 0 and sink.staged() == []
    sink.commit([sink.stage(numbers(spark, 0, 10), new_attempt(), 0)], 2)
    before = bench.paths()
    sink.commit([sink.stage(numbers(spark, 0, 0), new_attempt(), 0)], 3)
    sink.commit([], 4)
    assert bench.paths() == before and sink.epoch() == 2


def test_an_empty_partition_makes_no_file(spark: SparkSession, bench: Bench) -> None:
    staged = bench.sink().stage(numbers(spark, 0, 10).where("id >= 5"), new_attempt(), 0)
    assert [file["rows"] for file in staged["files"]] == [5]


def test_an_attempt_may_stage_several_frames(spark: SparkSession, bench: Bench) -> None:
    sink, attempt = bench.sink(), new_attempt()
    spans = ((0, 5), (5, 5), (5, 10))
    staged = [sink.stage(numbers(spark, *span), attempt, number) for number, span in enumerate(spans)]
    sink.commit(staged, 1)
    assert bench.rows() == bench.plain_rows() == [*range(10)]
    attempt = new_attempt()
    before = bench.paths()
    for span in ((10, 15), (15, 20)):
        sink.stage(numbers(spark, *span), attempt, 0)
    sink.discard([attempt])
    assert bench.paths() == before


def test_discarding_leaves_nothing_of_an_attempt_and_all_of_the_others(spark: SparkSession, bench: Bench) -> None:
    sink, committed, doomed, running = bench.sink(), new_attempt(), new_attempt(), new_attempt()
    sink.commit([sink.stage(numbers(spark, 0, 10), committed, 0)], 1)
    staged = sink.stage(numbers(spark, 10, 20), running, 0)
    before = bench.paths()
    sink.stage(numbers(spark, 20, 30), doomed, 0)
    for _ in range(2):
        bench.sink().discard([doomed, committed, new_attempt()])
        assert bench.paths() == before and sink.staged() == [running]
    sink.commit([staged], 2)
    assert bench.rows() == [*range(20)]


def test_discarding_takes_what_a_killed_write_has_left(spark: SparkSession, bench: Bench) -> None:
    sink, attempt = bench.sink(), new_attempt()
    folder = (bench.root / sink.stage(numbers(spark, 0, 10), attempt, 0)["files"][0]["path"]).parent
    for left in ("_temporary/0/_temporary/attempt_1/part-0.parquet", "_temporary/0/task_2/.part-1.parquet.crc"):
        (folder / left).parent.mkdir(parents=True)
        (folder / left).write_bytes(b"half")
    (folder / "_temporary/0/empty").mkdir()
    sink.discard([attempt])
    assert bench.paths() == set()


def test_data_that_cannot_be_deleted_yet_keeps_its_ticket(
    spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, attempt = bench.sink(), new_attempt()
    path = bench.root / sink.stage(numbers(spark, 0, 10), attempt, 0)["files"][0]["path"]
    rmtree = sinks.target.shutil.rmtree  # type: ignore[attr-defined]

    def with_a_writer_that_still_runs(folder: Path, **options: bool) -> None:
        rmtree(folder, **options)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"late")

    with monkeypatch.context() as patch:
        patch.setattr("slackwater.sinks.target.shutil.rmtree", with_a_writer_that_still_runs)
        sink.discard([attempt])
    assert sink.staged() == [attempt]
    sink.discard([attempt])
    assert bench.paths() == set()


@pytest.mark.parametrize(("kind", "point"), STAGE_POINTS)
def test_a_crash_while_staging_is_swept_away(spark: SparkSession, tmp_path: Path, arm, kind: str, point: str) -> None:
    bench, attempt = Bench(kind, tmp_path), new_attempt()
    arm(point)
    with pytest.raises(SlackwaterError, match=point):
        bench.sink().stage(numbers(spark, 0, 10), attempt, 0)
    sink = bench.sink()
    assert sink.staged() == [attempt] and bench.rows() == []
    sink.discard([attempt])
    assert bench.paths() == set()


@pytest.mark.parametrize("place", COMMIT_POINTS, ids=lambda place: place[1])
@pytest.mark.parametrize("first", [True, False], ids=["first-epoch", "later-epoch"])
def test_a_crash_while_committing_is_mended_by_driving_the_epoch_again(
    spark: SparkSession, tmp_path: Path, arm, place: tuple[str, str], first: bool
) -> None:
    kind, point = place
    bench = Bench(kind, tmp_path)
    sink = bench.sink()
    expected = [*range(10, 20)]
    if not first:
        sink.commit([sink.stage(numbers(spark, 0, 10), new_attempt(), 0)], 1)
        expected = [*range(20)]
    attempt = new_attempt()
    staged = sink.stage(numbers(spark, 10, 20), attempt, 0)
    arm(point)
    with pytest.raises(SlackwaterError, match=point):
        sink.commit([staged], 2)
    # Exactly the committed rows, at every point in between.
    fresh = bench.sink()
    committed = fresh.epoch() == 2
    assert committed == (
        point in ("delta.commit.after", "files.entry.after", "files.publish.between", "files.publish.after")
    )
    assert bench.rows() == (expected if committed else expected[:-10])
    # No ticket, so no sweep can take what counts.
    assert fresh.staged() == []
    fresh.discard([attempt])
    fresh.commit([staged], 2)
    assert bench.rows() == bench.plain_rows() == expected
    assert fresh.epoch() == 2 and fresh.staged() == []
    sink.commit([staged], 2)
    assert bench.rows() == expected


def test_drivers_that_race_for_an_epoch_commit_it_once(spark: SparkSession, bench: Bench) -> None:
    racers = [bench.sink() for _ in range(4)]
    with ThreadPoolExecutor(len(racers)) as pool:
        for epoch in range(1, 6):
            staged = racers[0].stage(numbers(spark, 10 * epoch, 10 * epoch + 10), new_attempt(), 0)
            start = threading.Barrier(len(racers))

            def race(sink: Sink, start=start, staged=staged, epoch=epoch) -> None:
                start.wait()
                sink.commit([staged], epoch)

            list(pool.map(race, racers))
            assert {sink.epoch() for sink in racers} == {epoch}
            assert bench.rows() == bench.plain_rows() == [*range(10, 10 * epoch + 10)]
            assert bench.versions() == epoch + (bench.kind == "delta")  # version 0 makes the table


def test_another_uid_under_the_same_name_is_refused_until_told_otherwise(spark: SparkSession, bench: Bench) -> None:
    ours, theirs = bench.sink(), bench.sink(uid=OTHER_UID)
    ours.commit([ours.stage(numbers(spark, 0, 10), new_attempt(), 0)], 7)
    with pytest.raises(Conflict) as caught:
        bench.sink(uid=OTHER_UID)
    assert caught.value.code == "sink.other_pipeline" and "take_over=True" in str(caught.value)
    # One that was bound before is refused as well, when it commits.
    staged = theirs.stage(numbers(spark, 10, 20), new_attempt(), 0)
    with pytest.raises(Conflict):
        theirs.commit([staged], 1)
    assert bench.rows() == [*range(10)]
    # The epochs of the new pipeline begin anew, whatever the old one had.
    heir = bench.sink(uid=OTHER_UID, take_over=True)
    assert heir.epoch() == 0
    heir.commit([staged], 1)
    assert bench.rows() == [*range(20)] and heir.epoch() == 1
    assert bench.sink(uid=OTHER_UID).epoch() == 1
    with pytest.raises(Conflict):
        bench.sink()
    late = ours.stage(numbers(spark, 90, 99), new_attempt(), 0)
    with pytest.raises(Conflict):
        ours.commit([late], 8)
    assert bench.rows() == [*range(20)]


def test_pipelines_of_different_names_share_a_target(spark: SparkSession, bench: Bench) -> None:
    first, second = bench.sink(), bench.sink(uid=OTHER_UID, pipeline="refunds")
    staged = [sink.stage(numbers(spark, i, i + 10), new_attempt(), 0) for i, sink in ((0, first), (10, second))]
    first.commit([staged[0]], 5)
    second.commit([staged[1]], 1)
    assert bench.rows() == bench.plain_rows() == [*range(20)]
    assert (first.epoch(), second.epoch()) == (5, 1)


def test_two_sinks_of_one_pipeline_share_a_target(spark: SparkSession, bench: Bench) -> None:
    attempt, (first, second) = new_attempt(), (bench.sink("totals"), bench.sink("alerts"))
    staged = [sink.stage(numbers(spark, i, i + 10), attempt, 0) for i, sink in ((0, first), (10, second))]
    first.commit([staged[0]], 1)
    second.commit([staged[1]], 1)
    assert bench.rows() == bench.plain_rows() == [*range(20)]
    attempt = new_attempt()
    kept = first.stage(numbers(spark, 20, 30), attempt, 0)
    second.stage(numbers(spark, 30, 40), attempt, 0)
    second.discard([attempt])
    first.commit([kept], 2)
    assert bench.rows() == bench.plain_rows() == [*range(30)]


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_staged_file_that_is_no_longer_whole_is_an_error(spark: SparkSession, bench: Bench, damage: str) -> None:
    sink = bench.sink()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    path = bench.root / staged["files"][1]["path"]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt) as caught:
        sink.commit([staged], 1)
    assert caught.value.code == "sink.damaged" and "are gone from" in str(caught.value)
    assert bench.rows() == [] and sink.epoch() == 0


@pytest.mark.parametrize(
    "hostile", ["", ".", "..", "../../x", "a/b", "01A1E23A-B35B-77D6-BEE1-166DED9359D9", "x" * 999]
)
def test_a_hostile_attempt_is_refused(spark: SparkSession, bench: Bench, hostile: str) -> None:
    sink = bench.sink()
    for call in (lambda: sink.discard([hostile]), lambda: sink.stage(numbers(spark, 0, 1), hostile, 0)):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "ref.invalid" and "is not a checkpoint id" in str(caught.value)
    assert not bench.root.exists()


def test_a_descriptor_that_leads_elsewhere_is_refused(spark: SparkSession, bench: Bench) -> None:
    sink, other = bench.sink(), new_attempt()
    staged = sink.stage(numbers(spark, 0, 10), new_attempt(), 0)
    file = staged["files"][0]
    elsewhere = [
        {**staged, "files": [{**file, "path": "../" + file["path"]}]},
        {**staged, "files": [{**file, "path": file["path"].replace("part-", "../part-")}]},
        {**staged, "files": [{**file, "path": "/etc/passwd.parquet"}]},
        {**staged, "attempt": other},
        {**staged, "attempt": "../x"},
        {**staged, "files": [{**file, "rows": -1}]},
        {**staged, "files": "x"},
        {},
    ]
    for descriptor in elsewhere:
        with pytest.raises(Corrupt) as caught:
            sink.commit([descriptor], 1)
        assert caught.value.code in ("sink.damaged", "manifest.invalid")
    assert bench.rows() == []


def test_a_foreign_file_among_the_tickets_is_left_alone(spark: SparkSession, bench: Bench) -> None:
    sink, attempt = bench.sink(), new_attempt()
    sink.stage(numbers(spark, 0, 10), attempt, 0)
    foreign = bench.root / "_slackwater" / ("0a" * 16) / "totals" / "staged" / "README"
    foreign.write_text("keep me")
    assert sink.staged() == [attempt]
    sink.discard(sink.staged())
    assert foreign.exists()


SCHEMA = """
    id long, tiny byte, small short, int int, real float, double double, money decimal(38, 9), cents decimal(9, 2),
    flag boolean, text string, bytes binary, day date, at timestamp, wall timestamp_ntz,
    list array<int>, names map<string, decimal(20, 3)>, deep struct<a: array<struct<b: timestamp, c: string>>, d: int>
"""
AT = datetime.datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=datetime.UTC)
OLD = datetime.datetime(1066, 10, 14, 9, 0, 0, 1, tzinfo=datetime.UTC)


def test_every_type_comes_back_equal(spark: SparkSession, bench: Bench) -> None:
    money, small = decimal.Decimal("12345678901234567890123456789.123456789"), decimal.Decimal("-0.01")
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")  # whatever the session says
    rows: Any = [
        (1, 127, -32768, 2**31 - 1, 0.1, 1e300, money, small, True, "", b"", AT.date(), AT, AT.replace(tzinfo=None),
         [1, None], {"a": small, "b": None}, ([(AT, "ü"), (None, None)], None)),
        (2, *[None] * 16),
        (3, -128, 32767, -(2**31), -0.0, float("inf"), -money, small, False, "snø\x00\n'\"☃", b"\x00\xff", OLD.date(),
         OLD, OLD.replace(tzinfo=None), [], {}, ([], 7)),
    ]  # fmt: skip
    try:
        frame = spark.createDataFrame(rows, SCHEMA).repartition(2)
        sink = bench.sink()
        sink.commit([sink.stage(frame, new_attempt(), 0)], 1)
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            # pyarrow gives a map as pairs, and a struct as a dict.
            pairs = bool(value) and all(isinstance(item, tuple) and isinstance(item[0], str) for item in value)
            return {key: plain(item) for key, item in value} if pairs else [plain(item) for item in value]
        return value

    expected = [plain(row.asDict(recursive=True)) for row in frame.orderBy("id").collect()]
    if bench.kind == "delta":
        table = DeltaTable(str(bench.root)).to_pyarrow_table()
        paths = [str(bench.root / add) for add in DeltaTable(str(bench.root)).get_add_actions()["path"].to_pylist()]
    else:
        paths = read_committed(bench.root)
        table = pa.concat_tables(pq.read_table(path) for path in paths)

    def naive(value: object) -> object:
        # collect() gives local, naive timestamps; Arrow gives aware ones.
        if isinstance(value, datetime.datetime) and value.tzinfo:
            return value.astimezone().replace(tzinfo=None)
        if isinstance(value, dict):
            return {key: naive(item) for key, item in value.items()}
        return [naive(item) for item in value] if isinstance(value, list) else value

    got = [naive(plain(row)) for row in sorted(table.to_pylist(), key=lambda row: row["id"])]
    # An empty map and an empty list look alike in Arrow's Python form.
    got[2]["names"] = dict(got[2]["names"])  # type: ignore[index]
    assert got == expected
    back = spark.read.parquet(*paths)
    assert [plain(row.asDict(recursive=True)) for row in back.orderBy("id").collect()] == expected
    physical = pq.read_schema(paths[0])
    assert physical.field("at").type == pa.timestamp("us", tz="UTC")
