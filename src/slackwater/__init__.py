"""Slackwater: checkpoints that can be trusted for PySpark streaming pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from .extras import needed_for

if TYPE_CHECKING:
    from .incremental.config import CheckpointConfig
    from .incremental.opening import open_keyed
    from .library import open_pipeline
    from .pipeline.adopt import adopt
    from .pipeline.repair import plan_repair, repair
    from .pipeline.rollback import plan_rollback, rollback
    from .pipeline.sinks.delta import DeltaSink
    from .pipeline.sinks.files import FileSink
    from .pipeline.sinks.files_reader import read_committed
    from .pipeline.sinks.function import FunctionSink
    from .pipeline.sources.inbox import inbox
    from .pipeline.tables.feeds import Changes, Feed
    from .pipeline.tables.file_feed import FileFeed
    from .pipeline.tables.stream_feed import StreamFeed
    from .pipeline.tables.table import table
    from .pipeline.writer import writeStream
    from .settings import Settings
    from .spark.session import session

__version__ = "0.1.0"

__all__ = [
    "Changes",
    "CheckpointConfig",
    "Conflict",
    "Corrupt",
    "DeltaSink",
    "Feed",
    "FileFeed",
    "FileSink",
    "FunctionSink",
    "InvalidInput",
    "NotFound",
    "Settings",
    "SlackwaterError",
    "StreamFeed",
    "Unavailable",
    "Unsupported",
    "adopt",
    "inbox",
    "open_keyed",
    "open_pipeline",
    "plan_repair",
    "plan_rollback",
    "read_committed",
    "repair",
    "rollback",
    "session",
    "table",
    "writeStream",
]

# Loaded when they are asked for: the command line and the storage core need neither pyspark nor deltalake.
_LAZY = {
    "Changes": ".pipeline.tables.feeds",
    "CheckpointConfig": ".incremental.config",
    "DeltaSink": ".pipeline.sinks.delta",
    "Feed": ".pipeline.tables.feeds",
    "FileFeed": ".pipeline.tables.file_feed",
    "FileSink": ".pipeline.sinks.files",
    "FunctionSink": ".pipeline.sinks.function",
    "Settings": ".settings",
    "StreamFeed": ".pipeline.tables.stream_feed",
    "adopt": ".pipeline.adopt",
    "inbox": ".pipeline.sources.inbox",
    "open_keyed": ".incremental.opening",
    "open_pipeline": ".library",
    "plan_repair": ".pipeline.repair",
    "plan_rollback": ".pipeline.rollback",
    "read_committed": ".pipeline.sinks.files_reader",
    "repair": ".pipeline.repair",
    "rollback": ".pipeline.rollback",
    "session": ".spark.session",
    "table": ".pipeline.tables.table",
    "writeStream": ".pipeline.writer",
}
# Beside pyspark and what comes with it.
_MORE_EXTRAS = {"DeltaSink": ("delta",), "inbox": ("keyed",), "table": ("keyed",)}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        with needed_for(f"sw.{name}", "spark", *_MORE_EXTRAS.get(name, ())):
            if "keyed" in _MORE_EXTRAS.get(name, ()):  # it would be asked for only when rows come
                import_module("rocksdict")
            return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
