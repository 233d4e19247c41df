"""The one writer of verified files into a directory: whole or not there, checked by its kind, synced where it lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slackwater.cli.restore import command
from slackwater.errors import Corrupt
from slackwater.keyed import checkpoints
from slackwater.keyed.capture import capture_keyed, read_snapshot
from slackwater.keyed.documents import DESCRIPTION_FILE, encode
from slackwater.keyed.opening import open_keyed
from tests.keyed_pipelines import config_of, fill
from tests.pipelines import make_pipeline


def restore(url: object, target: Path) -> None:
    """Restore as the command does."""
    command.main([str(url), "--to", str(target)], standalone_mode=False)


def make_keyed(root: Path) -> Path:
    with open_keyed(config_of(root)) as counts:
        fill(counts, range(100))
        counts.create_checkpoint()
    return root / "store" / "counts"


def unsynced(target: Path, synced: set[int]) -> list[Path]:
    """Name what a power loss could take of a directory, and the name of the directory itself."""
    return [path for path in (target.parent, target, *target.rglob("*")) if path.stat().st_ino not in synced]


@pytest.mark.parametrize("make", [make_keyed, lambda root: make_pipeline(root, 3)], ids=["keyed", "spark"])
def test_what_is_restored_outlasts_a_power_loss(tmp_path: Path, synced: set[int], make: Any) -> None:
    url, target = make(tmp_path), tmp_path / "new" / "restored"
    synced.clear()
    restore(url, target)
    assert len(list(target.rglob("*"))) > 5 and unsynced(target, synced) == []
    assert tmp_path.stat().st_ino in synced, "the folder that was made for it has a name, too"


def test_a_keyed_checkpoint_is_restored_only_if_its_database_is_what_was_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture_wrongly(folder: Path, *rest: Any) -> Any:
        # Every byte is stored, and verifies, as it is here.
        snapshot = read_snapshot(folder)
        state = msgspec.structs.replace(snapshot.state, key_count=snapshot.state.key_count + 1)
        (folder / DESCRIPTION_FILE).write_bytes(encode(msgspec.structs.replace(snapshot, state=state)))
        return capture_keyed(folder, *rest)

    monkeypatch.setattr(checkpoints, "capture_keyed", capture_wrongly)
    url = make_keyed(tmp_path)
    with pytest.raises(Corrupt) as caught:
        restore(url, tmp_path / "out" / "restored")
    assert caught.value.code == "keyed.damaged"
    assert list((tmp_path / "out").iterdir()) == []
