"""Published versions: the folder in which the driver tells executors which version of a table a micro-batch reads.

A file by the number of the micro-batch, whose content is the folder of the version.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.005
# The first version may be a whole table.
_PATIENCE_S = 600


class PublishedVersions:
    """What is published of one table. ``path`` is in the query's plan: a link, to a folder of the run that goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- the driver's half

    def open(self, folder: Path) -> None:
        """Publish in a folder of this run.

        Links of runs that were killed lead nowhere once their working directories are removed: then they go, too.
        """
        folder.mkdir(parents=True)
        for other in self.path.parent.glob("table-*"):
            if other.is_symlink() and not other.exists():
                with suppress(OSError):  # somebody else's, or gone by now
                    other.unlink()
        self.path.symlink_to(folder)

    def publish(self, micro_batch: int, version: Path | None) -> None:
        """Say which version a micro-batch reads, for the tasks of it that wait for this; None: there is none."""
        made = self.path / f".{micro_batch}"
        made.write_text(str(version or ""))
        made.rename(self.path / str(micro_batch))

    def withdraw(self, micro_batch: int) -> None:
        """Take back what was said to a micro-batch: it has ended."""
        (self.path / str(micro_batch)).unlink(missing_ok=True)

    def close(self) -> None:
        """Let the link lead nowhere: tasks that wait have waited long enough."""
        self.path.unlink(missing_ok=True)

    # --- the executors' half

    def wait(self, micro_batch: str) -> str:
        """Wait for the driver to say which version it is: Spark may begin a moment before. Empty: there is none."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.path.is_dir() and time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                return (self.path / micro_batch).read_text()
            time.sleep(_POLL_S)
        return ""

    def newest(self) -> str:
        """Tell which version was published last, if one was."""
        numbers = list(self.path.glob("[0-9]*"))
        return max(numbers, key=lambda path: int(path.name)).read_text() if numbers else ""
