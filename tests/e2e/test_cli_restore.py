"""``slackwater restore``: every form of a REF, and what was passed over on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.formats.manifest import references
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.savepoint import create_label
from slackwater.protocol.verified_reads import load_manifest
from tests.commands import NOWHERE, answer, command, environment, lines, refusal, slackwater
from tests.pipelines import Driver, flip, make_pipeline
from tests.services.tiny_s3 import TinyS3

# One checkpoint a minute, the first at 10:00.
MINUTES = "@2026-11-15T10:0{}:30Z"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(make_pipeline(tmp_path, 5))


def restore(url: str, ref: str, directory: Path, code: int = 0) -> Any:
    return answer("restore", url, "--to", directory, "--at", ref, code=code)


def damage(url: str, epoch: int) -> None:
    """Flip a bit of an object that this epoch, and those after it, need."""
    opened = read_pipeline(url)
    entry = opened.state.find(epoch)
    assert entry is not None
    own = sorted(key for key in references(load_manifest(opened.store, entry)) if entry.checkpoint_id in key)
    flip(Path(url) / own[0])


def micro_batch(directory: Path) -> int:
    return max(int(path.name) for path in (directory / "commits").iterdir())


def test_a_checkpoint_is_restored_by_id_prefix_epoch_label_or_time(url: str, tmp_path: Path) -> None:
    entry = read_pipeline(url).state.live[2]
    answer("savepoint", "create", url, "third", "--at", "3")
    prefix = next(entry.checkpoint_id[:n] for n in range(4, 37) if _unique(url, entry.checkpoint_id[:n]))
    for number, ref in enumerate((entry.checkpoint_id, prefix, "3", "third", MINUTES.format(2))):
        done = restore(url, ref, tmp_path / str(number))
        assert (done["epoch"], done["checkpoint_id"], done["passed_over"]) == (3, entry.checkpoint_id, [])
        assert micro_batch(tmp_path / str(number)) == 2


def _unique(url: str, prefix: str) -> bool:
    return sum(entry.checkpoint_id.startswith(prefix) for entry in read_pipeline(url).state.live) == 1


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
    told = refusal("restore", url, "--to", tmp_path / "full", "--at", "newest-verified", code=2)
    assert "[folder.unusable]" in told and "is not empty" in told


def test_where_nothing_verifies_every_reason_is_told(url: str, tmp_path: Path) -> None:
    damage(url, 1)
    told = restore(url, "newest-verified", tmp_path / "none", code=13)["error"]
    assert told["code"] == "head.none_verifies"
    assert [passed["epoch"] for passed in told["details"]["passed_over"]] == [5, 4, 3, 2, 1]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("to", ["s3://bucket/x", "file:///tmp/x"])
def test_a_url_is_no_directory_to_restore_into(url: str, tmp_path: Path, to: str) -> None:
    assert f"{to} is a URL" in refusal("restore", url, "--to", to, code=2)
    assert not Path("s3:").exists() and not Path("file:").exists()


@pytest.mark.parametrize("to", ["store/orders/x", "x/../store/orders/x", "link/orders"])
def test_a_directory_inside_the_pipeline_is_refused_however_it_is_written(url: str, tmp_path: Path, to: str) -> None:
    (tmp_path / "link").symlink_to(Path(url).parent)
    for pipeline in (url, tmp_path / "link" / "orders"):
        assert "inside the pipeline's own folder" in refusal("restore", pipeline, "--to", tmp_path / to, code=2)
    assert not (Path(url) / "x").exists()


# --- beside a driver, and interrupted


def objects_of(root: Path) -> dict[str, bytes]:
    store = root / "store"
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begin_restore(tiny: TinyS3, target: Path, ref: str) -> subprocess.Popen[bytes]:
    """Begin, and return while it waits for the manifest, which it has asked for after the newest record."""
    tiny.delays_s = {"get": 1}
    process = subprocess.Popen(
        command("restore", "s3://bucket/orders", "--to", target, "--at", ref, "--json"),
        env=environment(**NOWHERE, AWS_ENDPOINT_URL=tiny.options["endpoint"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: tiny.asked.count("get") >= 2)
    return process


@pytest.mark.parametrize("ref", ["latest", "newest-verified", MINUTES.format(9), "2"])
def test_what_a_driver_retires_while_it_is_restored_is_no_damage(tiny: TinyS3, tmp_path: Path, ref: str) -> None:
    driver = Driver(tmp_path, keep_last=1)
    driver.step()
    create_label(driver.log, "old", "1")
    driver.step()
    before = objects_of(tmp_path)
    driver.step()
    driver.step()
    tiny.objects = before
    process = begin_restore(tiny, tmp_path / "out", ref)
    tiny.objects, tiny.delays_s = objects_of(tmp_path), {}
    stdout, stderr = process.communicate(timeout=60)
    told = json.loads(stdout)
    if ref == "2":
        assert (process.returncode, told["error"]["code"]) == (10, "checkpoint.not_found"), stderr
        assert "epoch 2 is no longer kept" in told["error"]["message"]
        assert not (tmp_path / "out").exists()
    else:
        assert (process.returncode, told["epoch"], told["passed_over"]) == (0, 4, []), stderr
        assert micro_batch(tmp_path / "out") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [1, 20])
def test_an_interrupted_restore_leaves_nothing_half_written(
    tiny: TinyS3, tmp_path: Path, number: signal.Signals, delay_s: int
) -> None:
    make_pipeline(tmp_path, 3)
    tiny.objects = objects_of(tmp_path)
    process = begin_restore(tiny, tmp_path / "out" / "here", "latest")
    tiny.delays_s = {"get": delay_s}
    wait_until(lambda: list(tmp_path.glob("out/.here.*.partial")))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=15)
    assert (process.returncode, stderr.strip()) == (130, b"interrupted")
    assert list((tmp_path / "out").iterdir()) == []
