"""What cannot be meant is refused at the edge, before anything is read or written."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import slackwater as sw
from slackwater.ops import pipelines
from slackwater.protocol.address import join_url
from slackwater.protocol.log import Log
from slackwater.settings import Settings
from slackwater.store import open_store
from tests.pipelines import make_pipeline

BLANK = ["", " ", "\t\n"]


def slackwater(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.cli", *args],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stderr.decode()


def save(pipeline: sw.ProgramPipeline, number: int) -> None:
    pipeline.checkpoint(offsets={"s": {"n": number}}, state={"c": {0: b"%d" % number}})


# --- stores


@pytest.mark.parametrize("store", BLANK)
def test_a_blank_store_is_not_the_root_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sw.InvalidInput, match="empty") as caught:
        sw.open_pipeline(store, "slackwater-test")
    assert caught.value.code == "store.invalid"
    with pytest.raises(sw.InvalidInput, match="empty"):
        sw.adopt(tmp_path, store=store, pipeline="slackwater-test")
    with pytest.raises(sw.InvalidInput, match="empty"):
        join_url(store, "orders")
    for command in ("pipelines", "list"):
        assert slackwater(command, store)[0] == 2
    assert not os.path.exists("/slackwater-test") and list(tmp_path.iterdir()) == []


# --- settings

WRONG = [
    {"keep_last": 0},
    {"keep_last": 501},
    {"keep_last": 2.5},
    {"concurrency": -1},
    {"object_min_bytes": 0},
    {"batch_target_bytes": 1},
    {"interval_s": math.nan},
    {"request_timeout_s": 0},
    {"total_timeout_s": math.inf},
    {"total_timeout_s": math.nan},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_settings_out_of_bounds_are_refused_wherever_a_pipeline_is_opened(
    tmp_path: Path, fields: dict[str, float]
) -> None:
    settings = Settings(**fields)  # type: ignore[arg-type]
    (name,) = fields
    for opened in (
        lambda: sw.open_pipeline(tmp_path, "orders", settings=settings),
        lambda: pipelines.read_pipeline(str(tmp_path / "orders"), settings),
        lambda: open_store(str(tmp_path), settings),
    ):
        with pytest.raises(sw.InvalidInput, match=name) as caught:
            opened()
        assert caught.value.code == "option.invalid"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [Settings(keep_last="5"), {"keep_last": 5}, 5])  # type: ignore[arg-type]
def test_what_are_no_settings_is_refused(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(sw.InvalidInput) as caught:
        sw.open_pipeline(tmp_path, "orders", settings=settings)
    assert caught.value.code == "option.invalid"


def test_settings_at_their_bounds_are_taken(tmp_path: Path) -> None:
    for number, fields in enumerate([{"keep_last": 1}, {"keep_last": 500}, {"total_timeout_s": 86400}]):
        sw.open_pipeline(tmp_path, f"p{number}", settings=Settings(**fields)).close()


@pytest.mark.parametrize("timeout", ["nan", "inf", "-inf", "0", "-1", "86401"])
def test_a_timeout_is_a_time(tmp_path: Path, timeout: str) -> None:
    code, told = slackwater("list", str(tmp_path), "--timeout", timeout)
    assert code == 2 and "--timeout" in told


# --- a program's pipeline


def test_a_run_that_was_interrupted_once_its_checkpoint_counted_ends_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = sw.open_pipeline(tmp_path, "p")
    save(pipeline, 1)
    save(pipeline, 2)
    append = Log.append

    def interrupted(self: Log, *given: object, **fields: object) -> None:
        append(self, *given, **fields)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(pipeline, 3)
    pipeline.close()
    state = pipelines.read_pipeline(str(tmp_path / "p")).state
    assert (state.epoch, state.settled_epoch) == (3, 2) and state.release_append_id is not None
    with sw.open_pipeline(tmp_path, "p") as again:
        assert again.epoch == 3
        save(again, 4)


def test_a_savepoint_is_refused_beside_another_thread_and_after_the_end(tmp_path: Path) -> None:
    pipeline = sw.open_pipeline(tmp_path, "p")
    save(pipeline, 1)
    refused: list[str] = []

    def label() -> None:
        with pytest.raises(sw.InvalidInput) as caught:
            pipeline.savepoint("meanwhile")
        refused.append(caught.value.code)

    with pipeline._alone():
        thread = threading.Thread(target=label)
        thread.start()
        thread.join()
    assert pipeline.savepoint("kept").epoch == 1
    pipeline.close()
    label()
    assert refused == ["pipeline.busy", "pipeline.ended"]
    state = pipelines.read_pipeline(str(tmp_path / "p")).state
    assert [savepoint.label for savepoint in state.labels] == ["kept"]


@pytest.mark.parametrize("label", [3, None, b"kept", ["kept"]])
def test_a_label_that_is_no_text_is_refused(tmp_path: Path, label: str) -> None:
    with sw.open_pipeline(tmp_path, "p") as pipeline:
        save(pipeline, 1)
        with pytest.raises(sw.InvalidInput) as caught:
            pipeline.savepoint(label)
        assert caught.value.code == "name.invalid" and "cannot be a label" in str(caught.value)


# --- where to restore to


@pytest.mark.parametrize("to", [*BLANK, "{pipeline}", "{pipeline}/restored", "{pipeline}/log/../x", "{link}/restored"])
def test_a_checkpoint_is_not_restored_into_nowhere_or_into_its_own_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    pipeline = make_pipeline(tmp_path, 1)
    (tmp_path / "link").symlink_to(pipeline)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    directory = to.format(pipeline=pipeline, link=tmp_path / "link")
    code, told = slackwater("restore", str(pipeline), "--to", directory)
    assert code == 2 and "--to" in told, told
    assert sorted(tmp_path.rglob("*")) == before
    assert slackwater("restore", str(pipeline), "--to", "restored")[0] == 0
