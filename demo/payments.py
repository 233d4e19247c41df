"""Payments whose every field is a pure function of a sequence number.

Even rows are always fresh and on time. An odd row may be a duplicate (an exact copy of an even row shortly before) or
very late (a fresh payment from hours ago). What a query with a watermark makes of a row never depends on where
micro-batches end. Spark drops a row of micro-batch N when its event time is at or below the watermark of micro-batch
N-1, which is the greatest event time of micro-batches 0 to N-2 less the delay D. In seconds, with row i due at i,
jitter J = 120, D = 600, and at most B rows in a micro-batch:

- Other rows are never dropped. Row i, or the original that it copies, lies at i - 199 - J or later; no earlier row lies
  above i - 1 + J. So it is at most 198 + 2J = 438 behind, and 438 < D.
- Late rows are always dropped. Rows 0 to i - 2B are in micro-batches up to N-2, and the last even one of them reaches
  i - 2B - 1 - J. A late row lies at i - 14,400 or earlier, which is at or below i - 2B - 1 - J - D while 2B <= 13,679.
  Row i - 2B must exist: late rows begin at LATE_FROM = 2 * MAX_ROWS_PER_BATCH.

The last row of a run is a flush: so far in the future that the watermark passes the end of every other window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

Draw = TypeVar("Draw", int, "NDArray[Any]")

EPOCH_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
STEP_MS = 1_000
JITTER_MS = 120_000
WATERMARK_DELAY_MS = 600_000
WINDOW_MS = 600_000
LATE_BY_MS = 4 * 3_600_000
FLUSH_AFTER_MS = 86_400_000
MAX_ROWS_PER_BATCH = 4_000
LATE_FROM = 2 * MAX_ROWS_PER_BATCH
DUPLICATE_FROM = 200
DUPLICATE_PERCENT = 8  # of odd rows, so half of it over all rows
LATE_PERCENT = 2

MERCHANTS = (
    "bakery", "grocer", "cinema", "florist", "garage", "hotel",
    "kiosk", "museum", "optician", "pharmacy", "tailor", "vineyard",
)  # fmt: skip

# One independent stream of draws a field.
KIND, DISTANCE, MERCHANT, MERCHANT_AGAIN, AMOUNT, JITTER, LATENESS = range(7)
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """One payment; ``id`` is the sequence number at which it first appeared."""

    id: int
    merchant: str
    amount_cents: int
    at_ms: int


def draw(row: Draw, field: int, bound: int) -> Draw:
    """Draw a number below ``bound`` for a field of a row, or of an array of rows, by splitmix64.

    Arrays of uint64 wrap by themselves; the masks are for Python's integers.
    """
    mixed = ((row * 8 + field) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % bound


def payment(i: int) -> Payment:
    """Make the payment with sequence number ``i``."""
    kind = draw(i, KIND, 100) if i % 2 else 100
    if kind < DUPLICATE_PERCENT and i >= DUPLICATE_FROM:
        return payment(i - 1 - 2 * draw(i, DISTANCE, 100))
    late = DUPLICATE_PERCENT <= kind < DUPLICATE_PERCENT + LATE_PERCENT and i >= LATE_FROM
    shift_ms = -LATE_BY_MS - draw(i, LATENESS, LATE_BY_MS) if late else draw(i, JITTER, 2 * JITTER_MS + 1) - JITTER_MS
    return Payment(
        id=i,
        # The smaller of two draws makes the first merchant 23 times as busy as the last.
        merchant=MERCHANTS[min(draw(i, MERCHANT, len(MERCHANTS)), draw(i, MERCHANT_AGAIN, len(MERCHANTS)))],
        amount_cents=100 + draw(i, AMOUNT, 20_000),
        at_ms=EPOCH_MS + i * STEP_MS + shift_ms,
    )


def flush(rows: int) -> Payment:
    """Make the last payment of a run of ``rows``, which closes every window but its own."""
    return Payment(id=rows - 1, merchant=MERCHANTS[0], amount_cents=0, at_ms=EPOCH_MS + rows * STEP_MS + FLUSH_AFTER_MS)
