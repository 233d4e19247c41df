"""Jobs side by side, a bounded number at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_parallel(jobs: Iterable[Callable[[], T]], concurrency: int) -> list[T]:
    """Run the jobs, a bounded number at once, and return every result; the first error ends it.

    With a concurrency of 1 they run here, one by one, which keeps a simulation deterministic.
    """
    jobs = list(jobs)
    if concurrency == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(concurrency, len(jobs)), thread_name_prefix="slackwater-io") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
