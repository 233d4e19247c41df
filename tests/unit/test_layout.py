"""Keys: built and parsed in one place, exactly."""

from __future__ import annotations

import pytest

from slackwater.errors import Corrupt, InvalidInput
from slackwater.formats.keys import (
    CHECKPOINTS,
    LATEST,
    LOG,
    ArtifactKey,
    BatchKey,
    LatestKey,
    ManifestKey,
    RecordKey,
    are_artifact_keys,
    artifact_key,
    batch_key,
    check_path,
    check_paths,
    checkpoint_folder,
    format_name,
    manifest_key,
    parse_key,
    parse_name,
    record_key,
)
from slackwater.store import open_store
from slackwater.store.verbs import check_key

ID = "0192d3f0-7b7c-7000-8000-0123456789ab"
KEYS = {
    f"checkpoints/{ID}/manifest.json": (manifest_key(ID), ManifestKey(ID)),
    f"checkpoints/{ID}/operators/0-stateStoreSave/partition-0.snap": (
        artifact_key(ID, "0-stateStoreSave", 0, "snap"),
        ArtifactKey(ID, "0-stateStoreSave", 0, "snap"),
    ),
    f"checkpoints/{ID}/operators/a%2Fb%20c/partition-199.delta": (
        artifact_key(ID, "a/b c", 199, "delta"),
        ArtifactKey(ID, "a/b c", 199, "delta"),
    ),
    f"checkpoints/{ID}/batches/00000000000000000007.lcb": (batch_key(ID, 7), BatchKey(ID, 7)),
    "log/00000000000000000042.json": (record_key(42), RecordKey(42)),
    "checkpoints/_latest": (LATEST, LatestKey()),
}


@pytest.mark.parametrize("key", KEYS)
def test_A1_A3_every_key_is_exactly_this_and_parses_back(key):
    built, parsed = KEYS[key]
    assert built == key
    assert parse_key(key) == parsed
    assert are_artifact_keys([artifact_key(ID, "x", 0, "snap"), key]) == isinstance(parsed, ArtifactKey)


def test_A1_A2_all_that_a_checkpoint_writes_lies_in_its_folder_and_goes_with_it():
    store = open_store("memory:")
    mine = [manifest_key(ID), batch_key(ID, 0), artifact_key(ID, "x", 0, "snap"), artifact_key(ID, "y/z", 3, "delta")]
    other = manifest_key(ID.replace("ab", "ac"))
    for key in (*mine, other):
        assert check_key(key) == key
        store.put(key, b"x")
    assert all(key.startswith(checkpoint_folder(ID)) for key in mine)
    assert [listed.key for listed in store.list(checkpoint_folder(ID))] == sorted(mine)
    store.delete([listed.key for listed in store.list(checkpoint_folder(ID))])
    assert [listed.key for listed in store.list(CHECKPOINTS)] == [other]


def test_C16_names_of_records_sort_as_their_numbers_do():
    numbers = [1, 9, 10, 999_999, 1_000_000, 2**53 - 1]
    assert sorted(map(record_key, reversed(numbers))) == [record_key(number) for number in numbers]
    assert all(record_key(number).startswith(LOG) for number in numbers)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "log/42.json",
        "log/000000000000000000042.json",
        "log/00000000000000000042.json.tmp",
        "log/" + "\u0660" * 18 + "\u0664\u0662.json",
        "log/0000000000000000004\n.json",
        "log/x/00000000000000000042.json",
        "/log/00000000000000000042.json",
        "checkpoints/_latest/",
        f"checkpoints/{ID}manifest.json",
        f"checkpoints/{ID}/manifest.json/",
        f"checkpoints/{ID.upper()}/manifest.json",
        f"checkpoints/{ID}\n/manifest.json",
        f"checkpoints/{ID}/offsets/0.json",
        f"checkpoints/{ID}/batches/1.lcb",
        f"checkpoints/{ID}/operators/a/partition-01.snap",
        f"checkpoints/{ID}/operators/a/partition-1.zip",
        f"checkpoints/{ID}/operators/a/partition-\u0663.snap",
        f"checkpoints/{ID}/operators//partition-1.snap",
        f"checkpoints/{ID}/operators/../partition-1.snap",
        f"checkpoints/{ID}/operators/a/b/partition-1.snap",
        f"checkpoints/{ID}/../{ID}/manifest.json",
    ],
)
def test_a_foreign_key_is_refused(key):
    with pytest.raises(Corrupt) as caught:
        parse_key(key)
    assert caught.value.code == "manifest.invalid"
    assert "is not a key of" in caught.value.message or "is not a name that" in caught.value.message
    assert not are_artifact_keys([artifact_key(ID, "a", 0, "snap"), key, artifact_key(ID, "a", 2, "snap")])


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "a\0b", "\x7f", "\ud800", 5, b"a", None])
def test_A10_a_hostile_name_is_refused(name):
    with pytest.raises(InvalidInput) as caught:
        format_name(name)
    assert caught.value.code == "name.invalid" and "cannot be a name" in str(caught.value)


@pytest.mark.parametrize("name", ["a" * 201, "ü" * 34, "~" * 67, "/" * 67])
def test_A10_a_name_too_long_when_encoded_is_refused(name):
    with pytest.raises(InvalidInput) as caught:
        format_name(name)
    assert caught.value.code == "name.invalid" and "the limit is" in str(caught.value)


def test_A10_names_that_look_alike_to_a_path_stay_apart():
    names = [
        "a",
        "a/",
        "/a",
        "a//",
        "a%2F",
        "a%2f",
        "A",
        "a ",
        "a+",
        "a~",
        "a#",
        "a\\",
        "...",
        ".a",
        "\u00e4",
        "a\u0308",
        "%",
    ]
    components = [format_name(name) for name in names]
    assert len(set(components)) == len(names)
    assert not any(set(component) & set("/\\~# ") for component in components)
    assert [parse_name(component) for component in components] == names


@pytest.mark.parametrize("component", ["", ".", "..", "a%2f", "%61", "a b", "a~", "%", "%zz", "%ff", "a/b", "%00", "ü"])
def test_A10_only_one_way_of_writing_a_name_is_accepted(component):
    with pytest.raises(Corrupt) as caught:
        parse_name(component)
    assert caught.value.code == "manifest.invalid" and "is not a name" in str(caught.value)


def test_A11_keys_are_relative_so_that_a_pipeline_can_be_moved():
    assert not any(key.startswith("/") or "://" in key for key in KEYS)


@pytest.mark.parametrize("path", ["a", "state/0/0/1_u.zip", "offsets/0", "a b/ü", "..a/b..", "a" * 1024])
def test_a_plain_relative_path_passes(path):
    assert check_path(path) == path
    check_paths(["a", path, "b"])
    check_paths([])


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/.",
        "a\\b",
        "a\0",
        "a\nb",
        "a/\ud800",
        "a" * 1025,
        "ü" * 513,
    ],
)
def test_B11_a_path_that_could_leave_its_folder_is_refused(path):
    with pytest.raises(Corrupt) as caught:
        check_path(path)
    assert caught.value.code == "manifest.invalid" and "is not a plain relative path" in str(caught.value)
    for paths in ([path], ["a", path, "b"]):
        with pytest.raises(Corrupt) as caught:
            check_paths(paths)
        assert caught.value.code == "manifest.invalid" and "is not a plain relative path" in str(caught.value)


def test_a_checkpoint_id_that_is_a_path_builds_no_key():
    for build in (checkpoint_folder, manifest_key):
        with pytest.raises(InvalidInput):
            build("../" + ID)


def test_a_name_that_begins_with_a_dot_is_not_hidden_from_listings():
    assert format_name(".a.tmp") == "%2Ea.tmp"
    assert parse_name("%2Ea.tmp") == ".a.tmp"
    with pytest.raises(Corrupt):
        parse_name(".a.tmp")
