"""What ``sw`` offers of the command line's verbs, with the same words."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from tests.pipelines import START_MS, STEP_MS, flip, make_pipeline
from tests.services.tiny_s3 import TinyS3


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return make_pipeline(tmp_path, 4)


def serve(tiny: TinyS3, url: Path) -> dict[str, Any]:
    """Put the pipeline into a bucket, and name it there."""
    tiny.objects = {str(path.relative_to(url.parent)): path.read_bytes() for path in url.rglob("*") if path.is_file()}
    return {"url": f"s3://bucket/{url.name}", "storage_options": tiny.options}


def test_a_list_reads_the_newest_record_alone(url: Path, tiny: TinyS3) -> None:
    found = sw.list(**serve(tiny, url))
    assert sorted(tiny.asked) == ["get", "list", "list"]
    assert [(entry.epoch, entry.head, entry.created_at_ms) for entry in found.checkpoints] == [
        (epoch, epoch == 4, START_MS + STEP_MS * (epoch - 1)) for epoch in (1, 2, 3, 4)
    ]
    assert {(entry.micro_batch, entry.size_bytes, entry.problem) for entry in found.checkpoints} == {(None, None, None)}


def test_a_long_list_reads_every_manifest(url: Path, tiny: TinyS3) -> None:
    found = sw.list(**serve(tiny, url), long=True)
    assert tiny.asked.count("get") == 1 + 4
    assert [entry.micro_batch for entry in found.checkpoints] == [0, 1, 2, 3]
    assert all(entry.size_bytes for entry in found.checkpoints)


def test_every_verb_takes_the_options_of_the_store(url: Path, tiny: TinyS3, tmp_path: Path) -> None:
    place = serve(tiny, url)
    assert [found.epoch for found in sw.pipelines("s3://bucket", storage_options=tiny.options)] == [4]
    assert sw.show(**place).checkpoint.epoch == 4
    assert sw.verify(**place, read_data=True).sound
    assert sw.savepoint(**place, label="old", at=1).checkpoint_created_at_ms == START_MS
    assert [found.label for found in sw.savepoints(**place)] == ["old"]
    assert sw.restore(**place, to=tmp_path / "out", at="old").epoch == 1
    assert sw.forget(**place, keep_last=2).forgotten_epochs == [2]
    assert sw.delete_savepoint(**place, label="old").epoch == 1


def test_what_a_time_has_passed_over_is_told_wherever_a_checkpoint_is_named(url: Path, tmp_path: Path) -> None:
    sw.rollback(url, 2)
    at = "@2026-11-15T10:02:30Z"
    assert [one.epoch for one in sw.show(url, at).passed_over] == [3]
    assert [one.epoch for one in sw.savepoint(url, "then", at).passed_over] == [3]
    assert [one.epoch for one in sw.restore(url, tmp_path / "out", at).passed_over] == [3]
    verified = sw.verify(url, at)
    assert verified.at is not None and (verified.at.epoch, verified.epochs) == (2, [2])
    assert [one.epoch for one in verified.at.passed_over] == [3]
    assert sw.verify(url).at is None


def test_progress_is_told_while_bytes_are_read(url: Path) -> None:
    told: list[tuple[int, int]] = []
    found = sw.verify(url, read_data=True, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (found.read_bytes, found.read_bytes) and found.read_bytes > 0


def test_damage_is_told_as_a_value(url: Path) -> None:
    flip(next(url.rglob("*.lcb")))
    assert not sw.verify(url, read_data=True).sound


@pytest.mark.parametrize("within", [60.0, 60, timedelta(minutes=1)])
def test_a_time_to_keep_is_given_in_seconds_or_as_a_duration(url: Path, within: float | timedelta) -> None:
    assert sw.forget(url, keep_within=within, dry_run=True).forgotten_epochs == [1, 2]


def test_forgetting_tries_nothing_when_it_is_told_to(url: Path) -> None:
    planned = sw.forget(url, "1", dry_run=True)
    assert len(sw.list(url).checkpoints) == 4
    assert sw.forget(url, "1") == planned and planned.forgotten_epochs == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": 0},
        {"keep_hourly": -1},
        {"keep_daily": 1.5},
        {"keep_within": 0},
        {"keep_within": float("nan")},
        {"keep_labels": [7]},
        {"ref": "1", "keep_last": 1},
        {},
    ],
    ids=str,
)
def test_rules_that_cannot_be_so_are_refused(url: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(sw.InvalidInput):
        sw.forget(url, **wrong)
    assert len(sw.list(url).checkpoints) == 4


def test_a_savepoint_that_would_be_deleted_stays(url: Path) -> None:
    sw.savepoint(url, "kept")
    assert sw.delete_savepoint(url, "kept", dry_run=True).epoch == 4
    assert [found.label for found in sw.savepoints(url)] == ["kept"]
    with pytest.raises(sw.NotFound):
        sw.delete_savepoint(url, "other", dry_run=True)
