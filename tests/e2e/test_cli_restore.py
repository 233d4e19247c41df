"""``slackwater restore``: every form of a REF, and what was passed over on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slackwater.formats.manifest import references
from slackwater.inspect.pipelines import open_pipeline
from slackwater.recovery import load_manifest
from tests.e2e.test_cli import answer, flip, lines, refusal, slackwater
from tests.pipelines import Driver, make_pipeline

# One checkpoint a minute, the first at 10:00.
MINUTES = "@2026-11-15T10:0{}:30Z"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(make_pipeline(tmp_path, 5))


def restore(url: str, ref: str, directory: Path, code: int = 0) -> Any:
    return answer("restore", url, "--to", directory, "--at", ref, code=code)


def damage(url: str, epoch: int) -> None:
    """Flip a bit of an object that this epoch, and those after it, need."""
    opened = open_pipeline(url)
    entry = opened.state.find(epoch)
    assert entry is not None
    own = sorted(key for key in references(load_manifest(opened.store, entry)) if entry.checkpoint_id in key)
    flip(Path(url) / own[0])


def micro_batch(directory: Path) -> int:
    return max(int(path.name) for path in (directory / "commits").iterdir())


def test_a_checkpoint_is_restored_by_id_prefix_epoch_label_or_time(url: str, tmp_path: Path) -> None:
    entry = open_pipeline(url).state.live[2]
    answer("savepoint", "create", url, "third", "--at", "3")
    prefix = next(entry.checkpoint_id[:n] for n in range(4, 37) if _unique(url, entry.checkpoint_id[:n]))
    for number, ref in enumerate((entry.checkpoint_id, prefix, "3", "third", MINUTES.format(2))):
        done = restore(url, ref, tmp_path / str(number))
        assert (done["epoch"], done["checkpoint_id"], done["passed_over"]) == (3, entry.checkpoint_id, [])
        assert micro_batch(tmp_path / str(number)) == 2


def _unique(url: str, prefix: str) -> bool:
    return sum(entry.checkpoint_id.startswith(prefix) for entry in open_pipeline(url).state.live) == 1


def test_a_time_passes_over_what_was_undone_and_says_so(url: str, tmp_path: Path) -> None:
    answer("rollback", url, "--to", "2", "--yes")
    done = restore(url, MINUTES.format(3), tmp_path / "by-time")
    reason = "undone by a rollback"
    assert done["epoch"] == 2 and micro_batch(tmp_path / "by-time") == 1
    assert done["passed_over"] == [{"epoch": 4, "reason": reason}, {"epoch": 3, "reason": reason}]
    told = slackwater("restore", url, "--to", tmp_path / "told", "--at", MINUTES.format(3))
    assert told.returncode == 0
    assert "note: epoch 4 was passed over: undone by a rollback\nnote: epoch 3 was" in told.stderr
    # By its number it can still be had.
    assert restore(url, "4", tmp_path / "by-epoch")["passed_over"] == []
    assert micro_batch(tmp_path / "by-epoch") == 3
    assert "epoch 3 was passed over" in slackwater("show", url, "--at", MINUTES.format(2)).stderr


def test_latest_after_a_rollback_says_what_that_has_undone(url: str, tmp_path: Path) -> None:
    answer("rollback", url, "--to", "3", "--yes")
    done = restore(url, "latest", tmp_path / "latest")
    assert done["epoch"] == 6 and [passed["epoch"] for passed in done["passed_over"]] == [5, 4]
    assert slackwater("restore", url, "--to", tmp_path / "told").stderr.count("undone by a rollback") == 2
    Driver(tmp_path).step()
    assert restore(url, "latest", tmp_path / "later")["passed_over"] == [], "the pipeline has gone on since"


def test_newest_verified_passes_over_what_is_damaged_or_undone_with_each_reason(url: str, tmp_path: Path) -> None:
    answer("rollback", url, "--to", "4", "--yes")
    damage(url, 4)  # which 6, the rollback to it, needs too
    done = restore(url, "newest-verified", tmp_path / "sound")
    assert done["epoch"] == 3 and micro_batch(tmp_path / "sound") == 2
    assert [passed["epoch"] for passed in done["passed_over"]] == [6, 5, 4]
    reasons = [passed["reason"] for passed in done["passed_over"]]
    assert "missing or damaged" in reasons[0] and reasons[1] == "undone by a rollback"
    told = slackwater("restore", url, "--to", tmp_path / "told", "--at", "newest-verified")
    assert told.stderr.count("was passed over") == 3
    assert "epoch 3" in told.stdout.splitlines()[0]


def test_newest_verified_takes_the_head_when_that_is_sound(url: str, tmp_path: Path) -> None:
    assert lines("restore", url, "--to", tmp_path / "head", "--at", "newest-verified")[0].startswith(
        "restored     epoch 5"
    )


def test_newest_verified_does_not_take_a_full_directory_for_damage(url: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    assert "hydrate.not_empty" in refusal("restore", url, "--to", tmp_path / "full", "--at", "newest-verified", code=2)


def test_where_nothing_verifies_every_reason_is_told(url: str, tmp_path: Path) -> None:
    damage(url, 1)
    told = restore(url, "newest-verified", tmp_path / "none", code=13)["error"]
    assert told["code"] == "head.none_verifies"
    assert [passed["epoch"] for passed in told["details"]["passed_over"]] == [5, 4, 3, 2, 1]
    assert not (tmp_path / "none").exists()
