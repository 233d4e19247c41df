"""A large object goes out in parts: little is held beside it, and nothing stays of one that fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slackwater.errors import Unavailable
from slackwater.settings import MIB, Settings
from slackwater.store import open_store
from slackwater.store.objects import ONE_PUT_BYTES, PART_BYTES

MEASURED = """
import re, sys
from slackwater.store import open_store
url, *options = sys.argv[1:]
store = open_store(url, None, **dict(option.split("=", 1) for option in options))
store.put("warm", bytes(1 << 20))
part = bytes(range(256)) * (8 << 12)
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
store.put("large", [part] * 24)
print(peak() - before)
"""


def test_a_put_of_many_buffers_never_holds_them_joined(s3_server) -> None:
    options = [f"{name}={value}" for name, value in s3_server.options.items()]
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, s3_server.url("large"), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    print(f"{int(ran.stdout) / 1024:.0f} MiB held beside 192 MiB")
    assert int(ran.stdout) / 1024 < 5 * PART_BYTES / MIB, (
        "three parts on their way and one that fills, with some margin"
    )
    store = open_store(s3_server.url("large"), None, **s3_server.options)
    (large, _) = store.list("")
    assert large.size_bytes == 192 * MIB
    assert store.get("large", offset=192 * MIB - 300, size=300) == (bytes(range(256)) * 2)[-300:]


TOGETHER = """
import re, sys
from concurrent.futures import ThreadPoolExecutor
from slackwater.store import Stream, open_store
class Made(Stream):
    size_bytes = 48 << 20
    def __iter__(self):
        for number in range(48): yield bytes([number]) * (1 << 20)
url, *options = sys.argv[1:]
store = open_store(url, None, **dict(option.split("=", 1) for option in options))
store.put("warm", bytes(1 << 20))
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
with ThreadPoolExecutor(8) as pool: list(pool.map(lambda number: store.put(f"made/{number}", Made()), range(8)))
print(peak() - before)
"""


def test_many_large_streams_at_once_share_the_memory_for_their_parts(s3_server) -> None:
    options = [f"{name}={value}" for name, value in s3_server.options.items()]
    ran = subprocess.run(
        [sys.executable, "-c", TOGETHER, s3_server.url("together"), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    print(f"{int(ran.stdout) / 1024:.0f} MiB held for 8 streams of 48 MiB")
    assert int(ran.stdout) / 1024 < 128
    store = open_store(s3_server.url("together"), None, **s3_server.options)
    assert [listed.size_bytes for listed in store.list("made/")] == [48 * MIB] * 8


def test_a_large_put_keeps_nothing_of_the_callers_buffer() -> None:
    buffer = bytearray(ONE_PUT_BYTES + 1)
    store = open_store("memory:")
    store.put("copied", [memoryview(buffer)])
    buffer[:3] = b"new"
    assert store.get("copied", size=3) == bytes(3)


def test_a_large_put_that_fails_leaves_neither_object_nor_parts(tiny) -> None:
    store = open_store("s3://bucket/p", Settings(request_timeout_s=5, total_timeout_s=10), **tiny.options)
    tiny.fails_parts_from = 3
    with pytest.raises(Unavailable):
        store.put("large", [bytes(8 * MIB)] * 9)
    assert tiny.objects == tiny.uploads == {}
    tiny.fails_parts_from = 1000
    store.put("large", [bytes(8 * MIB)] * 9)
    assert len(tiny.objects["p/large"]) == 72 * MIB
    assert tiny.uploads == {}
