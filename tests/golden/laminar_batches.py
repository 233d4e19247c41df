"""The hand-made batches of ``laminar/lcb1.json``, for tests that need one."""

from __future__ import annotations

import json

from tests.golden.samples import FOLDER

_VECTORS = json.loads((FOLDER / "laminar" / "lcb1.json").read_text(encoding="utf-8"))["vectors"]


def bytes_of(name: str) -> bytes:
    """Put a vector's lines together: each is bytes in hex, two spaces, and why."""
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in _VECTORS[name]["bytes"])


VERSION_1 = bytes_of("one entry, version 1")
VERSION_2 = bytes_of("two entries")
