"""The totals that a run over the payments must give, computed apart from Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from demo.payments import WATERMARK_DELAY_MS, WINDOW_MS, Payment, payment

Key: TypeAlias = tuple[int, str]  # window_start_ms, merchant
Total: TypeAlias = tuple[int, int]  # amount_cents, payments


class Counts(NamedTuple):
    """How many rows of a run must leave no trace in its totals."""

    duplicates: int
    late: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is not as expected, by key: one entry for each missing, surplus, differing or foreign row."""

    lost: tuple[Key, ...]
    repeated: tuple[Key, ...]
    wrong: tuple[Key, ...]
    unexpected: tuple[Key, ...]

    @property
    def exact(self) -> bool:
        """Whether every expected row is there once, with the right values, with nothing besides."""
        return not (self.lost or self.surplus)

    @property
    def surplus(self) -> int:
        """How many rows there are that should not be there, or not so."""
        return len(self.repeated) + len(self.wrong) + len(self.unexpected)


def expected_totals(rows: int) -> dict[Key, Total]:
    """Compute the amount and the number of payments by window and merchant for a run of ``rows``."""
    return total_up(paid for paid, duplicate, late in _judged(rows) if not duplicate and not late)


def total_up(payments: Iterable[Payment]) -> dict[Key, Total]:
    totals: dict[Key, Total] = {}
    for paid in payments:
        key = (paid.at_ms // WINDOW_MS * WINDOW_MS, paid.merchant)
        amount_cents, count = totals.get(key, (0, 0))
        totals[key] = (amount_cents + paid.amount_cents, count + 1)
    return totals


def counts(rows: int) -> Counts:
    """Count the duplicates and the late rows in a run of ``rows``."""
    duplicates = late = 0
    for _, is_duplicate, is_late in _judged(rows):
        duplicates += is_duplicate
        late += is_late
    return Counts(duplicates, late)


def compare(expected: Mapping[Key, Total], actual_rows: Iterable[tuple[int, str, int, int]]) -> Comparison:
    """Compare rows read from a sink (window_start_ms, merchant, amount_cents, payments), each time they occur.

    A second row for a key is repeated whatever its values, and wrong as well where they differ.
    """
    actual: defaultdict[Key, list[Total]] = defaultdict(list)
    for window_start_ms, merchant, amount_cents, payments in actual_rows:
        actual[window_start_ms, merchant].append((amount_cents, payments))
    known = [(key, total) for key, totals in actual.items() if key in expected for total in totals]
    return Comparison(
        lost=tuple(key for key in expected if key not in actual),
        repeated=tuple(key for key, totals in actual.items() if key in expected for _ in totals[1:]),
        wrong=tuple(key for key, total in known if total != expected[key]),
        unexpected=tuple(key for key, totals in actual.items() if key not in expected for _ in totals),
    )


def _judged(rows: int) -> Iterator[tuple[Payment, bool, bool]]:
    """Yield each payment before the flush, whether its id was seen before, and whether it is behind the watermark.

    The newest payment so far stands for any micro-batch boundary: ``payments`` says why none makes a difference.
    """
    seen: set[int] = set()
    newest_ms = 0
    for i in range(rows - 1):
        paid = payment(i)
        yield paid, paid.id in seen, paid.at_ms <= newest_ms - WATERMARK_DELAY_MS
        seen.add(paid.id)
        newest_ms = max(newest_ms, paid.at_ms)
