"""One flipped bit, in a stored file."""

from __future__ import annotations

from pathlib import Path


def flip(file: Path, at: int) -> None:
    """Flip the lowest bit of the byte at ``at``, in place: size and name stay as they are."""
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
