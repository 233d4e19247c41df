"""The memory that a save, a restore and a verification of 512 MiB take beside the payload."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify_checkpoints
from slackwater.protocol.directory import write_directory
from slackwater.protocol.verified_reads import load_manifest
from slackwater.settings import MIB, Settings

from .drivers import Driver, cut_of
from .lines import print_case, say

LIMIT_MIB = 128
# Partitions and their size: many, and few that are large.
SHAPES = {"64x8MiB": (64, 8 * MIB), "2x256MiB": (2, 256 * MIB)}


def measure(folder: Path, rounds: int) -> None:
    """Print the most that any of them takes. Files are not in memory, so all that it takes is beside them."""
    for shape, (count, size_bytes) in SHAPES.items():
        room = folder / shape
        room.mkdir()
        for number in range(count):
            _fill(room / str(number), size_bytes)
        jobs = ("save-files", "save-bytes", "restore", "verify")
        taken = {job: [_in_process(job, room, number) for number in range(min(rounds, 2))] for job in jobs}
        shutil.rmtree(room)
        say(f"memory {shape}: {taken}")
        most = max(max(values) for values in taken.values())
        print_case(
            f"storage/memory-{shape}",
            pairs=[(max(values), LIMIT_MIB) for values in zip(*taken.values(), strict=True)],
            ours=most,
            unit="MiB",
            reference="the limit, beside the payload of 512 MiB",
            reference_value=LIMIT_MIB,
            goal=1,
            sides={job: max(values) for job, values in taken.items()},
        )


def _fill(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for number in range(size_bytes // MIB):
            file.write(b"%8d" % number * (MIB // 8))


def _in_process(job: str, room: Path, number: int) -> float:
    command = [sys.executable, "-m", __name__, job, str(room), str(number)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run(job: str, room: Path, number: int) -> float:
    """Do the job, and tell by how many MiB the most memory that this process ever has is above what it had before."""
    warm = Driver(room / "warm" / f"{job}-{number}")  # so that what is imported and opened once is not counted
    warm.checkpoint(cut_of([bytes(100)]))
    if job.startswith("save"):
        sources = sorted(path for path in room.iterdir() if path.is_file())
        cut = cut_of([path.read_bytes() for path in sources] if job == "save-bytes" else sources)
        driver = Driver(room / f"{job}-{number}")
        before = _memory_mib()
        driver.checkpoint(cut)
    else:
        pipeline = read_pipeline(str(room / "save-files-0"))
        before = _memory_mib()
        if job == "restore":
            manifest = load_manifest(pipeline.store, pipeline.state.live[-1])
            write_directory(pipeline.store, manifest, room / f"restored-{number}", Settings(), durable=False)
        else:
            assert not verify_checkpoints(pipeline, pipeline.state.live, read_data=True).findings
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


if __name__ == "__main__":
    print(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
