"""Keyed state against what this machine can do: durable appends and puts, deltas, recovery, memory, a join, messages.

``docs/performance.md`` says what is compared with what.
"""

from __future__ import annotations

from . import durable, keyed_state, lookup, receive
from .suites import Case, run_suite

CASES: dict[str, Case] = {
    # First: a process begins with the most memory that its parent ever had.
    "memory-1M": keyed_state.memory,
    "append-durable": durable.append,
    "put-durable": durable.put,
    "delta-1pct": keyed_state.delta,
    "recover-1M": keyed_state.recover,
    "lookup-join-1M": lookup.measure,
    "http-durable": receive.measure,
}

if __name__ == "__main__":
    run_suite(CASES, __doc__, rounds=5)
