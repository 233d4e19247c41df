"""What both halves of act two do: flip one bit of a stored file, and say what happens."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


def flip(file: Path, at: int) -> None:
    """Flip the lowest bit of the byte at ``at``, in place: size and name stay as they are."""
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def say(console: Console, line: str) -> None:
    """Print a line below an act's title; a long one stays indented where it is wrapped."""
    console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
