"""Receivers as processes, for the tests of their command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.receivers import Receiver


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Callable[..., tuple[Receiver, int]]]:
    made: list[Receiver] = []

    def start(*options: object, **environment: str) -> tuple[Receiver, int]:
        made.append(Receiver("http", tmp_path / "inbox", "--listen", "127.0.0.1:0", *options, **environment))
        port = made[-1].port()
        assert port is not None, made[-1].words
        return made[-1], port

    yield start
    for receiver in made:
        if receiver.process.poll() is None:
            receiver.end()
