"""Working directories that Spark wrote: captured, damaged, hydrated elsewhere, and gone on from by plain Spark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uuid_utils
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from demo import payments_stream
from demo.oracle import compare, expected_totals
from slackwater.errors import Corrupt, InvalidInput, SlackwaterError, Unsupported
from slackwater.formats import manifest as manifests
from slackwater.formats.manifest import Manifest
from slackwater.protocol.artifacts import Holdings, put_artifacts
from slackwater.protocol.cut import Cut, CutPartition
from slackwater.settings import Settings
from slackwater.spark.capture import _Look, capture
from slackwater.spark.checkpoint_files import Ancestor, decode_operator
from slackwater.spark.hydrate import hydrate, move_schema_paths
from slackwater.store import Store, open_store

ROWS = 20_000
SETTINGS = {
    "spark.sql.shuffle.partitions": "3",
    # So that snapshots come soon, with up to two deltas after each.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
}
FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "spark"
Output = dict[int, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    before = {key: spark.conf.get(key) for key in SETTINGS}
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        spark.conf.set(key, old or "")


def fixture(name: str) -> Path:
    if not (FIXTURES / name).is_dir():
        pytest.skip(f"Spark's own checkpoint {name} is not here")
    return FIXTURES / name


def copy_of(directory: Path, target: Path) -> Path:
    """Copy all but what is hidden: Spark may be uploading a last snapshot after a query has ended."""
    return shutil.copytree(directory, target, ignore=shutil.ignore_patterns(".*"))


def save(store: Store, cut: Cut, parent: Holdings, settings: Settings) -> tuple[Manifest, Holdings]:
    """Store a cut and read its manifest back, as a checkpoint without sinks would be."""
    checkpoint_id = str(uuid_utils.uuid7())
    stored = put_artifacts(store, cut, checkpoint_id, parent, settings)
    manifest = Manifest(
        version=3,
        checkpoint_id=checkpoint_id,
        epoch=cut.micro_batch + 1,
        parent_id=None,
        pipeline="test",
        uid="0" * 32,
        created_at_ms=1,
        micro_batch=cut.micro_batch,
        watermark_ms=cut.watermark_ms,
        pipeline_hash="0" * 64,
        query=None,
        rollback=None,
        origin=None,
        source_names=list(cut.sources),
        sink_names=[],
        source_offsets=cut.sources,
        source_watermarks={},
        table_offsets={},
        table_store_path=None,
        sinks={},
        sink_epochs={},
        vnode_count=None,
        operators=stored.operators,
        files=stored.files,
        objects=stored.objects,
        total_size_bytes=stored.total_size_bytes,
    )
    return msgspec.json.decode(manifests.encode(manifest), type=Manifest), stored.holdings


class Run:
    """A query with its output by micro-batch; every micro-batch is captured when the next begins, and stored."""

    def __init__(self, frame: DataFrame, mode: str, directory: Path, store: Store | None = None) -> None:
        self.directory = directory
        self.store = store
        # Small enough for every way through the store to be taken.
        self.settings = Settings(inline_max_bytes=500, object_min_bytes=4_000)
        self.output: Output = {}
        self.cuts: dict[int, Cut] = {}
        self.manifests: dict[int, Manifest] = {}
        self._holdings: Holdings = {}
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(directory))
        writer.foreachBatch(self._batch).trigger(availableNow=True).start().awaitTermination()
        if self.output:
            self._capture(max(self.output))

    def _batch(self, frame: DataFrame, number: int) -> None:
        if self.output:
            self._capture(number - 1)
        self.output[number] = sorted(tuple(row) for row in frame.collect())

    def _capture(self, number: int) -> None:
        if self.store is not None:
            self.cuts[number] = capture(self.directory, number, ["payments"])
            self.manifests[number], self._holdings = save(self.store, self.cuts[number], self._holdings, self.settings)

    def after(self, number: int) -> Output:
        return {batch: rows for batch, rows in self.output.items() if batch > number}


def totals(spark: SparkSession) -> DataFrame:
    frame = payments_stream.totals(spark, rows=ROWS, rows_per_batch=2_000)
    return frame.select(F.unix_millis("window_start"), "merchant", "amount_cents", "payments")


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("payments")
    return Run(totals(spark), "append", root / "work", open_store(str(root / "store")))


# --- a run that was captured after each commit


def test_every_micro_batch_is_captured_with_its_offsets_and_watermark(run: Run):
    assert list(run.cuts) == list(run.output) == list(range(11))
    ends = [cut.sources["0"].offsets["seq"] for cut in run.cuts.values()]
    assert ends == [str(end) for end in [*range(2_000, ROWS + 1, 2_000), ROWS]]
    assert run.cuts[3].sources["0"].source_type == "payments"
    assert json.loads(run.cuts[3].sources["0"].verbatim) == {"seq": 8_000}
    watermarks = [cut.watermark_ms for cut in run.cuts.values()]
    assert watermarks == sorted(watermarks) and watermarks[-1] > watermarks[0] > 0
    for number, cut in run.cuts.items():
        assert [operator.name for operator in cut.operators] == ["0-stateStoreSave", "1-dedupe"]
        for operator in cut.operators:
            assert [partition.partition for partition in operator.partitions] == [0, 1, 2]
            assert {partition.version for partition in operator.partitions} == {number + 1}


def test_state_is_a_snapshot_with_its_ssts_then_the_deltas_after_it(run: Run):
    partitions = [p for cut in run.cuts.values() for operator in cut.operators for p in operator.partitions]
    shapes = {(bool(p.snapshot), bool(p.deltas)) for p in partitions}
    assert shapes >= {(False, True), (True, True)}
    for partition in partitions:
        newest = f"{partition.path}/{partition.version}_{partition.unique_id}"
        assert partition.files[-1].path == f"{newest}.changelog" or partition.snapshot[0].path == f"{newest}.zip"
        first = int(partition.files[0].path.rpartition("/")[2].partition("_")[0])
        after = [int(file.path.rpartition("/")[2].partition("_")[0]) for file in partition.deltas]
        assert after == list(range(first + bool(partition.snapshot), partition.version + 1))
        assert all("/SSTs/" in file.path for file in partition.snapshot[1:])


def test_nothing_hidden_and_nothing_of_later_micro_batches_is_captured(run: Run):
    for number, cut in run.cuts.items():
        names = [file.path for file in cut.files]
        assert not [name for name in names if "/." in name]
        assert [n for n in names if n.startswith(("offsets/", "commits/"))] == [
            *(f"offsets/{n}" for n in (number - 1, number) if n >= 0),
            f"commits/{number}",
        ]


def partition_where(run: Run, holds: Callable[[CutPartition], bool]) -> tuple[int, CutPartition]:
    """Find a micro-batch with a partition of some shape, as it is on disk now."""
    for number in sorted(run.cuts, reverse=True):
        for operator in capture(run.directory, number).operators:
            for partition in operator.partitions:
                if holds(partition):
                    return number, partition
    pytest.fail("no partition of this shape came up")


@pytest.mark.parametrize("number", [0, 5, 8])
def test_plain_spark_goes_on_from_a_hydrated_directory_as_if_nothing_had_happened(
    spark: SparkSession, run: Run, tmp_path: Path, number: int
):
    assert run.store is not None
    hydrate(run.store, run.manifests[number], tmp_path / "fresh", run.settings)
    resumed = Run(totals(spark), "append", tmp_path / "fresh")
    assert resumed.output == run.after(number)
    rows: list[Any] = [row for n, rows in run.output.items() if n <= number for row in rows]
    rows += [row for rows in resumed.output.values() for row in rows]
    assert compare(expected_totals(ROWS), rows).exact


def test_without_new_data_a_restarted_query_runs_no_micro_batch_hydrated_or_in_place(
    spark: SparkSession, run: Run, tmp_path: Path
):
    assert run.after(9) != {}  # the one without data that the uninterrupted run ended with
    assert run.store is not None
    hydrate(run.store, run.manifests[9], tmp_path / "fresh", run.settings)
    in_place = copy_of(run.directory, tmp_path / "copy")
    for log in ("offsets", "commits"):
        (in_place / log / "10").unlink()
    assert Run(totals(spark), "append", in_place).output == {}
    assert Run(totals(spark), "append", tmp_path / "fresh").output == {}


def test_hydrated_files_are_the_captured_ones_byte_for_byte(run: Run, tmp_path: Path):
    assert run.store is not None
    number = max(run.cuts)
    cut = run.cuts[number]
    holdings = hydrate(run.store, run.manifests[number], tmp_path / "fresh", run.settings)
    state = [f for operator in cut.operators for partition in operator.partitions for f in partition.files]
    for file in (*cut.files, *state):
        assert (tmp_path / "fresh" / file.path).read_bytes() == (run.directory / file.path).read_bytes()
    inline = {file.path for file in manifests.all_files(run.manifests[number]) if file.inline is not None}
    assert {file.path for file in state} - inline <= holdings.keys()


# --- damage


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change the JSON of the second line, as no tool but a person would."""
    version, body, *rest = path.read_text().split("\n")
    value = json.loads(body)
    change(value)
    path.write_text("\n".join([version, json.dumps(value), *rest]))


def drop_partition(commit: Any) -> None:
    commit["stateUniqueIds"]["0"].pop()


def keep_one_partition(commit: Any) -> None:
    del commit["stateUniqueIds"]["0"][1:]


def drop_store(commit: Any) -> None:
    commit["stateUniqueIds"]["0"][1] = []


def drop_operator(commit: Any) -> None:
    del commit["stateUniqueIds"]["1"]


def add_operator(commit: Any) -> None:
    commit["stateUniqueIds"]["2"] = []


def repartition(offsets: Any) -> None:
    offsets["conf"]["spark.sql.shuffle.partitions"] = "4"


def rename_operator(metadata: Any) -> None:
    metadata["operatorInfo"]["operatorId"] = 1


def other_codec(offsets: Any) -> None:
    offsets["conf"]["spark.sql.streaming.stateStore.compression.codec"] = "zstd"


@pytest.mark.parametrize(
    ("path", "damage", "words"),
    [
        ("metadata", Path.unlink, "lacks"),
        ("metadata", cut_short, "Spark's file"),
        ("offsets/6", lambda path: path.write_bytes(b""), "Spark's file"),
        ("offsets/7", Path.unlink, "lacks"),
        ("offsets/6", Path.unlink, "lacks"),
        ("offsets/8", Path.unlink, "is there, but not"),
        ("commits/7", Path.unlink, "lacks"),
        ("commits/7", cut_short, "Spark's file"),
        ("commits/7", lambda path: edit(path, drop_partition), "partitions"),
        ("commits/7", lambda path: edit(path, keep_one_partition), "partitions"),
        ("commits/7", lambda path: edit(path, drop_store), "without an id for each store"),
        ("commits/7", lambda path: edit(path, drop_operator), "has no ids for"),
        ("commits/7", lambda path: edit(path, add_operator), "there is no folder"),
        ("offsets/7", lambda path: edit(path, repartition), "partitions"),
        ("state/1", shutil.rmtree, "there is no folder"),
        ("state/0/_metadata/metadata", Path.unlink, "lacks"),
        ("state/0/_metadata/metadata", lambda path: edit(path, rename_operator), "describes operator"),
        ("state/1/2", shutil.rmtree, "lacks"),
    ],
)
def test_a_damaged_log_or_folder_is_refused(
    run: Run, tmp_path: Path, path: str, damage: Callable[[Path], None], words: str
):
    copy = copy_of(run.directory, tmp_path / "copy")
    capture(copy, 7)
    damage(copy / path)
    with pytest.raises(Corrupt) as caught:
        capture(copy, 7)
    assert caught.value.code == "capture.damaged" and words in str(caught.value)


def with_snapshot(partition: CutPartition) -> bool:
    return len(partition.snapshot) > 1


def with_chain(partition: CutPartition) -> bool:
    return len(partition.snapshot) > 1 and bool(partition.deltas)


Damage = Callable[[Path, CutPartition], object]


@pytest.mark.parametrize(
    ("holds", "damage", "words"),
    [
        (with_snapshot, lambda copy, p: (copy / p.snapshot[1].path).unlink(), "which is missing"),
        (with_snapshot, lambda copy, p: cut_short(copy / p.snapshot[1].path), "bytes, not the"),
        (with_snapshot, lambda copy, p: cut_short(copy / p.snapshot[0].path), "Spark's file"),
        (with_chain, lambda copy, p: (copy / p.deltas[-1].path).unlink(), "lacks"),
        (with_chain, lambda copy, p: (copy / p.deltas[-1].path).write_bytes(b""), "Spark's file"),
        (lambda p: len(p.deltas) > 1, lambda copy, p: (copy / p.deltas[0].path).unlink(), "lacks"),
    ],
)
def test_damaged_state_is_refused(
    run: Run, tmp_path: Path, holds: Callable[[CutPartition], bool], damage: Damage, words: str
):
    number, partition = partition_where(run, holds)
    copy = copy_of(run.directory, tmp_path / "copy")
    capture(copy, number)
    damage(copy, partition)
    with pytest.raises(Corrupt) as caught:
        capture(copy, number)
    assert caught.value.code == "capture.damaged" and words in str(caught.value)


def test_a_chain_without_the_snapshot_that_it_is_built_on_is_broken(run: Run, tmp_path: Path):
    number, partition = partition_where(run, lambda p: with_chain(p) and p.version > 4)
    copy = copy_of(run.directory, tmp_path / "copy")
    for zip_file in (copy / partition.path).glob("*.zip"):
        zip_file.unlink()
    with pytest.raises(Corrupt) as caught:
        capture(copy, number)
    assert caught.value.code == "capture.damaged" and "built on" in str(caught.value)


def test_another_codec_is_unsupported(run: Run, tmp_path: Path):
    number, _ = partition_where(run, with_chain)
    copy = copy_of(run.directory, tmp_path / "copy")
    edit(copy / f"offsets/{number}", other_codec)
    with pytest.raises(Unsupported) as caught:
        capture(copy, number)
    assert caught.value.code == "spark.unsupported" and "the state is compressed with" in str(caught.value)


def test_a_chain_that_a_snapshot_replaces_while_it_is_looked_at_is_looked_for_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    number, partition = partition_where(run, lambda p: with_chain(p) and len(p.deltas) == 1 and p.version > 4)
    copy = copy_of(run.directory, tmp_path / "copy")
    snapshot = copy / partition.snapshot[0].path
    newest = f"{partition.version - 1}_"
    hidden = snapshot.rename(snapshot.with_name("." + snapshot.name))
    read_lineage = _Look._lineage
    looked = []

    def maintenance_comes_between(self: _Look, folder: str, top: Ancestor, codec: str) -> list[Ancestor]:
        lineage = read_lineage(self, folder, top, codec)
        if folder == partition.path:
            looked.append(folder)
            if len(looked) == 1:
                # What Spark does: the new snapshot appears, then the files that it replaces go.
                for older in (copy / folder).glob(f"{newest}*.changelog"):
                    older.unlink()
            else:
                hidden.rename(snapshot)
        return lineage

    monkeypatch.setattr(_Look, "_lineage", maintenance_comes_between)
    cut = capture(copy, number)
    assert len(looked) == 2
    found = {p.path: p for operator in cut.operators for p in operator.partitions}[partition.path]
    assert [file.path for file in found.files] == [file.path for file in partition.files]


# --- hydrate


def test_a_directory_that_holds_something_is_refused_and_left_alone(run: Run, tmp_path: Path):
    assert run.store is not None
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InvalidInput) as caught:
        hydrate(run.store, run.manifests[3], tmp_path, run.settings)
    assert caught.value.code == "folder.unusable" and "is not empty" in str(caught.value)
    assert (tmp_path / "note").read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_a_typed_error(run: Run, tmp_path: Path):
    assert run.store is not None
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SlackwaterError) as caught:
        hydrate(run.store, run.manifests[3], tmp_path / "file" / "fresh", run.settings)
    assert caught.value.code == "folder.unavailable" and "cannot be written" in str(caught.value)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["batch", "object"])
def test_after_a_damaged_object_no_directory_is_left(spark: SparkSession, run: Run, tmp_path: Path, kind: str):
    number, manifest = next((n, m) for n, m in run.manifests.items() if any(entry.kind == kind for entry in m.objects))
    store = open_store(str(tmp_path / "store"))
    manifest, _ = save(store, run.cuts[number], {}, run.settings)
    key = next(entry.key for entry in manifest.objects if entry.kind == kind)
    hydrate(store, manifest, tmp_path / "whole", run.settings)
    flip_byte(tmp_path / "store" / key)
    with pytest.raises(Corrupt) as caught:
        hydrate(store, manifest, tmp_path / "fresh", run.settings)
    assert caught.value.code == "object.damaged" and "missing or damaged" in str(caught.value)
    assert not (tmp_path / "fresh").exists()


def test_a_manifest_that_forgot_a_batch_of_state_is_found_before_spark_sees_it(run: Run, tmp_path: Path):
    store = open_store("memory:")
    number, partition = partition_where(run, with_chain)
    everything_in_batches = Settings(inline_budget_bytes=0, object_min_bytes=64 * 1024 * 1024)
    cut = capture(run.directory, number)
    older = msgspec.structs.replace(
        cut, operators=[o for o in cut.operators if any(p.path == partition.path for p in o.partitions)], files=[]
    )
    _, holdings = save(store, older, {}, everything_in_batches)
    manifest, _ = save(store, cut, holdings, everything_in_batches)
    hydrate(store, manifest, tmp_path / "whole", everything_in_batches)
    mine = {file.object for file in manifest.files}
    assert len(manifest.objects) == 2 and len(mine) == 1
    # The batch of the older checkpoint goes; its files are named nowhere else.
    kept = manifest.objects[mine.pop()]  # type: ignore[index]
    forgetful = msgspec.structs.replace(
        manifest, objects=[kept], files=[msgspec.structs.replace(file, object=0) for file in manifest.files]
    )
    manifests.validate(forgetful)
    with pytest.raises(Corrupt) as caught:
        hydrate(store, forgetful, tmp_path / "fresh", everything_in_batches)
    assert caught.value.code == "restore.damaged" and "is not whole" in str(caught.value)
    assert not (tmp_path / "fresh").exists()


def test_state_of_another_id_than_the_manifests_is_found_before_spark_sees_it(run: Run, tmp_path: Path):
    assert run.store is not None
    manifest = msgspec.json.decode(msgspec.json.encode(run.manifests[4]))
    manifest["operators"]["1-dedupe"]["partitions"][2]["unique_id"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(Corrupt, match="1-dedupe") as caught:
        hydrate(run.store, msgspec.convert(manifest, Manifest), tmp_path / "fresh", run.settings)
    assert caught.value.code == "restore.damaged"
    assert not (tmp_path / "fresh").exists()


# --- other operators, and a source that keeps a log


def lines_of(spark: SparkSession, folder: Path) -> DataFrame:
    """Stream one small file a micro-batch; the log of the source is compacted at the tenth."""
    folder.mkdir(exist_ok=True)
    for number in range(13):
        path = folder / f"{number:03d}.json"
        path.write_text("".join(json.dumps({"k": (number + i) % 5, "n": number * 10 + i}) + "\n" for i in range(10)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    return spark.readStream.schema("k int, n int").option("maxFilesPerTrigger", 1).json(str(folder))


@pytest.mark.parametrize("name", ["aggregate", "limit"])
def test_an_operator_without_keys_has_one_partition_whatever_its_metadata_says(
    spark: SparkSession, tmp_path: Path, name: str
):
    def query() -> DataFrame:
        frame = lines_of(spark, tmp_path / "in")
        return frame.groupBy().agg(F.sum("n")) if name == "aggregate" else frame.limit(95)

    mode = "complete" if name == "aggregate" else "append"
    store = open_store("memory:")
    whole = Run(query(), mode, tmp_path / "work", store)
    metadata = (whole.directory / "state/0/_metadata/metadata").read_text()
    assert '"numPartitions":3' in metadata
    assert [len(operator.partitions) for operator in whole.cuts[8].operators] == [1]
    hydrate(store, whole.manifests[8], tmp_path / "fresh", whole.settings)
    assert Run(query(), mode, tmp_path / "fresh").output == whole.after(8)


def test_a_schema_named_by_its_old_path_and_a_log_cut_inside_a_compaction_are_gone_on_from(
    spark: SparkSession, tmp_path: Path
):
    import pandas as pd  # noqa: PLC0415 - pickled with the class

    class Sum(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.sum = handle.getValueState("sum", "n int")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            total = sum(int(each["n"].sum()) for each in rows) + (self.sum.get() or [0])[0]
            self.sum.update((total,))
            yield pd.DataFrame({"k": [key[0]], "total": [total]})

        def close(self) -> None:
            pass

    def query() -> DataFrame:
        frame = lines_of(spark, tmp_path / "in").groupBy("k")
        return frame.transformWithStateInPandas(Sum(), "k int, total int", "Update", "None")

    store = open_store("memory:")
    whole = Run(query(), "update", tmp_path / "work", store)
    fresh = tmp_path / "a fresh 100%25 place"
    number = 10
    log = [file.path for file in whole.cuts[number].files if file.path.startswith("sources/")]
    assert log == ["sources/0/10", "sources/0/9.compact"]
    hydrate(store, whole.manifests[number], fresh, whole.settings)
    # With the old directory gone, only a path that was moved leads to the schema.
    whole.directory.rename(tmp_path / "gone")
    assert f"file:{fresh}/state/0/_stateSchema/" in (fresh / "state/0/_metadata/v2/0").read_text()
    assert Run(query(), "update", fresh).output == whole.after(number)


# --- checkpoints that others wrote


@pytest.mark.parametrize("number", range(5))
def test_sparks_own_join_reads_equal_after_a_round_trip(spark: SparkSession, tmp_path: Path, number: int):
    original = copy_of(fixture("rocksdb-v2-join"), tmp_path / "original")
    for path in (original, *original.rglob("*")):
        path.chmod(0o755)
    store, settings = open_store("memory:"), Settings()
    cut = capture(original, number, ["memory", "memory"])
    assert len(cut.operators) == 4 and cut.operators[2].name == "0-symmetricHashJoin-right-keyToNumValues"
    manifest, _ = save(store, cut, {}, settings)
    hydrate(store, manifest, tmp_path / "fresh", settings)

    def rows(directory: Path, state: str) -> list[str]:
        reader = spark.read.format("statestore").option("storeName", state).option("batchId", number)
        return sorted(str(row) for row in reader.load(str(directory)).collect())

    sizes = []
    for operator in cut.operators:
        expected = rows(original, operator.store)
        assert rows(tmp_path / "fresh", operator.store) == expected
        sizes.append(len(expected))
    assert number == 0 or sum(sizes) > 0


def test_logs_that_do_not_follow_each_other_are_refused():
    with pytest.raises(Corrupt, match="offsets/3") as caught:
        capture(fixture("inconsistent-logs"), 2)
    assert caught.value.code == "capture.damaged"
    with pytest.raises(Corrupt, match="lacks offsets/3") as caught:
        capture(fixture("inconsistent-logs"), 4)
    assert caught.value.code == "capture.damaged"


@pytest.mark.parametrize("name", ["rocksdb-v1-aggregate", "hdfs-dedup", "transform-with-state-avro"])
def test_state_without_ids_is_unsupported_with_the_setting_that_mends_it(name: str):
    with pytest.raises(Unsupported, match=r'checkpointFormatVersion", "2"') as caught:
        capture(fixture(name), 1)
    assert caught.value.code == "spark.unsupported"


def test_paths_of_another_machine_are_moved():
    path = "state/0/_metadata/v2/0"
    data = (fixture("transform-with-state-avro") / path).read_bytes()
    assert b"file:/Users/" in data
    moved = move_schema_paths(data, path, "file:/new")
    [store] = decode_operator(moved, path).stores
    name = "0_6b12d3c5-57e6-4001-8321-3ae63d6be7a0"
    assert store.schema_paths == [f"file:/new/state/0/_stateSchema/default/{name}"]
    old = data.split(b'"stateSchemaFilePath":"')[1].split(b"/state/0/")[0]
    assert moved == data.replace(old, b"file:/new")
