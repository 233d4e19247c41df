"""What every query of the catalogue must give, computed without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar

from tests.crash.inputs import CLOSING, DELAY_MS, FILES, SPAN_MS, START_MS, Click, View, clicks, views
from tests.crash.queries import BALANCES, CLICK_WITHIN_MS, LIMIT, NAMES, SESSION_GAP_MS

Rows = list[tuple[Any, ...]]
Compute = TypeVar("Compute", bound=Callable[[], Iterable[tuple[Any, ...]]])
EXPECTED: dict[str, Callable[[], Iterable[tuple[Any, ...]]]] = {}


def rows_of(name: str) -> Counter[tuple[Any, ...]]:
    return Counter(EXPECTED[name]())


def expect(compute: Compute) -> Compute:
    EXPECTED[compute.__name__] = compute
    return compute


# --- the inputs, as Spark lets them pass


def all_views() -> list[View]:
    return [view for file in range(FILES) for view in views(file)]


def all_clicks() -> list[Click]:
    return [click for file in range(FILES) for click in clicks(file)]


def late_before_ms(file: int) -> int:
    """Tell the watermark that a file's rows are held against: that of the micro-batch before its own."""
    return max((view.at_ms for older in range(file - 1) for view in views(older)), default=0) - DELAY_MS


def timely_views() -> list[View]:
    return [view for file in range(FILES) for view in views(file) if view.at_ms > late_before_ms(file)]


def timely_clicks() -> list[Click]:
    # The watermark of two streams is the older of theirs, and that is always the views'.
    return [click for file in range(FILES) for click in clicks(file) if click.at_ms > late_before_ms(file)]


def closed(rows: list[View]) -> list[View]:
    """Leave out the row that only lets the watermark pass all others."""
    return [row for row in rows if row.id != 100 * CLOSING]


def start_of(at_ms: int, span_ms: int = SPAN_MS) -> int:
    return at_ms // span_ms * span_ms


def sums(rows: Iterable[tuple[Any, int]]) -> Rows:
    """Count, and sum the values of, each key, which is a tuple."""
    found: dict[Any, list[int]] = defaultdict(list)
    for key, n in rows:
        found[key].append(n)
    return [(*key, len(ns), sum(ns)) for key, ns in found.items()]


# --- without state


@expect
def map_filter_explode() -> Rows:
    return [(v.id, word, 2 * v.n) for v in all_views() if v.n % 3 for word in (v.user, f"{v.user}{v.n}")]


@expect
def map_in_pandas() -> Rows:
    return [(v.id, 10 * v.n) for v in all_views()]


@expect
def union_of_two_sources() -> Rows:
    return [*((v.id, v.n) for v in all_views()), *((c.view, c.price) for c in all_clicks())]


@expect
def join_with_a_table() -> Rows:
    return [(v.id, dict(NAMES)[v.user]) for v in all_views() if v.user in dict(NAMES)]


@expect
def limit() -> Rows:
    return [(v.id, v.n) for v in all_views()][:LIMIT]


# --- aggregation


def by_window(rows: list[View]) -> Rows:
    return sums(((start_of(v.at_ms), v.user), v.n) for v in rows)


@expect
def windowed_aggregation() -> Rows:
    return by_window(closed(timely_views()))


@expect
def session_windows() -> Iterator[tuple[Any, ...]]:
    for user, of_user in groupby(sorted(closed(timely_views()), key=lambda v: (v.user, v.at_ms)), lambda v: v.user):
        session: list[View] = []
        for view in [*of_user, None]:
            if session and (view is None or view.at_ms >= session[-1].at_ms + SESSION_GAP_MS):
                yield session[0].at_ms, user, len(session), sum(v.n for v in session)
                session = []
            session += [view] if view else []


@expect
def aggregation_of_an_aggregation() -> Rows:
    longer: dict[int, list[int]] = defaultdict(list)
    for start_ms, _, _, n in windowed_aggregation():
        longer[start_of(start_ms, 2 * SPAN_MS)].append(n)
    return [(start_ms, max(ns), len(ns)) for start_ms, ns in longer.items()]


@expect
def aggregation_in_update_mode() -> Rows:
    return sums(((v.user,), v.n) for v in all_views())


@expect
def windowed_aggregation_in_update_mode() -> Rows:
    return by_window(timely_views())


@expect
def aggregation_in_complete_mode() -> Rows:
    return aggregation_in_update_mode()


@expect
def global_aggregation_in_complete_mode() -> Rows:
    return sums(((), v.n) for v in all_views())


# --- dedup


@expect
def drop_duplicates() -> Rows:
    return list({v.id: (v.id, v.user, v.n) for v in all_views()}.values())


@expect
def drop_duplicates_with_watermark() -> Rows:
    return list({v.id: (v.id, v.user, v.n) for v in timely_views()}.values())


@expect
def drop_duplicates_within_watermark() -> Rows:
    return drop_duplicates_with_watermark()


@expect
def dedup_then_aggregation() -> Rows:
    return by_window(list(dict.fromkeys(closed(timely_views()))))


# --- joins


def pairs() -> list[tuple[View, Click]]:
    return [
        (view, click)
        for view in timely_views()
        for click in timely_clicks()
        if click.view == view.id and view.at_ms <= click.at_ms <= view.at_ms + CLICK_WITHIN_MS
    ]


@expect
def inner_join() -> Rows:
    return [(view.id, view.n, click.view, click.price) for view, click in pairs()]


@expect
def left_outer_join() -> Rows:
    seen = {view for view, _ in pairs()}
    return [*inner_join(), *((v.id, v.n, None, None) for v in closed(timely_views()) if v not in seen)]


@expect
def right_outer_join() -> Rows:
    used = {click for _, click in pairs()}
    unused = [click for click in timely_clicks() if click not in used and click not in clicks(CLOSING)]
    return [*inner_join(), *((None, None, click.view, click.price) for click in unused)]


@expect
def full_outer_join() -> Rows:
    matched = len(inner_join())
    return [*left_outer_join(), *right_outer_join()[matched:]]


@expect
def dedup_then_left_semi_join() -> Rows:
    return list({(view.id, view.n) for view, _ in pairs()})


@expect
def join_without_bounds() -> Rows:
    return [(v.id, v.n, click.price) for v in all_views() for click in all_clicks() if click.view == v.id]


@expect
def join_of_a_stream_with_itself() -> Rows:
    return [(one.id, one.n + other.n) for one in all_views() for other in all_views() if one.id == other.id]


@expect
def join_then_aggregation() -> Rows:
    return sums(((start_of(view.at_ms),), click.price) for view, click in pairs())


@expect
def union_then_aggregation() -> Rows:
    rows = [(v.at_ms, v.n) for v in closed(timely_views())] + [(c.at_ms, c.price) for c in timely_clicks()]
    return sums(((start_of(at_ms),), n) for at_ms, n in rows if at_ms < START_MS + 250 * 60_000)


# --- state of the user's own making


def by_visit() -> dict[tuple[str, int], list[View]]:
    visits: dict[tuple[str, int], list[View]] = defaultdict(list)
    for view in closed(timely_views()):
        visits[view.user, start_of(view.at_ms, 2 * SPAN_MS) + 2 * SPAN_MS].append(view)
    return visits


@expect
def transform_with_state_values_lists_maps_and_event_time_timers() -> Iterator[tuple[Any, ...]]:
    for (user, until_ms), rows in by_visit().items():
        newest = {n: max(v.id for v in rows if v.n == n) for n in sorted({v.n for v in rows})}
        yield user, until_ms, len(rows), str(sorted(v.n for v in rows)), str(list(newest.items()))


@expect
def transform_with_state_processing_time_timers() -> Iterator[tuple[Any, ...]]:
    count: Counter[str] = Counter()
    for file in range(FILES):
        count.update(v.user for v in views(file))
        for user in {v.user for v in views(file - 1)} if file else ():
            yield user, count[user]


@expect
def transform_with_state_that_expires() -> Iterator[tuple[Any, ...]]:
    kept: dict[str, list[int]] = defaultdict(list)
    for file in range(FILES):
        for user in {v.user for v in views(file)}:
            ns = [v.n for v in views(file) if v.user == user]
            kept[user] += ns
            yield user, 1000 * len(kept[user]) + sum(kept[user]), len(ns)


@expect
def transform_with_initial_state() -> Iterator[tuple[Any, ...]]:
    balance = Counter(dict(BALANCES))
    for file in range(FILES):
        for view in views(file):
            balance[view.user] += view.n
        for user in {v.user for v in views(file)}:
            yield user, balance[user]


@expect
def apply_in_pandas_with_event_time_timeout() -> Rows:
    return [(user, until_ms, len(rows)) for (user, until_ms), rows in by_visit().items()]


@expect
def apply_in_pandas_with_processing_time_timeout() -> Iterator[tuple[Any, ...]]:
    count: Counter[str] = Counter()
    for file in range(FILES):
        seen = Counter(v.user for v in views(file))
        for user in count.keys() - seen.keys():
            yield user, count.pop(user)
        count.update(seen)
