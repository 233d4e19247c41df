"""How many objects a checkpoint puts does not depend on how many partitions the state has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.formats import record as records
from slackwater.formats.change import Release
from slackwater.formats.keys import CHECKPOINTS, LOG, record_key
from slackwater.protocol.log import Log
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import Settings
from slackwater.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checkpoint_once(spark: SparkSession, folder: Path, partitions: int) -> tuple[int, int]:
    """Run one micro-batch that changes every partition; return the PUTs on record, and the objects that are there."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", partitions)
    source = session.readStream.format("rate-micro-batch").options(rowsPerBatch=20_000, numPartitions=2)
    # What is written stays small, so that the time goes into state.
    frame = source.load().dropDuplicates(["value"]).where("value < 10")
    query = (
        sw.writeStream(frame)
        .queryName("wide")
        .outputMode("append")
        .trigger(availableNow=True)
        .options(store=str(folder / "store"), workdir=str(folder / "work"))
        .to("files", sw.FileSink(folder / "files"))
        .start()
    )
    query.awaitTermination()
    store = open_store(str(folder / "store" / "wide"))
    log = Log(store, SystemClock(), Settings())
    state = log.read()
    assert state is not None
    assert state.head is not None
    assert state.epoch == 1
    (operator,) = load_manifest(store, state.head).operators.values()
    assert len(operator.partitions) == partitions
    assert all(partition.size_bytes > 0 for partition in operator.partitions)
    release = records.decode(store.get(record_key(log.number)), number=log.number).change
    assert isinstance(release, Release)
    assert release.settled is not None
    # The claim and the release have a record each, too.
    objects = len(store.list(CHECKPOINTS)) + len(store.list(LOG)) - 2
    return release.settled.requests["puts"], objects


def test_a_checkpoint_of_400_partitions_puts_as_many_objects_as_one_of_4(spark: SparkSession, tmp_path: Path) -> None:
    few = checkpoint_once(spark, tmp_path / "few", 4)
    # A batch, the manifest, the record and the pointer.
    assert few == (4, 4)
    assert checkpoint_once(spark, tmp_path / "many", 400) == few
