"""Plans: where new files go, and which checkpoints leave."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.formats import batch
from slackwater.formats import state as states
from slackwater.protocol.keep_rules import plan_retire
from slackwater.protocol.placement import NewFile, plan_placement
from slackwater.settings import KIB, MIB, Settings
from tests.golden.samples import APPENDS, entry, state


def state_files(count: int, size: int, per_partition: int = 1) -> list[NewFile]:
    return [
        NewFile(f"state/0/{n // per_partition}/{n}.delta", size, f"state/0/{n // per_partition}") for n in range(count)
    ]


def placed(files: list[NewFile], **settings) -> tuple[int, list[int], int]:
    plan = plan_placement(files, Settings(**settings))
    everywhere = [
        *plan.inline,
        *(p for paths in plan.batches for p in paths),
        *(p for ps in plan.objects.values() for p in ps),
    ]
    assert sorted(everywhere) == sorted(file.path for file in files)
    return len(plan.inline), [len(paths) for paths in plan.batches], len(plan.objects)


def test_the_small_deltas_of_200_partitions_share_one_batch():
    assert placed(state_files(200, 300)) == (0, [200], 0)


def test_tiny_state_goes_inline_when_all_of_it_fits_and_not_at_all_otherwise():
    assert placed(state_files(4, 1000)) == (4, [], 0)
    assert placed(state_files(13, 1000)) == (0, [13], 0)


def test_C15_the_budget_counts_base64_and_the_sum():
    # 12 × 1,336 characters fit 16 KiB, 13 do not, though 13 × 1,000 bytes would.
    assert placed(state_files(12, 1000)) == (12, [], 0)
    files = [NewFile(f"offsets/{n}", 4000, None) for n in range(100)]
    assert placed(files) == (3, [97], 0)
    assert placed([NewFile("offsets/0", 4 * KIB + 1, None)], inline_budget_bytes=64 * KIB) == (0, [1], 0)


def test_a_partition_with_much_that_is_new_gets_one_object_for_all_its_files():
    files = state_files(8, 600 * KIB, per_partition=4)
    plan = plan_placement(files, Settings())
    assert plan.objects == {f"state/0/{p}": [f"state/0/{p}/{n}.delta" for n in range(4 * p, 4 * p + 4)] for p in (0, 1)}
    assert (plan.inline, plan.batches) == ([], [])


def test_D9_batches_are_split_at_their_target_size():
    assert placed(state_files(30, 900 * KIB)) == (0, [9, 9, 9, 3], 0)
    assert placed([NewFile("sources/0/9.compact", 20 * MIB, None), NewFile("metadata", 8 * KIB, None)]) == (
        0,
        [1, 1],
        0,
    )


def test_a_batch_never_gets_more_entries_than_it_can_hold(monkeypatch):
    count = batch.MAX_ENTRIES + 10
    assert placed(state_files(count, 1)) == (0, [batch.MAX_ENTRIES, 10], 0)


def test_nothing_new_costs_nothing():
    assert placed([]) == (0, [], 0)


def living(
    *epochs: int, labelled: tuple[int, ...] = (), retired: int = 0, undone: tuple[int, ...] = ()
) -> states.State:
    return state(
        epoch=max(epochs, default=0),
        live=[entry(1, epoch=epoch, undone=epoch in undone) for epoch in epochs],
        labels=[states.Savepoint(label=str(e), epoch=e, created_at_ms=0, append_id=APPENDS[0]) for e in labelled],
        retired=[states.RetiredCheckpoint(epoch=0, checkpoint_id="", manifest_sha256="")] * retired,
    )


@pytest.mark.parametrize(
    ("before", "keep_last", "leaving"),
    [
        (living(), 1, []),
        (living(1), 1, [1]),
        (living(1), 2, []),
        (living(1, 2, 3), 3, [1]),
        (living(1, 2, 3), 4, []),
        (living(4, 5, 6, 7), 1, [4, 5, 6, 7]),
        (living(1, 5, 6, labelled=(1,)), 2, [5]),
        (living(1, 2, 3, labelled=(1, 2, 3)), 1, []),
        (living(1, 2, 3, retired=1000), 1, []),
        (living(1, 2, 3, retired=998), 1, [1, 2]),
        (living(1, 2, 3, retired=5000), 1, []),
    ],
)
def test_F4_the_newest_stay_with_the_one_that_is_added_and_so_do_savepoints(before, keep_last, leaving):
    assert plan_retire(before, keep_last) == leaving


def test_what_the_same_record_says_is_deleted_waits_no_more():
    waiting = living(4, 5, 6, retired=3)
    for room in (range(997), range(1001)):
        more = [states.RetiredCheckpoint(epoch=e + 100, checkpoint_id="", manifest_sha256="") for e in room]
        full = msgspec.structs.replace(waiting, retired=[*waiting.retired, *more])
        assert plan_retire(full, 1) == []
        assert plan_retire(full, 1, deleted=[entry.epoch for entry in more]) == [4, 5, 6]


@pytest.mark.parametrize(
    ("before", "keep_last", "leaving"),
    [
        # 6 is a rollback to 3: the three on the branch stay, although 4 and 5 are newer than two of them.
        (living(2, 3, 4, 5, 6, undone=(4, 5)), 4, []),
        (living(2, 3, 4, 5, 6, undone=(4, 5)), 3, [2]),
        # Undone ones leave with the branch's checkpoints that are as old.
        (living(3, 4, 5, 6, 7, undone=(4, 5)), 3, [3, 4, 5]),
        (living(1, 2, 3, 4, undone=(2, 3)), 1, [1, 2, 3, 4]),
        # More of them than the branch may have checkpoints are not kept either, the oldest first.
        (living(1, 2, 3, 4, 5, 6, undone=(2, 3, 4, 5)), 3, [2]),
        (living(1, 2, 3, 4, 5, 6, undone=(2, 3, 4, 5), labelled=(2,)), 3, []),
        (living(1, 2, 3, 4, 5, 6, 7, undone=(2, 3, 4, 5), labelled=(1, 3)), 2, [2, 4, 5, 6]),
    ],
)
def test_undone_checkpoints_do_not_crowd_out_those_that_a_rollback_can_go_to(before, keep_last, leaving):
    assert plan_retire(before, keep_last) == leaving
