"""The working directory of one generation: Spark's own ``checkpointLocation``, made fresh and thrown away."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ..errors import InvalidInput
from ..formats.keys import format_name
from ..formats.manifest import Manifest
from ..protocol.artifacts import Holdings
from ..settings import Settings
from ..store import Store
from .hydrate import hydrate

VARIABLE = "SLACKWATER_WORK"
_OWNER = "owner.json"


class WorkingDirectory:
    """``{root}/{pipeline}-{hash of the store}/{generation}-{random}/checkpoint``, with a note of who uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"

    @classmethod
    def make(cls, place: Path, generation: int, jvm_pid: int) -> WorkingDirectory:
        """Make a fresh one, after removing those of older generations whose processes are gone."""
        prefix = f"{generation:020d}-"
        try:
            for old in place.iterdir():
                if old.name < prefix and not _in_use(old):
                    shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            # A driver that is killed leaves its JVM behind for a second or more: both must be gone.
            owners = [{"pid": pid, "started": _started(pid)} for pid in (os.getpid(), jvm_pid)]
            (folder / _OWNER).write_text(json.dumps(owners))
        except OSError as error:
            raise _unusable(place, error) from None
        return cls(folder)

    def hydrate(self, store: Store, manifest: Manifest, settings: Settings) -> Holdings:
        """Let the directory hold this checkpoint, and nothing of one that was tried before it."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        return hydrate(store, manifest, self.checkpoint, settings)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def working_place(given: str | None, store_url: str, pipeline: str) -> Path:
    """Find or make the folder that holds this pipeline's working directories."""
    root = working_root(given)
    place = root / f"{format_name(pipeline)}-{hashlib.sha256(store_url.encode()).hexdigest()[:12]}"
    try:
        place.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(root, error) from None
    return place.resolve()


def working_root(given: str | None = None) -> Path:
    """Find or make the folder that holds everything that is disposable."""
    chosen = given or os.environ.get(VARIABLE)
    root = Path(chosen).expanduser() if chosen else Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    if chosen and "://" in chosen:
        raise _unusable(chosen, "it is a URL, and Spark works in a folder of this machine")
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = root.lstat()
    except OSError as error:
        raise _unusable(root, error) from None
    # In a folder that everybody may write to, somebody else could have put a link in our place.
    if not chosen and (status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode)):
        raise InvalidInput(
            f"{root} belongs to somebody else",
            code="folder.unusable",
            hint=f'set .option("workdir", …) or {VARIABLE} to a folder of your own',
        )
    return root.resolve()


def _unusable(folder: Path | str, why: OSError | str) -> InvalidInput:
    return InvalidInput(
        f"no working directory can be made in {folder}: {why if isinstance(why, str) else why.strerror}",
        code="folder.unusable",
        hint=f'set .option("workdir", …) or {VARIABLE} to a folder that this user can write to',
    )


def _in_use(folder: Path) -> bool:
    try:
        owners = json.loads((folder / _OWNER).read_text())
        return any(owner["started"] is not None and _started(owner["pid"]) == owner["started"] for owner in owners)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _started(pid: int) -> str | None:
    """When a process began, as the kernel counts; None when there is none of this number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return "unknown"
