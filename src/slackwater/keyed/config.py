"""The configuration of a keyed pipeline, with the names and the defaults of LaminarDB's ``incremental/manager.rs``."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import InvalidInput
from ..protocol.address import pipeline_name
from ..settings import MIB
from ..store import local_folder


class CheckpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a keyed pipeline checkpoints, and what it keeps: options with bounds."""

    interval: Annotated[float, Meta(gt=0, le=366 * 86_400)] | timedelta = 60.0
    max_retained: Annotated[int, Meta(ge=1, le=500)] = 3
    truncate_wal: bool = True
    min_wal_size_for_checkpoint: Annotated[int, Meta(ge=1, le=2**53 - 1)] = 64 * MIB
    incremental: bool = True

    @property
    def interval_s(self) -> float:
        return self.interval.total_seconds() if isinstance(self.interval, timedelta) else self.interval


class CheckpointConfig(CheckpointOptions, frozen=True):
    """Where a keyed pipeline is, when it checkpoints, and what it keeps. ``docs/keyed.md`` has all of it.

    >>> config = CheckpointConfig("store/counts", interval=0.5)
    >>> config.validate()
    >>> config.folder.name, config.max_retained, config.min_wal_size_for_checkpoint
    ('counts.wal', 3, 67108864)
    """

    checkpoint_dir: str | os.PathLike[str]
    wal_path: str | os.PathLike[str] | None = None

    @property
    def url(self) -> str:
        """The pipeline's URL: ``{store}/{name}``."""
        return _text("checkpoint_dir", self.checkpoint_dir)

    @property
    def folder(self) -> Path:
        """The local folder of the database and its write-ahead log."""
        root = local_folder(self.url)
        if self.wal_path is not None:
            given = _text("wal_path", self.wal_path)
            if ":" in given.partition("/")[0] or not given.strip() or "\0" in given:
                raise _bad(
                    f"wal_path is {given!r}, which is not the path of a local folder",
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
        given = {name: getattr(self, name) for name in CheckpointOptions.__struct_fields__}
        try:
            # The type timedelta is named so that text is not taken for one.
            msgspec.convert({**given, "interval": self.interval_s}, CheckpointOptions, builtin_types=(timedelta,))
        except msgspec.ValidationError as error:
            expected, _, name = str(error).replace("`", "").removeprefix("Expected ").partition(" - at $.")
            raise InvalidInput(
                f"{name} is {given[name]!r:.100}; expected {expected}",
                code="option.invalid",
                hint="change the value, or leave it out; docs/keyed.md has all options",
            ) from None


def _text(name: str, given: Any) -> str:
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise _bad(f"{name} is {given!r:.100}", "give a path or a URL, as text")
    return path


def _bad(what: str, hint: str) -> InvalidInput:
    return InvalidInput(what, code="option.invalid", hint=hint)
