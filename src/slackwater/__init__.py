"""Slackwater: checkpoints that can be trusted for PySpark streaming pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Conflict, Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from .extras import needed_for

if TYPE_CHECKING:
    from .keyed.config import CheckpointConfig
    from .keyed.opening import open_keyed
    from .keyed.state import KeyedState
    from .keyed.vnodes import vnode_of
    from .ops.adopt import adopt
    from .ops.checkpoints import list_checkpoints, show
    from .ops.export import export
    from .ops.forget import forget
    from .ops.import_ import import_folder
    from .ops.keyed import keyed_checkpoints, outside_state
    from .ops.pipelines import pipelines
    from .ops.repair import repair
    from .ops.restore import restore
    from .ops.rollback import rollback
    from .ops.savepoint import delete_savepoint, savepoint, savepoints
    from .ops.verify import verify
    from .program import open_pipeline
    from .settings import Settings
    from .sinks.delta.sink import DeltaSink
    from .sinks.files.reader import read_committed
    from .sinks.files.sink import FileSink
    from .sinks.function import FunctionSink
    from .sources.inbox import inbox
    from .spark.session import session
    from .streaming.writer import writeStream
    from .tables.feeds import Changes, Feed
    from .tables.file_feed import FileFeed
    from .tables.stream_feed import StreamFeed
    from .tables.table import table

    list = list_checkpoints

__version__ = "0.1.0"

# Without ``list``, which ``from slackwater import *`` must not replace.
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
    "KeyedState",
    "NotFound",
    "Settings",
    "SlackwaterError",
    "StreamFeed",
    "Unavailable",
    "Unsupported",
    "adopt",
    "delete_savepoint",
    "export",
    "forget",
    "import_folder",
    "inbox",
    "keyed_checkpoints",
    "open_keyed",
    "open_pipeline",
    "outside_state",
    "pipelines",
    "read_committed",
    "repair",
    "restore",
    "rollback",
    "savepoint",
    "savepoints",
    "session",
    "show",
    "table",
    "verify",
    "vnode_of",
    "writeStream",
]

# Loaded when they are asked for: the command line and the storage core need neither pyspark nor deltalake. Behind a
# colon stands the name inside the module, where that is another.
_LAZY = {
    "Changes": ".tables.feeds",
    "CheckpointConfig": ".keyed.config",
    "DeltaSink": ".sinks.delta.sink",
    "Feed": ".tables.feeds",
    "FileFeed": ".tables.file_feed",
    "FileSink": ".sinks.files.sink",
    "FunctionSink": ".sinks.function",
    "KeyedState": ".keyed.state",
    "Settings": ".settings",
    "StreamFeed": ".tables.stream_feed",
    "adopt": ".ops.adopt",
    "delete_savepoint": ".ops.savepoint",
    "export": ".ops.export",
    "forget": ".ops.forget",
    "import_folder": ".ops.import_",
    "inbox": ".sources.inbox",
    "keyed_checkpoints": ".ops.keyed",
    "list": ".ops.checkpoints:list_checkpoints",
    "open_keyed": ".keyed.opening",
    "open_pipeline": ".program",
    "outside_state": ".ops.keyed",
    "pipelines": ".ops.pipelines",
    "read_committed": ".sinks.files.reader",
    "repair": ".ops.repair",
    "restore": ".ops.restore",
    "rollback": ".ops.rollback",
    "savepoint": ".ops.savepoint",
    "savepoints": ".ops.savepoint",
    "session": ".spark.session",
    "show": ".ops.checkpoints",
    "table": ".tables.table",
    "verify": ".ops.verify",
    "vnode_of": ".keyed.vnodes",
    "writeStream": ".streaming.writer",
}
# What a name needs, if it is not pyspark and what comes with it alone.
_EXTRAS = {
    "DeltaSink": ("spark", "delta"),
    "KeyedState": ("keyed",),
    "inbox": ("spark", "keyed"),
    "table": ("spark", "keyed"),
}


def __dir__() -> Iterable[str]:
    return sorted({*__all__, *_LAZY, "__version__"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        extras = _EXTRAS.get(name, ("spark",))
        with needed_for(f"sw.{name}", *extras):
            if "keyed" in extras:  # it would be asked for only when rows come
                import_module("rocksdict")
            module, _, inside = _LAZY[name].partition(":")
            return getattr(import_module(module, __name__), inside or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
