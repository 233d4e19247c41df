"""The list of sink kinds. A new one is a folder here that implements ``protocol/sinks.py``, and a line in this list."""

from __future__ import annotations

from importlib import import_module

from ..protocol.sinks import Sink

# Each in a folder of its own, which nothing but this imports.
_BY_KIND = {"delta": (".delta.sink", "DeltaSink"), "files": (".files.sink", "FileSink")}


def open_sink(kind: str, address: str) -> Sink | None:
    """Open the sink that a manifest names, to plan with; None when that cannot be done by its address, or not here."""
    if kind not in _BY_KIND:
        return None
    module, name = _BY_KIND[kind]
    try:
        # Now, and not before: each brings its own heavy libraries, which are extras.
        opened = getattr(import_module(module, __package__), name)
    except ImportError:
        return None
    sink: Sink = opened(address)
    return sink
