"""The configuration of a keyed pipeline, with the names and the defaults of LaminarDB's ``incremental/manager.rs``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InvalidInput
from ..protocol.address import pipeline_name
from ..settings import MIB
from ..store import local_folder

MAX_RETAINED = 500
_MAX_INTERVAL_S = 366 * 86_400.0
_MAX_WAL_BYTES = 2**53 - 1


class CheckpointConfig(msgspec.Struct, frozen=True):
    """Where a keyed pipeline is, when it checkpoints, and what it keeps. ``docs/keyed.md`` has all of it.

    >>> config = CheckpointConfig("store/counts", interval=0.5)
    >>> config.validate()
    >>> config.folder.name, config.max_retained, config.min_wal_size_for_checkpoint
    ('counts.wal', 3, 67108864)
    """

    checkpoint_dir: str | os.PathLike[str]
    wal_path: str | os.PathLike[str] | None = None
    interval: float | timedelta = 60.0
    max_retained: int = 3
    truncate_wal: bool = True
    min_wal_size_for_checkpoint: int = 64 * MIB
    incremental: bool = True

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> CheckpointConfig:
        """Make a configuration of options by name, as they are read from a file; an unknown one is refused."""
        names = cls.__struct_fields__
        for name in options:
            if name not in names:
                near = get_close_matches(str(name), names, n=1)
                raise InvalidInput(
                    f"there is no option {name!r}",
                    code="option.unknown",
                    hint=f"did you mean {near[0]}?" if near else f"they are {', '.join(names)}",
                )
        if "checkpoint_dir" not in options:
            raise _bad("checkpoint_dir must be given", "it is the pipeline's path or URL, such as store/counts")
        config = cls(**options)
        config.validate()
        return config

    @property
    def url(self) -> str:
        """The pipeline's URL: ``{store}/{name}``."""
        return _text("checkpoint_dir", self.checkpoint_dir)

    @property
    def interval_s(self) -> float:
        return self.interval.total_seconds() if isinstance(self.interval, timedelta) else float(self.interval)

    @property
    def folder(self) -> Path:
        """The local folder of the database and its write-ahead log."""
        root = local_folder(self.url)
        if self.wal_path is not None:
            given = _text("wal_path", self.wal_path)
            if ":" in given.partition("/")[0] or not given.strip() or "\0" in given:
                raise _bad(
                    f"wal_path is {given!r}, which is no path of a local folder",
                    "name one on a disk of this machine: a write is acknowledged when that disk has it",
                )
            folder = Path(os.path.abspath(os.path.expanduser(given)))
            if root is not None and (folder == root or folder.is_relative_to(root)):
                raise _bad(f"wal_path {given!r} is inside of checkpoint_dir", "name a folder beside it")
            if root is not None and root.is_relative_to(folder):
                raise _bad(f"checkpoint_dir is inside of wal_path {given!r}", "name a folder of its own")
            return folder
        if root is None:
            raise _bad(
                "wal_path must be given: a write-ahead log is a local folder, and checkpoint_dir is not on this disk",
                "name a folder on a disk of this machine that stays: what was acknowledged since the newest "
                "checkpoint is there and nowhere else",
            )
        return root.with_name(f"{root.name}.wal")

    def validate(self) -> None:
        """Refuse what cannot be meant, with the reason; nothing is read or written."""
        pipeline_name(self.url)
        _ = self.folder
        if not isinstance(self.interval, timedelta | int | float) or isinstance(self.interval, bool):
            raise _bad(f"interval is {self.interval!r}", "give seconds, or a timedelta")
        _within("interval", self.interval_s, 0, _MAX_INTERVAL_S, above=True)
        _within("max_retained", _whole("max_retained", self.max_retained), 1, MAX_RETAINED)
        least = _whole("min_wal_size_for_checkpoint", self.min_wal_size_for_checkpoint)
        _within("min_wal_size_for_checkpoint", least, 1, _MAX_WAL_BYTES)
        for name in ("truncate_wal", "incremental"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(f"{name} is {getattr(self, name)!r}", "give True or False")


def _text(name: str, given: Any) -> str:
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise _bad(f"{name} is {given!r:.100}", "give a path or a URL, as text")
    return path


def _whole(name: str, given: Any) -> int:
    if type(given) is not int:
        raise _bad(f"{name} is {given!r:.100}", "give a whole number")
    return given


def _within(name: str, value: float, least: float, most: float, *, above: bool = False) -> None:
    if not math.isfinite(value) or value > most or value < least or (above and value == least):
        raise InvalidInput(
            f"{name} is {value:g}, and must be {'above' if above else 'at least'} {least:g}, and at most {most:g}",
            code="option.out_of_bounds",
            hint="change the value, or leave it out",
        )


def _bad(what: str, hint: str) -> InvalidInput:
    return InvalidInput(what, code="option.bad_value", hint=hint)
