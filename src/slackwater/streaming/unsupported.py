"""What PySpark's own writer takes and Slackwater's does not, each with what to use instead."""

from __future__ import annotations

from ..errors import Unsupported

_SINK = '.to("NAME", sw.DeltaSink(PATH)), .to("NAME", sw.FileSink(PATH)) or a function of your own in place of the sink'
_COLUMNS = "write without it, or lay the output out in a function of your own: .foreachBatch(function)"

METHODS = {
    "format": _SINK,
    "toTable": '.to("NAME", sw.DeltaSink(PATH)).start(), with the path of the table',
    "table": '.to("NAME", sw.DeltaSink(PATH)), with the path of the table',
    "insertInto": '.to("NAME", sw.DeltaSink(PATH)), with the path of the table',
    "saveAsTable": '.to("NAME", sw.DeltaSink(PATH)), with the path of the table',
    "save": _SINK,
    "foreach": ".foreachBatch(function), which gets a DataFrame: frame.foreachPartition(…) runs code for the rows",
    "partitionBy": _COLUMNS,
    "clusterBy": _COLUMNS,
    "bucketBy": _COLUMNS,
    "sortBy": _COLUMNS,
}

START = {
    "path": '.to("NAME", sw.FileSink(PATH)) before .start()',
    "format": _SINK,
    "outputMode": '.outputMode("…") before .start()',
    "partitionBy": _COLUMNS,
    "queryName": '.queryName("…") before .start()',
}


def refuse_method(name: str) -> Unsupported:
    return _unsupported(f".{name}() is not served: rows go to sinks that commit with a checkpoint", METHODS[name])


def refuse_start(name: str) -> Unsupported:
    text = f"start({name}=…)" if name != "path" else "start(path)"
    return _unsupported(f"{text} is not served", START.get(name, f'.option("{name}", …) before .start()'))


def refuse_path() -> Unsupported:
    return _unsupported('the option "path" is not served: a pipeline has sinks, each with its own path', _SINK)


def _unsupported(message: str, hint: str) -> Unsupported:
    return Unsupported(message, code="query.unsupported", hint=f"use {hint}")


def refuse_trigger(name: str) -> Unsupported:
    why = {
        "continuous": "continuous processing has no micro-batches, and no state",
        "realTime": "real-time mode writes rows out before their micro-batch is on record",
    }
    return Unsupported(
        f"the trigger {name} is not served: {why[name]}",
        code="query.unsupported",
        hint='use processingTime="1 second" (or less) for low latency, or availableNow=True',
    )
