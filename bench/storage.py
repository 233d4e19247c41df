"""The storage core against what this machine can do: saving, restoring, packing, manifests, verifying, memory, the log.

``docs/performance.md`` says what is compared with what.
"""

from __future__ import annotations

from . import documents, large_state, log_open, memory, small_files
from .suites import Case, run_suite

CASES: dict[str, Case] = {
    "save": large_state.save,
    "restore": large_state.restore,
    "verify": large_state.verify,
    "pack": small_files.pack,
    "manifest": documents.manifest,
    "memory": memory.measure,
    "log": log_open.run,
}

if __name__ == "__main__":
    run_suite(CASES, __doc__, rounds=7)
