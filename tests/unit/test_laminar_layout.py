"""LaminarDB's paths in both forms, and a folder recognised by its keys."""

from __future__ import annotations

import re

import pytest

from slackwater.clock import SystemClock
from slackwater.laminar.layout import (
    CheckpointPaths,
    below_checkpoint,
    may_hold,
    object_key,
    survey,
)
from tests.laminar_folders import IDS

ID = IDS[0]


def test_checkpoint_id_time_sortable():
    clock = SystemClock()
    ids = [clock.checkpoint_id() for _ in range(100)]
    assert ids == sorted(ids)


def test_checkpoint_id_display():
    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", SystemClock().checkpoint_id()
    )


def test_checkpoint_paths():
    paths = CheckpointPaths.new("my/checkpoints")
    assert paths.latest_pointer == "my/checkpoints/_latest"
    assert paths.checkpoint_dir(ID) == f"my/checkpoints/{ID}/"
    assert paths.manifest(ID) == f"my/checkpoints/{ID}/manifest.json"
    assert paths.snapshot(ID, "window-agg", 3) == f"my/checkpoints/{ID}/operators/window-agg/partition-3.snap"
    assert paths.delta(ID, "window-agg", 3) == f"my/checkpoints/{ID}/operators/window-agg/partition-3.delta"
    assert paths.source_offset(ID, "kafka-trades") == f"my/checkpoints/{ID}/offsets/kafka-trades.json"


def test_A1_A3_the_defective_form_is_exactly_what_laminar_code_writes():
    paths = CheckpointPaths.new("checkpoints/", "defective")
    assert paths.manifest(ID) == f"checkpoints/{ID}manifest.json"
    assert paths.snapshot(ID, "agg", 0) == f"checkpoints/{ID}operators/agg/partition-0.snap"
    assert paths.delta(ID, "agg", 0) == f"checkpoints/{ID}operators/agg/partition-0.delta"
    assert paths.source_offset(ID, "s") == f"checkpoints/{ID}offsets/s.json"
    assert paths.latest_pointer == "checkpoints/_latest"
    # A2: the folder by which LaminarDB deletes holds none of them.
    assert not any(path.startswith(paths.checkpoint_dir(ID)) for path in (paths.manifest(ID), paths.delta(ID, "a", 0)))


def test_checkpoint_paths_trailing_slash():
    assert CheckpointPaths.new("prefix/").manifest(ID) == CheckpointPaths.new("prefix").manifest(ID)
    assert CheckpointPaths.new("") == CheckpointPaths("")
    assert CheckpointPaths() == CheckpointPaths.new("checkpoints")


def test_A12_a_prefix_is_a_relative_key():
    assert CheckpointPaths.new("/c").manifest(ID) == f"c/{ID}/manifest.json"
    assert CheckpointPaths.new("c//").manifest(ID) == f"c/{ID}/manifest.json"


def test_D10_the_batchers_prefix_is_joined_as_laminar_joins_it_and_found_all_the_same():
    joined = {
        "checkpoints/batch-000007.lz4": 7,
        "nodes/abc/checkpoints/batch-000008.lz4": 8,
        "nodes/abccheckpoints/batch-1000000.lz4": 1_000_000,
        "batch-000009.lz4": 9,
    }
    assert survey(joined).batches == joined


def test_a_stored_path_is_cut_down_to_what_lies_below_its_checkpoint():
    for path in (f"a/{ID}/x/y", f"a/{ID}x/y", f"{ID}/x/y", "x/y"):
        assert below_checkpoint(path, ID) == "x/y"


def test_A10_names_are_encoded_as_the_object_store_does_it():
    assert object_key("operators/a~b/c#d/é/./..//x") == "operators/a%7Eb/c%23d/%C3%A9/%2E/%2E%2E/x"
    assert object_key("operators/a/") == object_key("operators/a")  # two operators on one key


def test_a_folder_is_recognised_by_its_keys():
    found = survey(
        [
            f"checkpoints/{ID}/manifest.json",
            f"checkpoints/{IDS[1]}manifest.json",
            "checkpoints/checkpoint_000007/manifest.json",
            "checkpoint_0000000000000010/metadata.json",
            "manifests/manifest-000003.json",
            "checkpoints/_latest",
            "checkpoints/latest.txt",
            "manifests/latest.json",
            "checkpoints/foomanifest.json",
            f"{IDS[2].upper()}/manifest.json",
            "checkpoint_0000000000000011/state.bin",
        ]
    )
    assert {(p.kind, p.name, p.form) for p in found.places} == {
        ("v2", ID, "documented"),
        ("v2", IDS[1], "defective"),
        ("v1", "7", "documented"),
        ("v1", "3", "documented"),
        ("incremental", "16", "documented"),
    }
    assert len(found.pointers) == 3
    assert found.strays == [f"{IDS[2].upper()}/manifest.json", "checkpoints/foomanifest.json"]
    assert found.partial == ["checkpoint_0000000000000011"]


def test_names_of_incremental_folders_are_exact():
    assert [place.name for place in survey(["checkpoint_000000000000001a/metadata.json"]).places] == ["26"]
    assert survey(["checkpoint_1/metadata.json"]).places == []  # E9: not padded
    assert survey(["checkpoint_000000000000000A/metadata.json"]).places == []


@pytest.mark.parametrize(
    ("folders", "held"),
    [
        ([], True),
        (["checkpoints"], True),
        ([f"{ID}operators"], True),
        (["abccheckpoints"], True),
        ([ID], True),
        (["orders", "payments"], False),
    ],
)
def test_a_store_of_pipelines_is_not_listed_whole_to_see_that_it_is_none(folders, held):
    assert may_hold(folders) is held
