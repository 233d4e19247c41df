"""A keyed pipeline whose process is killed between every two durable steps: what was acknowledged is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import slackwater as sw
from slackwater.failpoints import VARIABLE
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
from slackwater.ops.pipelines import read_pipeline
from tests.commands import environment, program_of, run_program
from tests.keyed_pipelines import config_of, forget_local, sound

# A program that writes rows, and says on stdout what was acknowledged.
WRITE = """
import sys
from slackwater.keyed.config import CheckpointConfig
from slackwater.keyed.opening import open_keyed
with open_keyed(CheckpointConfig(sys.argv[1], max_retained=2)) as counts:
    row = int(counts.offsets.get("rows", {}).get("row", 0))
    print("from", row, counts.epoch, flush=True)
    for row in range(row, row + int(sys.argv[2])):
        counts.write([(b"%d" % (row % 7), b"%d" % row)], offsets={"rows": {"row": str(row + 1)}})
        print("acknowledged", row + 1, flush=True)
        if row % 3 == 2:
            counts.create_checkpoint()
            print("checkpointed", row + 1, flush=True)
"""


def run_writer(folder: Path, failpoints: str = "", rows: int = 10) -> list[tuple[str, int]]:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(folder / "store" / "counts"), str(rows)],
        env=environment(**{VARIABLE: failpoints}),
        capture_output=True,
        timeout=60,
        check=False,
    )
    expected = -signal.SIGKILL if failpoints else 0
    assert done.returncode == expected, done.stderr.decode()
    return [(line.split()[0], int(line.split()[1])) for line in done.stdout.decode().splitlines()]


CHECKPOINT = [
    "keyed.lineage.after", "keyed.cut.after", "artifacts.after", "manifest.after", "append.after", "latest.after",
]  # fmt: skip
KILLS = [
    "claim.before", "claim.after", *CHECKPOINT, "keyed.lineage.after@2", "keyed.cut.after@3", "artifacts.after@2",
    "manifest.after@3", "append.after@2", "latest.after@2", "sweep.after", "delete.between", "delete.after",
    "release.before", "release.after",
]  # fmt: skip


def test_E4_E17_killed_at_any_step_nothing_that_was_acknowledged_is_lost(tmp_path):
    known = 0
    for point in KILLS:
        said = run_writer(tmp_path, f"{point}=kill")
        began = next((row for word, row in said if word == "from"), known)
        assert began == known, point
        known = max([known, *(row for word, row in said if word == "acknowledged")])
        with open_keyed(config_of(tmp_path)) as counts:
            row = int(counts.offsets.get("rows", {}).get("row", 0))
            assert row == known, point
            assert dict(counts.scan()) == {b"%d" % (n % 7): b"%d" % n for n in range(max(0, known - 7), known)}, point
    assert known > 50 and sound(tmp_path)


def test_killed_before_a_write_is_synced_it_is_there_whole_or_not_at_all(tmp_path):
    said = run_writer(tmp_path, "keyed.sync.before@5=kill")
    assert said[-1] == ("acknowledged", 4)
    with open_keyed(config_of(tmp_path)) as counts:
        row = int(counts.offsets["rows"]["row"])
        assert row in (4, 5)
        assert dict(counts.scan()) == {b"%d" % n: b"%d" % n for n in range(row)}


@pytest.mark.parametrize("point", CHECKPOINT)
def test_E4_killed_at_any_step_a_restore_elsewhere_has_the_newest_checkpoint_that_counts(tmp_path, point):
    run_writer(tmp_path, rows=5)
    run_writer(tmp_path, f"{point}=kill")
    epoch = read_pipeline(str(tmp_path / "store" / "counts")).state.epoch
    forget_local(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        row = int(counts.offsets["rows"]["row"])
        assert row == 3 * epoch and counts.epoch == epoch
        assert dict(counts.scan()) == {b"%d" % (n % 7): b"%d" % n for n in range(max(0, row - 7), row)}
        assert not (tmp_path / "store" / "counts.wal" / "cut").exists()
    assert sound(tmp_path)


@pytest.mark.parametrize(
    ("how", "point"),
    [
        ("restored", "keyed.restored.after"),
        ("restored", "keyed.placed.after"),
        ("rolled back", "keyed.restored.after"),
        ("rolled back", "keyed.outgoing.after"),  # where it is restored, there is nothing to give way
        ("rolled back", "keyed.placed.after"),
    ],
)
def test_E4_killed_while_a_checkpoint_becomes_the_local_database_the_next_start_has_it(tmp_path, how, point):
    run_writer(tmp_path)
    expected = 9
    if how == "restored":
        forget_local(tmp_path)
    else:
        sw.rollback(str(tmp_path / "store" / "counts"), "2")
        expected = 6
    run_writer(tmp_path, f"{point}=kill")
    with open_keyed(config_of(tmp_path)) as counts:
        assert counts.offsets == {"rows": {"row": str(expected)}}
        assert {path.name for path in counts._local.folder.iterdir()} == {"FOLDER", "WRITER", "state"}
    assert sound(tmp_path)


def test_E4_a_restored_database_outlasts_a_power_loss(tmp_path, synced):
    run_writer(tmp_path, rows=5)
    forget_local(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        folder = counts._local.folder
        restored = [folder / "state" / table.rpartition("/")[2] for table in counts._tables]
        assert restored and all(path.exists() for path in restored)
        to_sync = [*restored, folder / "FOLDER", folder / "state", folder, folder.parent]
        assert [path for path in to_sync if path.stat().st_ino not in synced] == []


def local_log(folder: Path) -> Path:
    return max((folder / "store" / "counts.wal" / "state").glob("*.log"))


@pytest.mark.parametrize("tail", [bytes(8), bytes(4096), b"\x01\x02\x03\x04\x64\x00\x01torn"])
def test_E15_E16_what_a_crash_leaves_at_the_end_of_the_log_is_cut_off_and_new_writes_come_after_the_sound_part(
    tmp_path, tail
):
    run_writer(tmp_path, "keyed.cut.after=kill", rows=10)
    with local_log(tmp_path).open("ab") as log:
        log.write(tail)
    for row in (3, 4, 5):
        with open_keyed(config_of(tmp_path)) as counts:
            assert counts.offsets == {"rows": {"row": str(row)}}
            counts.write([(b"%d" % row, b"%d" % row)], offsets={"rows": {"row": str(row + 1)}})


def test_E16_E17_damage_in_the_middle_of_the_log_is_an_error_and_the_checkpoint_can_be_had(tmp_path):
    run_writer(tmp_path, "keyed.lineage.after@2=kill", rows=20)
    log = local_log(tmp_path)
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(data)
    with pytest.raises(sw.Corrupt) as caught:
        open_keyed(config_of(tmp_path))
    assert caught.value.code == "keyed.damaged" and "restore the newest checkpoint" in str(caught.value.hint)
    forget_local(tmp_path)
    with open_keyed(config_of(tmp_path)) as counts:
        assert counts.offsets == {"rows": {"row": "3"}}


def test_the_program_of_the_documentation_counts_right_however_often_it_is_killed(tmp_path):
    text = [f"the {n % 7} tide and the {n % 3} stream" for n in range(40)]
    (tmp_path / "input.txt").write_text("\n".join(text))
    points = [
        "claim.after",
        "keyed.lineage.after",
        "keyed.cut.after",
        "artifacts.after",
        "append.after",
        "latest.after",
    ]
    program = program_of("keyed.md").replace("interval=10", "interval=0.001")
    died = [point for point in points if run_program(program, tmp_path, f"{point}=kill") == -signal.SIGKILL]
    assert died == points
    assert run_program(program, tmp_path) == 0
    words = " ".join(text).split()
    with open_keyed(CheckpointConfig(tmp_path / "store" / "words")) as counts:
        assert dict(counts.scan()) == {word.encode(): b"%d" % words.count(word) for word in words}
        assert counts.offsets == {"input": {"byte": str(os.path.getsize(tmp_path / "input.txt"))}}
