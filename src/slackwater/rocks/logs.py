"""All logs of a database, checked before RocksDB opens it: a torn end is cut off, damage is an error."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..store.files import sync
from .errors import Owner
from .wal import Damage, find_end

_MANIFEST = re.compile(r"MANIFEST-[0-9]{1,20}")
_LOG = re.compile(r"[0-9]+\.log")
# RocksDB makes it when it first opens a folder, and never in a checkpoint.
_OPENED = "IDENTITY"
# It makes these after its first log, so that where it has opened the folder, and one of these is, there must be a log.
# MANIFEST-000001 comes before that log, and the next one after it.
_AFTER_LOG = re.compile(r"[0-9]+\.sst|OPTIONS-[0-9]+|MANIFEST-(?!0*1$)[0-9]+")


def check_manifest(folder: Path, owner: Owner) -> None:
    """See that the list of tables is sound: RocksDB takes a damaged length for its end, and deletes what is not listed.

    It has the form of a log. What a crash has torn off its end was never relied on.
    """
    current = folder / "CURRENT"
    if current.exists():
        # The name is ours to check: it is a path that was read from a disk.
        name = current.read_text(encoding="ascii", errors="replace").strip()
        listed = folder / name if _MANIFEST.fullmatch(name) else None
        if listed is not None and listed.exists():
            _find_end(listed, owner)


def cut_torn_write(folder: Path, owner: Owner) -> None:
    """Cut a write that a crash has torn off the log's end; see that all else of the log is sound."""
    names = os.listdir(folder)
    # By number: a seventh digit comes before the others in the alphabet.
    logs = sorted((folder / name for name in names if _LOG.fullmatch(name)), key=lambda log: int(log.stem))
    if not logs and _OPENED in names and any(map(_AFTER_LOG.fullmatch, names)):
        raise owner.log_missing(f"the write-ahead log in {folder} is missing")
    for log in logs:
        size = log.stat().st_size
        end = _find_end(log, owner) if size else 0
        if end < size:
            if log != logs[-1] and any(log.read_bytes()[end:]):
                said = f"the write-ahead log {log} ends in a torn write, and another comes after it"
                raise owner.log_damaged(said, offset=end)
            with open(log, "r+b") as opened:
                opened.truncate(end)
                sync(opened.fileno())


def _find_end(log: Path, owner: Owner) -> int:
    try:
        return find_end(log.read_bytes())
    except Damage as damage:
        said = f"the log {log} is damaged at byte {damage.at}, and what was acknowledged there cannot be read"
        raise owner.log_damaged(said, offset=damage.at) from None
