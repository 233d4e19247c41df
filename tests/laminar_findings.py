"""What is wrong with a document of LaminarDB, by a name for each case: codes are few, so the message tells the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Each case: its code, and how its message begins.
CASES = {
    # nothing may be restored
    "refused": ("refused", r".+ cannot be trusted: "),
    "malformed": ("damaged", r"LaminarDB's document does not decode: "),
    "digest mismatch": ("damaged", r"its SHA-256 is not the one that the manifest names|partition .+ is not what its"),
    "missing field": ("damaged", r"the field is missing"),
    "duplicate key": ("damaged", r"(the|a) key comes twice"),
    "bad digest": ("damaged", r"its SHA-256 is not 64 hex digits"),
    "state misplaced": ("damaged", r"the operator's state cannot be found: "),
    "state overlap": ("damaged", r"its range of state\.bin overlaps another operator's"),
    "state range": ("damaged", r"the ranges end at byte \d+|state\.bin has \d+ bytes, "),
    "state missing": ("damaged", r"state\.bin is not there"),
    "bad path": ("damaged", r"its path does not lead to "),
    "wrong total": ("damaged", r"the sizes add up to \d+, not \d+"),
    "wrong id": ("damaged", r"the document says .+, its name says "),
    "object missing": ("damaged", r"the object is not there"),
    "object size": ("damaged", r"(?!state\.bin)\S+ has \d+ bytes, not \d+"),
    "two manifests": ("damaged", r"checkpoint .+ has two manifests, "),
    "unreadable": ("damaged", r"it could not be read: "),
    "chain broken": ("damaged", r"the deltas of (checkpoint|partition) .+ (need an older one|do not lead back)"),
    "batch damaged": ("damaged", r"the batch (does not begin|is cut off|has (?!version)|ends )"),
    "zero": ("inconsistent", r"it is 0, and counts from 1"),
    "number range": ("inconsistent", r"the number is above 2\^53 - 1"),
    "watermark range": ("inconsistent", r"a watermark before 1970"),
    "source without offsets": ("inconsistent", r"the source .+ has no offsets"),
    "unknown source": ("inconsistent", r".+ is not in source_names"),
    "unknown sink": ("inconsistent", r".+ is not in sink_names"),
    "sink mismatch": ("inconsistent", r"the sink .+ has (an epoch and no commit status|a commit status and no epoch)"),
    "sink ahead": ("inconsistent", r"the sink has committed epoch \d+, after epoch \d+"),
    "name twice": ("inconsistent", r"a name comes twice"),
    "epoch mismatch": ("inconsistent", r"it belongs to epoch \d+, after epoch \d+"),
    "bad parent": ("inconsistent", r"its parent is not older than itself|the checkpoint is its own parent"),
    "delta without base": (
        "inconsistent",
        r"it is incremental and names no parent|it is a delta, and the .+ no parent",
    ),
    "partition twice": ("inconsistent", r"a partition comes twice"),
    "partition missing": ("inconsistent", r"a partition is missing between"),
    "hostile name": ("inconsistent", r"it is empty, made of dots, too long"),
    "object shared": ("inconsistent", r"another partition has the same object"),
    "sink not committed": ("sink_not_committed", r"the sink's commit is (Pending|Failed): "),
    "unknown version": (
        "unsupported",
        r"LaminarDB's manifest has version |the batch has version \d+, and LaminarDB's ",
    ),
    "unknown field": ("unsupported", r"the field is unknown"),
    "vnode count": ("unsupported", r"state is spread over .+ virtual partitions, not 256"),
    "table store outside": ("unsupported", r"the reference tables are outside the checkpoint"),
    "batch unchecked": ("unsupported", r"the batch has version 1, which has no checksum"),
    "no digest": ("unverifiable", r"(nothing says|there is no SHA-256|it has no SHA-256).+ so .+ cannot be verified"),
    # worth knowing
    "no self digest": ("unverifiable", r"the manifest has no digest: "),
    "no checksum": ("unverifiable", r"version 1 has no checksum"),
    "no time": ("unusual", r"it is 0: the clock could not be read"),
    "no total": ("unusual", r"it is 0 and was never computed"),
    "epoch older": ("unusual", r"it belongs to epoch \d+, before epoch \d+"),
    "names unsorted": ("unusual", r"the names are not sorted"),
    "state gap": ("unusual", r"\d+ bytes (of state\.bin before it|at the end of state\.bin) belong to nobody"),
    "state absent": ("unusual", r"there is no state\.bin"),
    "delta base implied": ("unusual", r"it is a delta and does not name its base"),
    "not UUIDv7": ("unusual", r"it is not a UUIDv7"),
    "foreign key": ("unusual", r"its name is none that LaminarDB gives"),
    "partial": ("unusual", r"the checkpoint was begun and has no document"),
    "latest": ("unusual", r"it (names no checkpoint of the folder|does not name the checkpoint of the greatest epoch)"),
    "offsets without topic": ("unusual", r"the keys do not name the topic"),
    "sinks unknown": ("unusual", r"it says nothing about sinks"),
    "defective paths": ("unusual", r"\d+ of the checkpoints lie beside their folders"),
    "unwritable": (
        "invalid",
        r"LaminarDB's document cannot be written: |a batch of more than \d+ bytes|.+ cannot be a key",
    ),
}


def tell(wrong: Any) -> str:
    """Name the one case that a finding or an error is, and see that it has the code of that case."""
    code, message = (wrong["code"], wrong["message"]) if isinstance(wrong, Mapping) else (wrong.code, wrong.message)
    found = [(name, of) for name, (of, words) in CASES.items() if re.match(words, message)]
    assert [f"laminar.{of}" for _, of in found] == [code], (code, message, found)
    return found[0][0]
