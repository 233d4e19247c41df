"""Rule 9, second way: inboxes drop up to the newest checkpoint, and nothing goes back to before what they dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from slackwater.errors import Conflict, NotFound
from slackwater.formats.manifest import SourcePosition
from slackwater.formats.positions import KIND, acknowledged_of
from slackwater.inboxes import documents
from slackwater.inboxes.documents import COVERED_FILE, PUBLISHED_FILE, Covered, Published
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.repair import repair
from slackwater.ops.rollback import rollback
from slackwater.protocol.verified_reads import load_manifest
from slackwater.sources.acknowledgement import Acknowledgements
from slackwater.sources.query_inboxes import refuse_dropped
from slackwater.store import Store
from tests import pipelines
from tests.pipelines import Driver, flip, make_pipeline
from tests.unit.test_repair import newest, sinks_of
from tests.unit.test_rollback import rows

INBOX = "ab" * 16


@pytest.fixture(autouse=True)
def micro_batches_of_ten_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let epoch n stand at message 10 n, and let the inbox drop all of these."""
    capture = vars(pipelines)["capture"]

    def capture_inbox(folder: Path, micro_batch: int, sources: list[str]) -> Any:
        offsets = {"inbox": INBOX, "position": str(10 * (micro_batch + 1))}
        position = SourcePosition(source_type=KIND, offsets=offsets, verbatim="", metadata={})
        noted = Acknowledgements(cast(Store, None), {}, up_to="newest").note({"0": position})
        return msgspec.structs.replace(capture(folder, micro_batch, sources), sources=noted)

    monkeypatch.setattr(pipelines, "capture", capture_inbox)


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return make_pipeline(tmp_path, 3)


def manifest_of(pipeline: Path, epoch: int) -> Path:
    (entry,) = (entry for entry in read_pipeline(str(pipeline)).state.live if entry.epoch == epoch)
    return pipeline / "checkpoints" / entry.checkpoint_id / "manifest.json"


def test_a_rollback_goes_nowhere_when_the_newest_manifest_cannot_be_read(tmp_path: Path, pipeline: Path) -> None:
    flip(manifest_of(pipeline, 3))
    with pytest.raises(Conflict, match=r"rollback\.impossible.*message 20 .* more than can be read"):
        rollback(str(pipeline), "2", sinks=sinks_of(tmp_path))
    with pytest.raises(Conflict, match=r"rollback\.impossible.*stands at message"):
        Driver(tmp_path, fallback=True)
    assert Driver.sink_at(tmp_path).rows() == rows(0, 1, 2)


def test_one_between_that_cannot_be_read_tells_nothing_that_the_newest_does_not(tmp_path: Path, pipeline: Path) -> None:
    flip(manifest_of(pipeline, 2))
    with pytest.raises(Conflict, match=r"rollback\.impossible.*message 10 .* all up to 30"):
        rollback(str(pipeline), "1", sinks=sinks_of(tmp_path))


@pytest.mark.parametrize("readable", [True, False])
def test_a_repair_does_not_go_back_to_before_what_a_lost_checkpoint_has_let_go(
    tmp_path: Path, pipeline: Path, readable: bool
) -> None:
    lost, log = manifest_of(pipeline, 3), sorted((pipeline / "log").iterdir())
    if not readable:
        lost.write_bytes(b"{")
    for record in log[-2:]:  # the release, and the checkpoint
        flip(record)
    # Of one that cannot be read nobody knows what it undid, so the oldest would be gone on from.
    with pytest.raises(Conflict, match=rf"rollback\.impossible.*message {20 if readable else 10}"):
        repair(pipeline, sinks=sinks_of(tmp_path))
    assert newest(pipeline) == log[-1]


def test_a_repair_that_goes_back_past_nothing_keeps_on_record_what_was_let_go(tmp_path: Path, pipeline: Path) -> None:
    flip(newest(pipeline))  # the release
    assert repair(pipeline, sinks=sinks_of(tmp_path)) is not None
    opened = read_pipeline(str(pipeline))
    head = load_manifest(opened.store, opened.state.live[-1])
    assert head.epoch > 3 and acknowledged_of(head.source_offsets) == {INBOX: 30}


@pytest.mark.parametrize(("dropped", "covered"), [(31, None), (0, 31), (30, 30), (30, None)])
def test_a_start_asks_the_inbox_before_sinks_undo_anything(
    tmp_path: Path, pipeline: Path, dropped: int, covered: int | None
) -> None:
    folder = tmp_path / "inbox"
    folder.mkdir()
    published = Published(inbox=INBOX, position=40, dropped=dropped)
    (folder / PUBLISHED_FILE).write_bytes(documents.encode(published))
    if covered is not None:
        said = Covered(inbox=INBOX, position=covered, pipeline="0" * 32)
        (folder / COVERED_FILE).write_bytes(documents.encode(said))
    opened = read_pipeline(str(pipeline))
    head = load_manifest(opened.store, opened.state.live[-1])
    if max(dropped, covered or 0) > 30:
        with pytest.raises(NotFound, match=r"inbox\.dropped"):
            refuse_dropped({INBOX: folder}, head)
    else:
        refuse_dropped({INBOX: folder}, head)
    refuse_dropped({}, head)  # another machine's
