"""What adoption and import make is a pipeline's first checkpoint: a precondition of their claim, not a look before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater.formats import record as records
from slackwater.formats.change import Checkpoint, Claim, Release
from slackwater.ops.import_ import import_folder
from slackwater.ops.pipelines import read_pipeline
from slackwater.ops.verify import verify
from slackwater.protocol import driver as drivers
from slackwater.store.checked import Checked
from tests.laminar_folders import v2_folder
from tests.pipelines import SparkDirectory


def adopt(root: Path) -> Any:
    work = SparkDirectory(root / "checkpoint")
    work.commit(0, [2000, 200])
    return sw.adopt(work.root, store=root / "store", pipeline="orders")


def imported(root: Path) -> Any:
    return import_folder(str(v2_folder(root / "db")), str(root / "store" / "orders"))


Way = Callable[[Path], Any]
CODES: dict[Way, str] = {adopt: "pipeline.not_new", imported: "pipeline.not_new"}
WAYS = pytest.mark.parametrize("way", CODES)


class Program:
    """A program that opens the pipeline and makes its first checkpoint, when it is called."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pipeline: sw.ProgramPipeline | None = None

    def __call__(self) -> None:
        if self.pipeline is None:
            self.pipeline = sw.open_pipeline(self._root / "store", "orders")
            self.checkpoint(1)

    def checkpoint(self, row: int) -> int:
        assert self.pipeline is not None, "it was never called"
        return self.pipeline.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}}).epoch


Moment = Callable[[pytest.MonkeyPatch, Callable[[], object]], None]


def before_the_claim(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once the tool has looked at the pipeline for the last time before its claim."""
    reach, acting = vars(drivers)["reach"], [True]

    def reach_and_act(name: str) -> None:
        if name == "claim.before" and acting:
            acting.clear()
            act()
        reach(name)

    patch.setattr(drivers, "reach", reach_and_act)


def before_the_record(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once the claim is decided, right before its record is created."""
    create, acting = Checked.create, [True]

    def create_later(self: Checked, key: str, data: bytes) -> bool:
        if key.startswith("log/") and acting:
            acting.clear()
            act()
        return create(self, key, data)

    patch.setattr(Checked, "create", create_later)


def changes(pipeline: Path) -> list[type]:
    paths = sorted((pipeline / "log").iterdir())
    return [type(records.decode(path.read_bytes(), number=int(path.stem)).change) for path in paths]


@WAYS
@pytest.mark.parametrize("moment", [before_the_claim, before_the_record])
@pytest.mark.parametrize("opened_before", [False, True])
def test_who_lost_a_race_against_a_program_is_refused_without_a_claim_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, moment: Moment, opened_before: bool
) -> None:
    if opened_before:  # so that the tool knows an old state, and not only that there is none
        sw.open_pipeline(tmp_path / "store", "orders").close()
    program = Program(tmp_path)
    with monkeypatch.context() as patch:
        moment(patch, program)
        with pytest.raises(sw.Conflict) as caught:
            way(tmp_path)
    assert caught.value.code == CODES[way] and caught.value.hint
    assert program.checkpoint(2) == 2, "it was fenced"
    url = tmp_path / "store" / "orders"
    assert changes(url) == [Claim, Release] * opened_before + [Claim, Checkpoint, Checkpoint]
    assert verify(url, read_data=True).findings == []


@WAYS
def test_a_pipeline_with_a_checkpoint_is_refused_without_a_claim(tmp_path: Path, way: Way) -> None:
    program = Program(tmp_path)
    program()
    with pytest.raises(sw.Conflict) as caught:
        way(tmp_path)
    assert caught.value.code == CODES[way]
    assert program.checkpoint(2) == 2
    assert changes(tmp_path / "store" / "orders") == [Claim, Checkpoint, Checkpoint]


@WAYS
def test_a_program_that_has_claimed_and_has_no_checkpoint_yet_is_fenced(tmp_path: Path, way: Way) -> None:
    """Rule 11: whatever puts state into a pipeline is a driver."""
    running = sw.open_pipeline(tmp_path / "store", "orders")
    way(tmp_path)
    with pytest.raises(sw.Conflict) as caught:
        running.checkpoint(offsets={}, state={})
    assert caught.value.code == "driver.fenced"
    running.close()
    state = read_pipeline(str(tmp_path / "store" / "orders")).state
    assert (state.epoch, state.settled_epoch) == (1, 1) and state.release_append_id is not None


@pytest.mark.parametrize("moment", [before_the_claim, before_the_record])
def test_of_two_imports_of_the_same_checkpoint_at_once_one_makes_it_and_both_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    made: list[Any] = []
    with monkeypatch.context() as patch:
        moment(patch, lambda: made.append(imported(tmp_path)))
        late = imported(tmp_path)
    assert [made[0].done, late.done] == [False, True]
    assert made[0].checkpoint_id == late.checkpoint_id
    state = read_pipeline(str(tmp_path / "store" / "orders")).state
    assert (state.epoch, state.settled_epoch, len(state.live)) == (1, 1, 1) and state.release_append_id is not None
