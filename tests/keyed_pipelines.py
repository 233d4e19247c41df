"""A keyed pipeline in a folder, as the tests open it, look at it and take its local database away."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import click

from slackwater.cli import restore as cli_restore
from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.keyed.state import KeyedState
from slackwater.ops.keyed import keyed_checkpoints
from slackwater.ops.verify import verify


def url_of(folder: Path) -> str:
    return str(folder / "store" / "counts")


def config_of(folder: Path, **fields: Any) -> CheckpointConfig:
    return CheckpointConfig(url_of(folder), **fields)


def content(folder: Path, **fields: Any) -> dict[bytes, bytes]:
    with open_keyed(config_of(folder, **fields)) as counts:
        return dict(counts.scan())


def forget_local(folder: Path) -> None:
    """As on another machine: nothing local is there."""
    shutil.rmtree(folder / "store" / "counts.wal")


def sound(folder: Path) -> bool:
    return verify(folder / "store" / "counts", read_data=True).sound


def listed(folder: Path) -> list[int]:
    """Name the epochs that are kept, newest first."""
    return [made.epoch for made in keyed_checkpoints(url_of(folder))]


def ask(command: click.Command, url: str, *args: object) -> None:
    """Run a command in this process; what it refuses is raised."""
    command.main([url, *map(str, args)], standalone_mode=False)


def restore(url: str, epoch: int, directory: Path) -> Path:
    """Restore a checkpoint into a directory; return the folder of its keyed state."""
    ask(cli_restore.command, url, "--at", epoch, "--to", directory)
    return directory / "keyed" / "state"


def fill(counts: KeyedCheckpoints, keys: Any, size: int = 100) -> None:
    counts.write([(b"%08d" % key, os.urandom(size)) for key in keys])


class Disk:
    """A database whose syncs take their time, are counted, and may be held or fail: with an error, or RocksDB's words.

    ``breaks`` is raised after the next write, which has come to the log.
    """

    def __init__(self, database: Any, *, fails: str | BaseException | None = None) -> None:
        self.database, self.fails, self.syncs = database, fails, 0
        self.breaks: BaseException | None = None
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def hold(self) -> None:
        """Let the next sync begin, and wait until the test lets it go on."""
        self.began.clear()
        self.goes_on.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def write(self, *given: Any) -> None:
        self.database.write(*given)
        breaks, self.breaks = self.breaks, None
        if breaks is not None:
            raise breaks

    def flush_wal(self, sync: bool) -> None:
        self.syncs += 1
        self.began.set()
        time.sleep(0.01)
        assert self.goes_on.wait(30)
        if self.fails is not None:
            raise self.fails if isinstance(self.fails, BaseException) else Exception(self.fails)
        self.database.flush_wal(sync=sync)


def slow_disk(state: KeyedState, **fields: Any) -> Disk:
    disk = Disk(state._rocks._database, **fields)
    state._rocks._database = disk  # type: ignore[assignment]
    return disk


def plain_disk(state: KeyedState) -> None:
    """Take it out again: RocksDB makes a checkpoint only of what is its own."""
    disk: Any = state._rocks._database
    state._rocks._database = disk.database
