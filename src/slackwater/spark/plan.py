"""What a streaming DataFrame's plan tells before it runs: its sources, and a fingerprint of the query."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What differs between two runs of an unchanged query: expression numbers, object addresses, random ids; and what may
# differ: where a source reads from, and its options.
_NOISE = [
    (re.compile(r"#\d+L?"), "#"),
    (re.compile(r"@[0-9a-f]+"), "@"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "uuid"),
    (re.compile(r"\$Lambda[^\s,)\]]*"), "lambda"),
    (re.compile(r"(FileSource)\[[^\]]*\]"), r"\1"),
    (re.compile(r"(StreamingRelationV2 \S+, [^,]+, \S+), \[[^\]]*\]"), r"\1"),
]


def source_types(frame: DataFrame) -> list[str]:
    """List the kinds of the streaming sources, in the order in which Spark's offset log has them."""
    types: dict[int, str] = {}
    leaves = _analyzed(frame).collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.isStreaming():
            # A source that is used twice is read once; equal relations have equal hash codes.
            name = leaf.sourceName() if hasattr(leaf, "sourceName") else leaf.nodeName()
            types.setdefault(leaf.hashCode(), name.partition("[")[0].lower().removesuffix("source"))
    return list(types.values())


def pipeline_hash(frame: DataFrame, output_mode: str, sinks: Sequence[str]) -> str:
    """Hash what the query computes; an unchanged query has an equal hash in every run.

    ``sinks`` are the sinks' names and kinds.
    """
    plan = _analyzed(frame).toString()
    for pattern, replacement in _NOISE:
        plan = pattern.sub(replacement, plan)
    return hashlib.sha256("\n".join([output_mode.lower(), *sorted(sinks), plan]).encode()).hexdigest()


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()
