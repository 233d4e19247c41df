"""A manifest with 10,000 partitions, written and read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from slackwater.formats import manifest as manifests
from slackwater.formats.keys import artifact_key
from slackwater.formats.manifest import File, Manifest, Object, Operator, Partition

from .turns import compare, take_turns, timed

PARTITIONS, TIMES = 10_000, 3
ID = "0192d3f0-7b7c-7000-8000-0123456789ab"


def manifest(_: Path, rounds: int) -> None:
    """Compare with the standard library's json, which checks nothing: our codec alone, and all that is done with it."""
    document = draw_up(PARTITIONS)
    plain = json.loads(manifests.encode(document))

    def checked() -> None:
        for _ in range(TIMES):
            data = manifests.encode(document)
            manifests.decode(data, sha256=hashlib.sha256(data).hexdigest(), checkpoint_id=ID)

    def stdlib() -> None:
        for _ in range(TIMES):
            json.loads(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())

    def codec() -> None:
        for _ in range(TIMES):
            decoder.decode(msgspec.json.encode(document, order="deterministic"))

    decoder = msgspec.json.Decoder(Manifest)
    peers = {"json": "json.dumps with sorted keys, then json.loads: nothing is checked"}
    acts = {"codec": codec, "checked": checked, "json": stdlib}
    measured = take_turns({name: partial(_time_one, act) for name, act in acts.items()}, rounds)
    size = len(manifests.encode(document))
    for case, side, goal in (("manifest-10k", "codec", 5), ("manifest-10k-checked", "checked", 1)):
        compare(case, {"ours": measured[side], **measured}, peers=peers, goal=goal, size_bytes=size)


def _time_one(act: Callable[[], None]) -> float:
    return timed(act) / TIMES


def draw_up(count: int) -> Manifest:
    """A manifest whose partitions each have one file in an object of its own."""
    keys = [artifact_key(ID, "0-save", number, "snap") for number in range(count)]
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
    sizes = [2_000_000 + number for number in range(count)]
    places = {number: place for place, number in enumerate(sorted(range(count), key=keys.__getitem__))}
    partitions = [
        Partition(
            partition=number,
            path=f"state/0/{number}",
            kind="snap",
            version=7,
            unique_id=digests[number][:36],
            size_bytes=sizes[number],
            files=[
                File(
                    path=f"state/0/{number}/7_{digests[number][:36]}.zip",
                    sha256=digests[number],
                    size_bytes=sizes[number],
                    object=places[number],
                    offset=0,
                )
            ],
        )
        for number in range(count)
    ]
    operator = Operator(
        operator_id=0, operator_name="save", store="default", size_bytes=sum(sizes), partitions=partitions
    )
    return Manifest(
        version=manifests.VERSION,
        checkpoint_id=ID,
        epoch=1,
        parent_id=None,
        pipeline="bench",
        uid="0" * 32,
        created_at_ms=1,
        micro_batch=6,
        watermark_ms=0,
        pipeline_hash=None,
        query=None,
        rollback=None,
        origin=None,
        source_names=[],
        sink_names=[],
        source_offsets={},
        source_watermarks={},
        table_offsets={},
        table_store_path=None,
        sinks={},
        sink_epochs={},
        vnode_count=None,
        operators={"0-save": operator},
        files=[],
        objects=[
            Object(key=keys[number], kind="object", sha256=digests[number], size_bytes=sizes[number])
            for number in places
        ],
        total_size_bytes=sum(sizes),
    )
