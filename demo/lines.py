"""Lines that tell what happens in an act."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


def say(console: Console, line: str) -> None:
    """Print a line below an act's title; a long one stays indented where it is wrapped."""
    console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
