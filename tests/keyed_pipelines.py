"""A keyed pipeline in a folder, as the tests open it, look at it and take its local database away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from slackwater.keyed.checkpoints import KeyedCheckpoints
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.ops.verify import verify


def config_of(folder: Path, **fields: Any) -> CheckpointConfig:
    return CheckpointConfig(folder / "store" / "counts", **fields)


def content(folder: Path, **fields: Any) -> dict[bytes, bytes]:
    with open_keyed(config_of(folder, **fields)) as counts:
        return dict(counts.scan())


def forget_local(folder: Path) -> None:
    """As on another machine: nothing local is there."""
    shutil.rmtree(folder / "store" / "counts.wal")


def sound(folder: Path) -> bool:
    return verify(folder / "store" / "counts", read_data=True).sound


def fill(counts: KeyedCheckpoints, keys: Any, size: int = 100) -> None:
    counts.write([(b"%08d" % key, os.urandom(size)) for key in keys])
