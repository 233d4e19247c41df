"""Jobs side by side, a bounded number at once, and how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
# Is told how many bytes are done, and how many there are.
OnProgress = Callable[[int, int], None]


class Counted:
    """How many bytes are done, told by jobs in several threads."""

    def __init__(self, progress: OnProgress | None, total_bytes: int) -> None:
        self._progress, self._total_bytes, self._done_bytes = progress, total_bytes, 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            if self._progress is not None:
                self._progress(self._done_bytes, self._total_bytes)


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
