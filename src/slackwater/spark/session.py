"""The Spark settings that a checkpoint can be trusted under."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..extras import needed_for
from ..settings import Settings
from .java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "spark.sql.streaming."
_FILES = "org.apache.spark.sql.execution.streaming.checkpointing"
_RETAIN = _STREAMING + "minBatchesToRetain"
# While a micro-batch runs, Spark keeps this many fewer committed ones whole than it is told to.
_RETAIN_MARGIN = 3

# Without these, state files are not immutable under their names, or cannot be traced from the commit log.
REQUIRED = {
    _STREAMING + "stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    _STREAMING + "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    _STREAMING + "stateStore.checkpointFormatVersion": "2",
    _STREAMING + "stateStore.compression.codec": "lz4",
}
# With these it is faster and keeps the working directory small.
RECOMMENDED = {
    _RETAIN: "20",
    _STREAMING + "stateStore.minDeltasForSnapshot": "10",
    _STREAMING + "stateStore.maintenanceInterval": "10s",
    # Slackwater has SHA-256 of every file; Spark's own checksum files would only double their number.
    _STREAMING + "checkpoint.fileChecksum.enabled": "false",
    # On a local disk the usual one starts a chmod for each file, which is a quarter of a small micro-batch.
    _STREAMING + "checkpointFileManagerClass": f"{_FILES}.FileSystemBasedCheckpointFileManager",
    # Stopping a query inside foreachBatch unwinds a deep stack.
    "spark.driver.extraJavaOptions": "-Xss16m",
    # The local JVM has no business on other interfaces.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(
    app_name: str = "slackwater", *, master: str | None = None, conf: Mapping[str, str | int | bool] | None = None
) -> SparkSession:
    """Make a SparkSession with the settings that Slackwater needs; ``conf`` adds to them or overrides them.

    Call it instead of ``SparkSession.builder.getOrCreate()``::

        spark = sw.session("orders", master="local[2]", conf={"spark.sql.shuffle.partitions": 4})
    """
    ensure_java()
    # Workers otherwise take the first python3 of the PATH, which may be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with needed_for("sw.session", "spark"):
        from pyspark.sql import SparkSession  # noqa: PLC0415 - after JAVA_HOME is settled

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    local = master is None or master.startswith("local")
    defaults = {k: v for k, v in RECOMMENDED.items() if local or not k.startswith("spark.driver.")}
    for key, value in {**REQUIRED, **defaults, **(conf or {})}.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    return builder.getOrCreate()


def check_session(spark: SparkSession, settings: Settings) -> None:
    """Refuse a session under which a checkpoint could not be trusted, naming each line that fixes it."""
    wrong = {key: value for key, value in REQUIRED.items() if _get(spark, key).lower() != value.lower()}
    retain = settings.epochs_in_flight + _RETAIN_MARGIN
    if _retained(spark) < retain:
        wrong[_RETAIN] = str(retain)
    if wrong:
        lines = "; ".join(f'spark.conf.set("{key}", "{value}")' for key, value in wrong.items())
        raise Unsupported(
            f"{len(wrong)} setting(s) of the SparkSession do not allow checkpoints that can be trusted: "
            + ", ".join(f"{key} is {_get(spark, key)}" for key in wrong),
            code="spark.unsupported",
            hint=f"make the session with sw.session(), or before start(): {lines}",
            settings=wrong,
        )


def micro_batches_ahead(spark: SparkSession) -> int:
    """Tell how many micro-batches may begin after one whose files must all stay; 0 or more under ``check_session``."""
    return _retained(spark) - _RETAIN_MARGIN - 1


def _retained(spark: SparkSession) -> int:
    return int(_get(spark, _RETAIN))


def _get(spark: SparkSession, key: str) -> str:
    """Get what holds: Spark's own default where the session says nothing; where Spark has none, ``not set``."""
    from pyspark.errors import SparkNoSuchElementException  # noqa: PLC0415 - as in session()

    try:
        return str(spark.conf.get(key))
    except SparkNoSuchElementException:
        return "not set"
