"""The payments and their oracle, without Spark."""

from __future__ import annotations

import subprocess
import sys
from itertools import accumulate, pairwise

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from demo import payments as p
from demo.oracle import Counts, compare, counts, expected_totals
from demo.payments_stream import PaymentsSource, flush_batch, record_batch

ROWS = 100_000


@pytest.fixture(scope="module")
def run() -> list[p.Payment]:
    return [p.payment(i) for i in range(ROWS)]


def late(i: int, paid: p.Payment) -> bool:
    return paid.at_ms <= p.EPOCH_MS + i * p.STEP_MS - p.LATE_BY_MS


def rows_of(batch: pa.RecordBatch) -> list[p.Payment]:
    at_ms = (at_us // 1_000 for at_us in batch["at"].cast(pa.int64()).to_pylist())
    columns = (batch[name].to_pylist() for name in ("id", "merchant", "amount_cents"))
    return [
        p.Payment(id=i, merchant=merchant, amount_cents=cents, at_ms=ms)
        for i, merchant, cents, ms in zip(*columns, at_ms, strict=True)
    ]


def test_a_payment_never_changes() -> None:
    assert p.payment(0) == p.Payment(id=0, merchant="bakery", amount_cents=2_544, at_ms=1_767_225_495_993)
    assert p.payment(215) == p.payment(126)
    assert p.payment(8_163) == p.Payment(id=8_163, merchant="grocer", amount_cents=15_347, at_ms=1_767_210_349_625)


def test_duplicates_are_exact_copies_of_a_payment_shortly_before(run: list[p.Payment]) -> None:
    copies = [(i, paid) for i, paid in enumerate(run) if paid.id != i]
    assert 0.035 * ROWS < len(copies) < 0.045 * ROWS
    assert all(paid == run[paid.id] and 0 < i - paid.id < 200 for i, paid in copies)


def test_late_payments_are_fresh_and_absent_from_the_start(run: list[p.Payment]) -> None:
    found = [i for i, paid in enumerate(run) if late(i, paid)]
    assert 0.008 * ROWS < len(found) < 0.012 * ROWS
    assert min(found) >= p.LATE_FROM
    assert all(run[i].id == i for i in found)


def test_every_merchant_is_paid_though_not_equally(run: list[p.Payment]) -> None:
    shares = [sum(paid.merchant == name for paid in run) for name in p.MERCHANTS]
    assert all(more > less for more, less in pairwise(shares))
    assert min(shares) > 0


@pytest.mark.parametrize("rows_per_batch", [1, 7, 700, 1_999, 2_000, p.MAX_ROWS_PER_BATCH])
def test_wherever_micro_batches_end_late_rows_are_dropped_with_no_other(
    run: list[p.Payment], rows_per_batch: int
) -> None:
    newest_ms = list(accumulate((paid.at_ms for paid in run), max))
    for i, paid in enumerate(run):
        if late(i, paid):
            # Row i ends a full micro-batch that follows a full one: the lowest watermark possible.
            assert i >= 2 * rows_per_batch
            assert paid.at_ms <= newest_ms[i - 2 * rows_per_batch] - p.WATERMARK_DELAY_MS
        elif i:
            # Every earlier row already counts: the highest watermark possible.
            assert paid.at_ms > newest_ms[i - 1] - p.WATERMARK_DELAY_MS


def test_the_flush_closes_every_other_window(run: list[p.Payment]) -> None:
    last_end_ms = max(paid.at_ms for paid in run) // p.WINDOW_MS * p.WINDOW_MS + p.WINDOW_MS
    assert p.flush(ROWS).at_ms - p.WATERMARK_DELAY_MS >= last_end_ms


def test_columns_agree_with_single_payments(run: list[p.Payment]) -> None:
    assert [*rows_of(record_batch(0, 30_000)), *rows_of(record_batch(30_000, ROWS))] == run
    assert rows_of(flush_batch(ROWS)) == [p.flush(ROWS)]


def test_partitions_of_any_micro_batch_add_up_to_the_run() -> None:
    source = PaymentsSource({"rows": "1001", "rows_per_batch": "300", "partitions": "3"})
    reader = source.streamReader(StructType())
    made, ends, start = [], [], reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        ends.append(end["seq"])
        made += [
            paid for span in reader.partitions(start, end) for batch in reader.read(span) for paid in rows_of(batch)
        ]
        start = end
    assert ends == [300, 600, 900, 1001]
    assert made == [*(p.payment(i) for i in range(1000)), p.flush(1001)]


@pytest.mark.parametrize(
    "options",
    [
        {"rows_per_batch": "10"},
        {"rows": "0", "rows_per_batch": "10"},
        {"rows": "-1", "rows_per_batch": "10"},
        {"rows": "10", "rows_per_batch": str(p.MAX_ROWS_PER_BATCH + 1)},
        {"rows": "10", "rows_per_batch": "10", "partitions": "two"},
    ],
)
def test_an_option_that_would_break_the_promises_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"the option \w+ of the payments source is"):
        PaymentsSource(options).streamReader(StructType())


def test_the_oracle_needs_neither_spark_nor_numpy() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "pyarrow", "numpy"]))
from demo.oracle import counts
counts(9)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_the_oracle_leaves_out_duplicates_late_rows_and_the_flush(run: list[p.Payment]) -> None:
    kept = {paid.id: paid for i, paid in enumerate(run[:-1]) if not late(i, paid)}
    totals = expected_totals(ROWS)
    assert sum(payments for _, payments in totals.values()) == len(kept)
    assert sum(amount for amount, _ in totals.values()) == sum(paid.amount_cents for paid in kept.values())
    assert counts(ROWS) == Counts(
        duplicates=sum(paid.id != i for i, paid in enumerate(run[:-1])),
        late=sum(late(i, paid) for i, paid in enumerate(run[:-1])),
    )


def test_the_first_window_of_the_oracle_by_hand() -> None:
    # By their jitter rows 0 and 1 lie before midnight, row 2 after it; row 3 gives way to the flush.
    assert expected_totals(4) == {
        (p.EPOCH_MS - p.WINDOW_MS, "bakery"): (2_544, 1),
        (p.EPOCH_MS - p.WINDOW_MS, "grocer"): (4_826, 1),
        (p.EPOCH_MS, "bakery"): (1_584, 1),
    }


def test_an_exact_sink_compares_as_exact() -> None:
    expected = expected_totals(9_000)
    assert compare(expected, [(*key, *total) for key, total in reversed(expected.items())]).exact


def test_compare_finds_a_missing_a_doubled_a_wrong_and_a_foreign_row() -> None:
    expected = expected_totals(9_000)
    rows = [(*key, *total) for key, total in expected.items()]
    keys = list(expected)

    missing = compare(expected, rows[1:])
    assert (missing.lost, missing.exact) == ((keys[0],), False)

    doubled = compare(expected, [*rows, rows[5], rows[5]])
    assert (doubled.repeated, doubled.exact, doubled.wrong) == ((keys[5], keys[5]), False, ())

    window_start_ms, merchant, amount_cents, payments = rows[7]
    wrong = compare(expected, [*rows[:7], (window_start_ms, merchant, amount_cents + 1, payments), *rows[8:]])
    assert (wrong.wrong, wrong.exact, wrong.lost, wrong.repeated) == ((keys[7],), False, (), ())

    again = compare(expected, [*rows, (window_start_ms, merchant, 1, 1)])
    assert (again.wrong, again.repeated) == ((keys[7],), (keys[7],))

    foreign = compare(expected, [*rows, (0, "nobody", 1, 1)])
    assert (foreign.unexpected, foreign.exact) == (((0, "nobody"),), False)
