"""What becomes of the local database of a keyed pipeline, by what it goes on from and by what the log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.errors import Conflict
from slackwater.formats.state import LiveCheckpoint
from slackwater.keyed.documents import Lineage
from slackwater.keyed.opening import plan_opening
from tests.golden.samples import IDS, UID, entry, state

FOLDER = Path("/data/counts.wal")


def goes_on_from(base: int, attempt: int | None = None, uid: str = UID) -> Lineage:
    attempt_id = None if attempt is None else IDS[attempt]
    return Lineage(uid=uid, base_id=IDS[base] if base else None, base_epoch=base, attempt_id=attempt_id)


def rollback(epoch: int, to: int, *, parent: int | None = None, repair: bool = False) -> LiveCheckpoint:
    parent_id = IDS[epoch - 1 if parent is None else parent]
    return entry(epoch, rollback_to=to, parent_id=parent_id, repair=repair)


ONE, TWO, THREE, FOUR = entry(1), entry(2), entry(3), entry(4)
UNDONE = entry(2, undone=True)


@pytest.mark.parametrize(
    ("lineage", "live", "plan"),
    [
        pytest.param(goes_on_from(0), [], "keep", id="there is no checkpoint yet"),
        pytest.param(goes_on_from(0, attempt=1), [], "keep", id="its first did not count"),
        pytest.param(goes_on_from(0, attempt=1), [ONE], "keep", id="its first has counted, unheard"),
        pytest.param(goes_on_from(2), [ONE, TWO], "keep", id="the newest is its base"),
        pytest.param(goes_on_from(1, attempt=2), [ONE, TWO], "keep", id="its attempt has counted, unheard"),
        pytest.param(goes_on_from(2, attempt=3), [ONE, TWO], "keep", id="its attempt did not count"),
        pytest.param(goes_on_from(2), [ONE, UNDONE, rollback(3, 1)], "replace", id="its base was rolled back"),
        pytest.param(goes_on_from(1, 2), [ONE, UNDONE, rollback(3, 1)], "replace", id="its attempt was rolled back"),
        pytest.param(
            goes_on_from(2), [ONE, UNDONE, rollback(3, 1), rollback(4, 1)], "replace", id="it was rolled back twice"
        ),
        pytest.param(
            goes_on_from(2), [ONE, rollback(4, 1, parent=1, repair=True)], "replace", id="a repair forgot its base"
        ),
    ],
)
def test_a_database_goes_on_with_its_own_checkpoint_and_gives_way_to_a_rollback(
    lineage: Lineage, live: list[LiveCheckpoint], plan: str
) -> None:
    epoch = live[-1].epoch if live else 0
    assert plan_opening(lineage, state(epoch=epoch, live=live), FOLDER) == plan


@pytest.mark.parametrize(
    ("lineage", "live", "code", "words"),
    [
        pytest.param(
            goes_on_from(2, uid="f00d" * 8), [ONE, TWO], "keyed.wrong_folder", "another pipeline", id="another uid"
        ),
        pytest.param(
            goes_on_from(1), [], "keyed.wrong_folder", "the store ends at 0", id="a store without a checkpoint"
        ),
        pytest.param(goes_on_from(3), [ONE, TWO], "keyed.wrong_folder", "the store ends at 2", id="an older store"),
        pytest.param(goes_on_from(0), [ONE], "keyed.wrong_folder", "come to 1 elsewhere", id="begun elsewhere"),
        pytest.param(
            goes_on_from(1, 2), [ONE, THREE], "keyed.wrong_folder", "come to 3 elsewhere", id="gone on elsewhere"
        ),
        pytest.param(
            goes_on_from(2),
            [ONE, UNDONE, rollback(3, 1), FOUR],
            "keyed.wrong_folder",
            "come to 4 elsewhere",
            id="rolled back, and gone on elsewhere",
        ),
        pytest.param(
            goes_on_from(1),
            [ONE, UNDONE, rollback(3, 1)],
            "keyed.wrong_folder",
            "come to 3 elsewhere",
            id="gone on elsewhere, and rolled back",
        ),
        pytest.param(
            goes_on_from(1),
            [rollback(4, 2, parent=2, repair=True)],
            "keyed.wrong_folder",
            "come to 4 elsewhere",
            id="older than what a repair went back to",
        ),
    ],
)
def test_what_nobody_can_decide_is_a_conflict(
    lineage: Lineage, live: list[LiveCheckpoint], code: str, words: str
) -> None:
    epoch = live[-1].epoch if live else 0
    with pytest.raises(Conflict, match=words) as caught:
        plan_opening(lineage, state(epoch=epoch, live=live), FOLDER)
    assert caught.value.code == code and f"move {FOLDER} away" in str(caught.value.hint)
