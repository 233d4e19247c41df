"""The files of both sinks, listed as their readers would."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from slackwater import read_committed


def list_files(folder: Path) -> dict[str, list[str]]:
    return {
        "delta": DeltaTable(str(folder / "totals-delta")).file_uris(),
        "files": read_committed(folder / "totals-files"),
    }
