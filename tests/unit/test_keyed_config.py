"""The options of a keyed pipeline: what they may be, what is said of the others, and where its local folder is."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest

import slackwater as sw
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from tests.keyed_pipelines import config_of


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_retained": 501}, "expected"),
        ({"max_retained": 2.0}, ""),
        ({"max_retained": True}, ""),
        ({"interval": -1}, "expected"),
        ({"interval": float("nan")}, "expected"),
        ({"interval": timedelta(days=400)}, "expected"),
        ({"interval": "60"}, ""),
        ({"interval": "PT60S"}, ""),
        ({"interval": True}, ""),
        ({"min_wal_size_for_checkpoint": 0}, "expected"),
        ({"truncate_wal": 1}, ""),
        ({"incremental": "yes"}, ""),
        ({"wal_path": "s3://bucket/wal"}, ""),
        ({"wal_path": ""}, ""),
        ({"wal_path": 7}, ""),
    ],
)
def test_E2_an_option_that_cannot_be_is_refused_and_nothing_is_made(tmp_path, fields, words):
    with pytest.raises(sw.InvalidInput) as caught:
        open_keyed(config_of(tmp_path, **fields))
    assert caught.value.code == "option.invalid" and words in str(caught.value) and caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_E2_an_option_that_there_is_not_is_refused():
    with pytest.raises(TypeError, match="max_retain"):
        CheckpointConfig("store/x", max_retain=3)  # type: ignore[call-arg]


def test_a_local_folder_must_be_named_where_the_store_is_elsewhere(tmp_path):
    with pytest.raises(sw.InvalidInput, match="wal_path must be given") as caught:
        CheckpointConfig("s3://bucket/counts").validate()
    assert "a disk of this machine" in str(caught.value.hint)
    CheckpointConfig("s3://bucket/counts", wal_path=tmp_path).validate()


@pytest.mark.parametrize("wal_path", ["store/counts/wal", "x/../store/counts/wal", "store/other/../counts"])
def test_a_local_folder_inside_of_the_store_is_refused_however_it_is_written(tmp_path, wal_path):
    with pytest.raises(sw.InvalidInput, match="inside of checkpoint_dir"):
        config_of(tmp_path, wal_path=tmp_path / wal_path).validate()
    with pytest.raises(sw.InvalidInput, match="inside of checkpoint_dir"):
        CheckpointConfig((tmp_path / "y" / ".." / "store" / "counts").as_uri(), wal_path=tmp_path / wal_path).validate()


def test_a_url_serves_as_well_as_a_path(tmp_path):
    assert config_of(tmp_path).folder == CheckpointConfig((tmp_path / "store" / "counts").as_uri()).folder
    config = CheckpointConfig((tmp_path / "a b" / "counts").as_uri(), wal_path=tmp_path / "wal")
    with open_keyed(config) as counts:
        counts.put(b"a", b"1")
        counts.create_checkpoint()
    shutil.rmtree(tmp_path / "wal")
    with open_keyed(config) as counts:
        assert dict(counts.scan()) == {b"a": b"1"}
