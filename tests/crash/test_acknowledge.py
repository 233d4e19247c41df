"""SIGKILL while a pipeline acknowledges: an inbox is never told more than the oldest live checkpoint covers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from slackwater.failpoints import VARIABLE
from slackwater.formats.manifest import SourcePosition
from slackwater.formats.positions import KIND
from slackwater.inboxes.documents import COVERED_FILE
from slackwater.inboxes.files import read_covered
from slackwater.inboxes.inbox import Inbox
from slackwater.ops.pipelines import read_pipeline
from slackwater.settings import Settings
from slackwater.sources.acknowledgement import Acknowledgements
from tests.pipelines import make_pipeline

# What the coordinator does after an epoch is settled, and a start after recovery. Each live checkpoint covers ten more.
PROGRAM = """
import sys
from pathlib import Path
from slackwater.formats.manifest import SourcePosition
from slackwater.inboxes.reader import read_published
from slackwater.ops.pipelines import read_pipeline
from slackwater.inboxes.files import read_published
from slackwater.ops.pipelines import read_pipeline
from slackwater.sources.acknowledgement import Acknowledgements
from slackwater.settings import Settings
pipeline, folder = read_pipeline(sys.argv[1], Settings()), Path(sys.argv[2])
uid = read_published(folder).inbox
told = Acknowledgements(pipeline.store, {uid: folder})
for number, entry in enumerate(pipeline.state.live, 1):
    offsets = {"inbox": uid, "position": str(10 * number)}
    source = SourcePosition(source_type="inbox", offsets=offsets, verbatim="", metadata={})
    told.know(entry.checkpoint_id, {"0": source})
error = told.acknowledge(pipeline.state)
sys.exit(str(error) if error else 0)
"""


def acknowledge(url: str, folder: Path, point: str = "") -> int:
    environment = {**os.environ, VARIABLE: f"{point}=kill" if point else ""}
    command = [sys.executable, "-c", PROGRAM, url, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def test_an_acknowledgement_that_is_killed_at_either_step_is_made_again_and_covers_no_more_than_it_may(tmp_path):
    folder = tmp_path / "inbox"
    inbox = Inbox(folder)
    inbox.append([b"%d" % number for number in range(100)]).result()
    inbox.close()
    url = str(make_pipeline(tmp_path, 4))
    state = read_pipeline(url, Settings()).state
    assert len(state.live) > 1

    assert acknowledge(url, folder, "document.write.after") == -signal.SIGKILL
    assert read_covered(folder) is None, "half written is not written"
    assert acknowledge(url, folder, "acknowledge.after") == -signal.SIGKILL
    assert acknowledge(url, folder) == 0
    covered = read_covered(folder)
    assert covered is not None
    assert (covered.position, covered.pipeline) == (10, state.uid), "the oldest live checkpoint needs what follows"
    dropped = Inbox(folder)
    dropped.append([b"one more"]).result()
    dropped.close()
    assert dropped.description.dropped <= 10


def test_what_is_covered_outlasts_a_power_loss(tmp_path, synced):
    """A message that was dropped for it is gone: it must not be needed again."""
    folder = tmp_path / "inbox"
    inbox = Inbox(folder)
    inbox.append([b"1", b"2"]).result()
    uid = inbox.description.uid
    inbox.close()
    pipeline = read_pipeline(str(make_pipeline(tmp_path, 1)), Settings())
    told = Acknowledgements(pipeline.store, {uid: folder})
    offsets = {"inbox": uid, "position": "1"}
    told.know(
        pipeline.state.live[0].checkpoint_id,
        {"0": SourcePosition(source_type=KIND, offsets=offsets, verbatim="", metadata={})},
    )
    synced.clear()
    assert told.acknowledge(pipeline.state) is None
    assert {(folder / COVERED_FILE).stat().st_ino, folder.stat().st_ino} <= synced
