"""Broken documents: how the committed ones beside this file were made, each with the code that it must give.

``python -m tests.golden.broken`` writes the files anew; review the difference, the codes above all.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from slackwater.errors import SlackwaterError
from slackwater.formats import batch, manifest
from slackwater.formats import record as records
from slackwater.formats.state import LiveCheckpoint
from tests.golden.lcb1 import Item, write
from tests.golden.samples import FOLDER, IDS, entry, golden_manifest, golden_records, seal, settlement, sha256


def broken_batches() -> dict[str, bytes]:
    """Batches that lie, though their checksums fit, and some that were damaged on the way."""
    items = [Item(b"a", b"one"), Item(b"b", b"two")]
    good = write(items)
    squeezed = b"\x1fa\x01\x00\xff\xff\xe3\x50aaaaa"  # a run of 1,028 times "a"
    return {
        "foreign-magic": write(items, magic=b"LCB2"),
        "version-1": write(items, version=1),
        "version-2": write(items, version=2),
        "version-4": write(items, version=4),
        "reserved-not-zero": write(items, reserved=1),
        "no-entries": write([]),
        "index-not-used-up": write(items, more_index=b"\x00"),
        "body-not-used-up": write(items, more_body=b"\x00"),
        "count-too-low": write(items, count=1),
        "count-too-high": write(items, count=3),
        "count-huge": write(items, count=2**32 - 1),
        "index-size-huge": write(items, index_bytes=2**63),
        "body-size-huge": write(items, body_bytes=2**64 - 1),
        "body-size-too-low": write(items, body_bytes=5),
        "body-crc-wrong": write(items, body_crc=0),
        "keys-unsorted": write(items[::-1]),
        "key-twice": write([items[0], items[0]]),
        "key-empty": write([Item(b"", b"one"), items[1]]),
        "key-not-utf-8": write([Item(b"a\xff", b"one")]),
        "key-a-surrogate": write([Item(b"\xed\xa0\x80", b"one")]),
        "key-too-long": write([Item(b"k" * 1025, b"one")]),
        "codec-unknown": write([Item(b"a", b"one", codec=7)]),
        "raw-of-another-size": write([Item(b"a", b"one", size=4)]),
        "entries-overlap": write([items[0], Item(b"b", b"two", offset=2)]),
        "entry-past-the-body": write([items[0], Item(b"b", b"two", stored_bytes=2**40)]),
        "entry-huge": write([Item(b"a", b"one", codec=1, size=2**63)]),
        "entry-past-the-ratio": write([Item(b"a", b"one", codec=1, size=766)]),
        "lz4-of-another-size": write([Item(b"a", squeezed, codec=1, size=1000, sha256=hashlib.sha256(b"a").digest())]),
        "lz4-not-a-block": write([Item(b"a", b"\xff" * 9, codec=1, size=20)]),
        "entry-digest-wrong": write([Item(b"a", b"one", sha256=hashlib.sha256(b"two").digest())]),
        "cut-in-the-head": good[:39],
        "cut-in-the-index": good[:60],
        "cut-in-the-body": good[:-1],
        "one-byte-too-many": write(items, tail=b"\x00"),
        "nothing": b"",
    }


def broken_records() -> dict[str, bytes]:
    """Bytes that stand where record 2 should."""
    good = golden_records()["checkpoint"]
    body = msgspec.to_builtins(good)

    def sealed(document: Any) -> bytes:
        return seal(msgspec.json.encode(document, order="sorted"))

    def without(key: str) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name != key}

    def state(**fields: Any) -> bytes:
        return sealed({**body, "state": {**body["state"], **fields}})

    def live(*entries: LiveCheckpoint, **fields: Any) -> bytes:
        return state(epoch=entries[-1].epoch, live=[msgspec.to_builtins(one) for one in entries], **fields)

    def settled(status: str) -> bytes:
        sinks = {"totals": {"status": status, "reason": None}}
        document = {**msgspec.to_builtins(settlement(0)), "sinks": sinks}
        return sealed({**body, "change": {**body["change"], "settled": document}})

    encoded = records.encode(good)
    return {
        "digest-wrong": encoded.replace(b'"settled_epoch":0', b'"settled_epoch":1'),
        "another-number": records.encode(golden_records()["claim"]),
        "version-99": sealed({"version": 99, "body": "of a shape that nobody knows yet"}),
        "version-missing": sealed(without("version")),
        "state-missing": sealed(without("state")),
        "labels-missing": sealed({**body, "state": {k: v for k, v in body["state"].items() if k != "labels"}}),
        "field-unknown": sealed({**body, "colour": "blue"}),
        "change-unknown": sealed({**body, "change": {"type": "rewrite"}}),
        "retire-of-nothing-said": sealed({**body, "change": {"type": "retire"}}),
        "retire-with-a-generation": sealed({**body, "change": {"type": "retire", "epochs": [1], "generation": 1}}),
        "deleted-of-a-negative-epoch": sealed({**body, "change": {"type": "deleted", "epochs": [-1]}}),
        "epoch-negative": sealed({**body, "state": {**body["state"], "epoch": -1}}),
        "epoch-past-2-53": sealed({**body, "state": {**body["state"], "epoch": 2**53}}),
        "epoch-a-float": sealed({**body, "state": {**body["state"], "epoch": 1.0}}),
        "status-unknown": settled("Abandoned"),
        "undone-missing": state(live=[{k: v for k, v in body["state"]["live"][0].items() if k != "undone"}]),
        "rollback-to-itself": live(entry(1), entry(2, rollback_to=2), settled_epoch=2),
        "rollback-forward": live(entry(1, rollback_to=2), entry(2), settled_epoch=2),
        "rollback-to-nowhere": live(entry(1), entry(2, rollback_to=0), settled_epoch=2),
        "rollback-to-what-is-open": live(entry(1), entry(2), entry(3, rollback_to=2), settled_epoch=1),
        "repair-to-nothing": live(entry(1), entry(2, repair=True), settled_epoch=2),
        "repair-past-what-is-open": live(
            entry(1),
            entry(2, undone=True, rollback_to=1, repair=True),
            entry(3, rollback_to=2, repair=True),
            settled_epoch=0,
        ),
        "repair-of-nothing-said": sealed({**body, "change": {"type": "repair", "epochs": [1]}}),
        "rollback-undoes-nothing": live(entry(1), entry(2), entry(3, rollback_to=1), settled_epoch=3),
        "head-undone": live(entry(1), entry(2, undone=True), settled_epoch=2),
        "checkpoint-after-an-unsettled-one": live(entry(1), entry(2), settled_epoch=0),
        "checkpoint-after-an-unsettled-rollback": live(
            entry(1), entry(2, undone=True), entry(3, rollback_to=1), entry(4), settled_epoch=2
        ),
        "append-id-upper-case": sealed({**body, "append_id": "A" * 32}),
        "not-utf-8": seal(msgspec.json.encode(body).replace(b'"type":"checkpoint"', b'"type":"check\xffpoint"')),
        "cut-short": encoded[:-20],
        "no-envelope": msgspec.json.encode(good),
        "nothing": b"",
    }


def broken_manifests() -> dict[str, bytes]:
    """Manifests whose digest fits, because what vouches for them is as wrong as they are."""
    good = msgspec.to_builtins(golden_manifest())
    operator = good["operators"]["0-stateStoreSave"]
    zero, one = operator["partitions"]
    commits, metadata = good["files"]
    idle = {name: {**sink, "descriptors": []} for name, sink in good["sinks"].items()}

    def changed(**fields: Any) -> bytes:
        return msgspec.json.encode({**good, **fields}, order="sorted")

    def without(key: str) -> bytes:
        return msgspec.json.encode({name: value for name, value in good.items() if name != key}, order="sorted")

    def partitions(*parts: Any, **fields: Any) -> bytes:
        return changed(operators={"0-stateStoreSave": {**operator, "partitions": list(parts), **fields}})

    def objects(number: int, **fields: Any) -> bytes:
        return changed(objects=[{**o, **fields} if n == number else o for n, o in enumerate(good["objects"])])

    return {
        "version-99": msgspec.json.encode({"version": 99, "shape": "unknown"}),
        "version-2": changed(version=2),
        "version-missing": without("version"),
        "operators-missing": without("operators"),
        "offsets-missing": without("source_offsets"),
        "field-unknown": changed(colour="blue"),
        "another-id": changed(checkpoint_id=IDS[3]),
        "count-past-2-53": changed(micro_batch=2**53),
        "file-digest-missing": changed(files=[{k: v for k, v in commits.items() if k != "sha256"}, metadata]),
        "file-size-missing": changed(files=[{k: v for k, v in commits.items() if k != "size_bytes"}, metadata]),
        "batch-digest-missing": objects(0, sha256=None),
        "object-digest-missing": objects(2, sha256=None),
        "object-key-foreign": objects(0, key="checkpoints/elsewhere/batches/0.lcb"),
        "object-key-escapes": objects(0, key=f"checkpoints/{IDS[1]}/../../../secret"),
        "object-of-another-kind": objects(1, key=good["objects"][2]["key"].replace("partition-0", "partition-1")),
        "object-twice": changed(objects=[good["objects"][0], good["objects"][0], good["objects"][2]]),
        "path-escapes": changed(files=[{**commits, "path": "../../etc/passwd"}, metadata]),
        "path-absolute": changed(files=[{**commits, "path": "/etc/passwd"}, metadata]),
        "folder-escapes": partitions({**zero, "path": "state/../.."}, one),
        "file-twice": changed(files=[commits, {**metadata, "path": "commits/7"}]),
        "file-nowhere": changed(files=[{k: v for k, v in commits.items() if k != "inline"}, metadata]),
        "file-in-two-places": changed(files=[{**commits, "object": 1}, metadata]),
        "file-in-no-object": changed(files=[commits, {**metadata, "object": 3}]),
        "file-past-its-object": objects(2, size_bytes=1023),
        "file-without-offset": partitions({**zero, "files": [{**zero["files"][0], "object": 2, "offset": None}]}, one),
        "file-with-offset-in-a-batch": changed(files=[commits, {**metadata, "offset": 0}]),
        "partition-skipped": partitions(zero, {**one, "partition": 2}),
        "partition-twice": partitions(zero, {**one, "partition": 0}),
        "folder-twice": partitions(zero, {**one, "path": "state/0/0"}),
        "partition-smaller-than-its-files": partitions({**zero, "size_bytes": 999}, one, size_bytes=1199),
        "operator-sum-wrong": partitions(zero, one, size_bytes=1499),
        "total-wrong": changed(total_size_bytes=1),
        "source-without-offsets": changed(source_names=["0", "1"]),
        "offsets-without-source": changed(source_names=[]),
        "source-named-twice": changed(source_names=["0", "0"]),
        "sink-without-output": changed(sink_names=["totals", "alerts"]),
        "query-missing": without("query"),
        "query-field-unknown": changed(query={**good["query"], "colour": "blue"}),
        "rollback-missing": without("rollback"),
        "rollback-keep-missing": changed(rollback={"to_epoch": 1, "to_id": IDS[1]}, sinks=idle),
        "rollback-to-itself": changed(rollback={"to_epoch": 2, "to_id": IDS[2], "keep": []}, sinks=idle),
        "rollback-with-output-to-commit": changed(rollback={"to_epoch": 1, "to_id": IDS[1], "keep": []}),
        "not-utf-8": manifest.encode(golden_manifest()).replace(b"commits/7", b"commits/\xff"),
        "not-json": b"checkpoint",
        "nothing": b"",
    }


def decode(kind: str, data: bytes) -> Any:
    """Decode as the product does where it expects record 2, the golden manifest, a batch."""
    if kind == "records":
        return records.decode(data, number=2)
    if kind == "manifests":
        return manifest.decode(data, sha256=sha256(data), checkpoint_id=IDS[2])
    return batch.decode(data)


def refusal_of(kind: str, data: bytes) -> dict[str, str]:
    """Name the code, and the words too where they are ours: they tell which check it was."""
    try:
        decode(kind, data)
    except SlackwaterError as error:
        return {"code": error.code, "says": error.message.partition(" decode:")[0]}
    return {"code": "accepted"}


def main() -> None:
    for kind, make in {"batches": broken_batches, "manifests": broken_manifests, "records": broken_records}.items():
        table = {}
        for name, data in make().items():
            shown = {"text": data.decode()} if kind != "batches" and b"\xff" not in data else {"hex": data.hex()}
            table[name] = {**refusal_of(kind, data), **shown}
        (FOLDER / f"broken-{kind}.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
