"""``slackwater probe``: can this store be relied on?"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING

import click

from .entry import INTERRUPTED
from .options import make_settings, store_options
from .text import note, print_json, print_table

if TYPE_CHECKING:
    from ..store.probe import ProbeResult


@click.command("probe")
@click.argument("store")
@store_options
def command(store: str, as_json: bool, timeout_s: float) -> int:
    """Probe whether a STORE does what checkpoints need.

    Small objects are written, read, listed and deleted in a folder of the probe's own, which is removed at the end,
    also after Ctrl-C. Shown are what the store honours, which permissions are missing, and how long requests take.
    Exit code 14 says that the store cannot be used, 12 that permissions are missing.

    \b
    Examples:
      slackwater probe s3://bucket/slackwater
      slackwater probe ./store --json
    """
    from ..protocol.address import refuse_pipeline  # noqa: PLC0415
    from ..store.opening import open_unproven  # noqa: PLC0415
    from ..store.probe import name_folder, probe  # noqa: PLC0415

    refuse_pipeline(store, make_settings(timeout_s))
    opened, folder = open_unproven(store, make_settings(timeout_s)), name_folder()
    result = _interruptible(lambda pause: probe(opened, folder, pause=pause), folder)
    refusal = result.refusal()
    if as_json:
        problem = refusal and {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
        print_json({"store": store, "usable": refusal is None, "problem": problem, "checks": result.checks,
                    "permissions": result.permissions, "latencies": result.latencies, "left": result.left})  # fmt: skip
    else:
        _print(result)
        print(f"not usable: [{refusal.code}] {refusal.message}" if refusal else "usable")
    if result.left:
        note(f"note: {len(result.left)} objects of the probe could not be removed from the folder {folder}")
    return refusal.exit_code if refusal else 0


def _print(result: ProbeResult) -> None:
    print_table(["CHECK", "RESULT", "DETAIL"], [[c.name, c.outcome, c.detail or ""] for c in result.checks])
    print()
    rows = [[one.verb, str(one.calls), f"{one.median_ms:.1f}", f"{one.max_ms:.1f}"] for one in result.latencies]
    print_table(["VERB", ">CALLS", ">MEDIAN MS", ">MAX MS"], rows)
    print()
    for title, names in (
        ("permissions needed", result.permissions.needed),
        ("missing", result.permissions.missing),
        ("not known", result.permissions.unknown),
    ):
        if names:
            print(f"{title}: {', '.join(names)}")


def _interruptible(act: Callable[[Callable[[], None]], ProbeResult], folder: str) -> ProbeResult:
    """Act in a thread, so that Ctrl-C is heard at once and what was written can be removed before the end."""
    interrupted = threading.Event()

    def hear(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            os._exit(INTERRUPTED)
        interrupted.set()
        note(f"removing what the probe wrote; a second signal leaves it, in the folder {folder}")

    def pause() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    signal.set_wakeup_fd(-1)  # otherwise the first one would end the process two seconds later
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(act, pause).result()
    pause()
    return result
