"""Folders of LaminarDB on the command line: shown, verified, imported, exported."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from slackwater.program import open_pipeline
from tests.commands import answer, command, environment, lines, refusal, slackwater
from tests.laminar_findings import tell
from tests.laminar_folders import AGG, IDS, JOIN, incremental_folder, v1_folder, v2_folder, write
from tests.pipelines import flip, make_pipeline


def severities(document: dict) -> set[str]:
    return {finding["severity"] for finding in document["findings"]}


@pytest.mark.parametrize("defective", [False, True])
def test_a_folder_is_shown_as_it_is(tmp_path, defective):
    root = v2_folder(tmp_path, defective=defective)
    shown = answer("show", root)
    assert [c["checkpoint_id"] for c in shown["checkpoints"]] == IDS[:3]
    assert {c["form"] for c in shown["checkpoints"]} == {"defective" if defective else "documented"}
    assert shown["checkpoint"]["document"]["source_offsets"]["clicks"]["offsets"] == {"clicks-0": "3"}
    assert shown["latest"] == IDS[2] and "fatal" not in severities(shown)
    assert answer("show", root, "--at", "1")["checkpoint"]["checkpoint_id"] == IDS[0]
    text = "\n".join(lines("show", root))
    assert IDS[0] in text and "clicks-0 3" in text and "laminar.unverifiable" in text


def test_a_folder_of_version_1_is_shown_without_the_text_of_failures_and_without_state(tmp_path):
    root = v1_folder(tmp_path, sink_commit_statuses={"pg": {"Failed": "password=hunter2"}})
    shown = answer("show", root / "checkpoints")
    assert shown["checkpoint"]["sound"] is False
    assert "sink not committed" in {tell(finding) for finding in shown["findings"]}
    assert "clicks  kafka  clicks-0 9007199254740993" in lines("show", root)
    assert "hunter2" not in str(shown) and "hunter2" not in "\n".join(lines("show", root))
    assert shown["checkpoint"]["document"]["operator_states"]["join"]["external_length"] == len(JOIN)


def test_an_incremental_folder_is_shown_and_does_not_verify(tmp_path):
    root = incremental_folder(tmp_path)
    shown = answer("show", root)
    assert [(c["kind"], c["epoch"]) for c in shown["checkpoints"]] == [("incremental", 10), ("incremental", 11)]
    assert "no digest" in {tell(f) for f in answer("verify", root, code=13)["findings"]}
    assert "source1  ?     100" in lines("show", root)


@pytest.mark.parametrize("make", [v1_folder, v2_folder])
def test_a_sound_folder_is_sound(tmp_path, make):
    root = make(tmp_path)
    verified = answer("verify", root, "--read-data")
    assert verified["sound"] and verified["read_bytes"] > 0
    assert lines("verify", root)[-1].endswith("(sizes only: --read-data reads every byte): sound")


def test_a_damaged_folder_exits_13_and_names_the_object(tmp_path):
    root = v2_folder(tmp_path)
    victim = root / "checkpoints" / IDS[2] / "operators" / "agg" / "partition-0.snap"
    victim.write_bytes(b"\xff" + AGG[2][1:])
    assert answer("verify", root)["sound"]
    found = answer("verify", root, "--read-data", code=13)["findings"]
    (wrong,) = [finding for finding in found if finding["severity"] == "fatal"]
    assert tell(wrong) == "digest mismatch" and wrong["where"].endswith(f"{IDS[2]}/operators/agg/partition-0.snap")
    assert wrong["checkpoint_id"] == IDS[2]
    assert answer("verify", root, "--read-data", "--at", IDS[0])["sound"]
    assert "1 fatal finding" in lines("verify", root, "--read-data", code=13)[-1]


def test_a_checkpoint_is_imported_shown_labelled_and_restored_as_files(tmp_path):
    root, url = v2_folder(tmp_path / "db"), tmp_path / "store" / "orders"
    imported = answer("import", root, url)["imported"]
    assert (imported["epoch"], imported["origin"]["checkpoint_id"], imported["done"]) == (1, IDS[2], False)
    assert answer("import", root, url)["imported"]["done"]
    assert answer("verify", url, "--read-data")["sound"]
    assert answer("show", url)["origin"]["format"] == "laminar-v2"
    assert f"laminar-v2 checkpoint {IDS[2]}" in "\n".join(lines("show", url))
    assert answer("show", url)["operators"]["agg"]["size_bytes"] == len(AGG[2]) + len(AGG[3])
    lines("savepoint", "create", url, "from-laminar")
    restored = answer("restore", url, "--to", tmp_path / "out", "--at", "from-laminar")
    assert restored["files"] == 2
    assert (tmp_path / "out" / "operators" / "agg" / "0" / f"{IDS[2]}.snap").read_bytes() == AGG[2]
    assert "checkpointLocation" not in "\n".join(lines("restore", url, "--to", tmp_path / "again"))


def test_an_import_for_people_says_what_became_what(tmp_path):
    said = lines("import", v1_folder(tmp_path / "db"), tmp_path / "store" / "orders", "--at", "7")
    assert said[0].endswith("laminar-v1 checkpoint 2, epoch 7") and "epoch 1 of orders" in said[1]
    assert said[2].endswith("every byte verified")


def test_what_cannot_be_imported_is_refused_with_its_exit_code(tmp_path):
    url = tmp_path / "store" / "orders"
    assert "folder.not_found" in refusal("import", tmp_path / "nothing", url, code=10)
    assert "sw.adopt" in refusal(
        "import", write(tmp_path / "spark", {"offsets/0": "v1", "commits/0": "v1"}), url, code=14
    )
    damaged = v1_folder(tmp_path / "db", vnode_count=128)
    assert "laminar.refused" in refusal("import", damaged, url, code=13)
    assert not Path(url).exists()
    assert "checkpoint.not_found" in refusal("import", damaged, url, "--at", "99", code=10)


def test_what_is_neither_a_pipeline_nor_a_folder_stays_not_found(tmp_path):
    assert "pipeline.not_found" in refusal("show", tmp_path / "nothing", code=10)
    assert "pipeline.not_found" in refusal("verify", tmp_path / "nothing", code=10)


@pytest.mark.parametrize(
    ("point", "counted"),
    [
        ("claim.before", False),
        ("claim.after", False),
        ("artifacts.after", False),
        ("manifest.after", False),
        ("append.after", True),
        ("latest.after", True),
        ("release.before", True),
        ("release.after", True),
    ],
)
def test_an_import_that_is_killed_between_any_two_steps_is_run_again(tmp_path, point, counted):
    root, url = v2_folder(tmp_path / "db"), tmp_path / "store" / "orders"
    killed = slackwater("import", root, url, SLACKWATER_FAILPOINTS=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL
    assert answer("import", root, url)["imported"]["done"] is counted
    listed = answer("list", url)
    assert [(c["epoch"], c["settled"]) for c in listed["checkpoints"]] == [(1, True)]
    assert answer("verify", url, "--read-data")["sound"]
    assert answer("pipelines", tmp_path / "store")["pipelines"][0]["released"]


# --- export


@pytest.fixture
def url(tmp_path: Path) -> Path:
    with open_pipeline(tmp_path / "store", "orders") as pipeline:
        for row in (1, 2):
            state = {"counts": {0: b"a" * row, 1: b"b" * 10_000}}
            pipeline.checkpoint(offsets={"rows": {"row": row}}, state=state)
    return tmp_path / "store" / "orders"


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_checkpoint_is_exported_shown_verified_and_imported_again(tmp_path, url):
    db = tmp_path / "db"
    exported = answer("export", url, db, "--at", "1")["exported"]
    assert (exported["epoch"], exported["partitions"], exported["size_bytes"]) == (1, 2, 10_001)
    shown = answer("show", db)
    assert shown["latest"] == exported["checkpoint_id"] and "fatal" not in severities(shown)
    assert answer("verify", db, "--read-data")["sound"]
    assert answer("import", db, tmp_path / "store" / "again")["imported"]["origin"]["epoch"] == 1
    again = answer("show", tmp_path / "store" / "again")
    assert again["sources"] == {"rows": {"source_type": "program", "offsets": {"row": "1"}}}
    assert [p["size_bytes"] for p in again["operators"]["counts"]["partitions"]] == [1, 10_000]


def test_an_export_for_people_says_what_became_what(tmp_path, url):
    said = lines("export", tmp_path / "db", SLACKWATER_PIPELINE=str(url))
    assert "epoch 2 of orders" in said[0] and said[1].endswith(f"laminar-v2 in {tmp_path / 'db'}")
    assert said[2].endswith("1 operator, 2 partitions, 9.8 KiB, every byte verified")


def test_what_cannot_be_exported_is_refused_with_its_exit_code(tmp_path, url):
    db = tmp_path / "db"
    assert "export.unsupported" in refusal("export", make_pipeline(tmp_path, 1, name="spark"), db, code=14)
    assert "pipeline.not_found" in refusal("export", tmp_path / "store" / "nothing", db, code=10)
    assert "checkpoint.not_found" in refusal("export", url, db, "--at", "9", code=10)
    assert "is a file, not a folder" in refusal("export", url, write(tmp_path, {"file": "x"}) / "file", code=2)
    assert "folder.unusable" in refusal("export", url, v2_folder(tmp_path / "other"), code=2)
    assert "give URL and FOLDER" in refusal("export", url, code=2)
    flip(max(url.rglob("*.lcb")))
    assert "object.damaged" in refusal("export", url, db, code=13)
    assert not db.exists()


@pytest.mark.parametrize("point", ["export.snapshot.after", "export.snapshot.after@2", "export.manifest.after"])
def test_an_export_that_is_killed_is_no_checkpoint_before_it_is_whole_and_is_run_again(tmp_path, url, point):
    db = tmp_path / "db"
    killed = slackwater("export", url, db, SLACKWATER_FAILPOINTS=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL
    assert not (db / "checkpoints" / "_latest").exists()
    if point == "export.manifest.after":
        assert answer("verify", db, "--read-data")["sound"]
    else:
        assert "folder.not_found" in refusal("import", db, tmp_path / "store" / "again", code=10)
    answer("export", url, db)
    answer("export", url, tmp_path / "whole")
    visible = {path: data for path, data in files_in(db).items() if not Path(path).name.startswith(".")}
    assert visible == files_in(tmp_path / "whole")


def test_an_export_that_is_ended_leaves_nothing_on_the_local_disk(tmp_path, url):
    (spool := tmp_path / "tmp").mkdir()
    variables = {"TMPDIR": str(spool), "SLACKWATER_FAILPOINTS": "export.snapshot.after=stop"}
    with subprocess.Popen(command("export", url, tmp_path / "db"), env=environment(**variables)) as running:
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        assert list(spool.iterdir())
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGCONT)
        assert running.wait(30) == 130
    assert list(spool.iterdir()) == []
    assert not (tmp_path / "db" / "checkpoints" / "_latest").exists()
