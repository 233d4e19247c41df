"""The documents whose bytes are committed beside this file.

The bytes are the contract: they are never written again for a released version. ``python -m tests.golden.samples``
writes those that are missing.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from slackwater.formats import batch, manifest
from slackwater.formats import change as changes
from slackwater.formats import record as records
from slackwater.formats.change import (
    Checkpoint,
    Claim,
    Deleted,
    Label,
    Packed,
    Release,
    Repair,
    Retire,
    Rollback,
    Settlement,
    SinkStatus,
    Unlabel,
)
from slackwater.formats.keys import artifact_key, batch_key
from slackwater.formats.manifest import (
    File,
    Manifest,
    Object,
    Operator,
    Origin,
    Partition,
    RolledBack,
    SinkOutput,
    SourcePosition,
)
from slackwater.formats.query import Query, QueryOperator
from slackwater.formats.record import Record
from slackwater.formats.state import LiveCheckpoint, RetiredCheckpoint, Savepoint, State

FOLDER = Path(__file__).parent
IDS = [f"0192d3f0-7b7c-7000-8000-00000000000{n}" for n in range(5)]
APPENDS = [f"{n:032x}" for n in range(8)]
UID = "feed" * 8
HASH = "ab" * 32


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def seal(body: bytes) -> bytes:
    """Put the body of a record into its envelope, whatever it says."""
    return b'{"body":' + body + b',"sha256":"' + sha256(body).encode() + b'"}'


def golden_manifest() -> Manifest:
    """Everything that a manifest can say: inline, batch and object; of its own and of an older checkpoint."""
    return Manifest(
        version=3,
        checkpoint_id=IDS[2],
        epoch=2,
        parent_id=IDS[1],
        pipeline="payments / Zürich",
        uid=UID,
        created_at_ms=1_794_736_800_000,
        micro_batch=7,
        watermark_ms=1_794_736_790_000,
        pipeline_hash=HASH,
        query=Query(
            output_mode="append",
            sources=["kafka"],
            operators=[QueryOperator(name="0-stateStoreSave", keys=["region string"], values=["sum(amount) bigint"])],
            settings={"spark.sql.shuffle.partitions": "2"},
        ),
        rollback=None,
        origin=Origin(
            format="laminar-v1", checkpoint_id="42", epoch=9, manifest_sha256=HASH, pipeline_hash=str(2**64 - 1)
        ),
        source_names=["0"],
        sink_names=["totals"],
        source_offsets={
            "0": SourcePosition(
                source_type="kafka",
                offsets={"orders-0": "9007199254740993"},
                verbatim='{"orders":{"0":9007199254740993}}',
                metadata={"topic": "orders"},
            )
        },
        source_watermarks={"0": str(-(2**63))},
        table_offsets={
            "rates": SourcePosition(
                source_type="postgres-cdc", offsets={"lsn": "0/ABCD"}, verbatim="0/ABCD", metadata={}
            )
        },
        table_store_path="tables/rates",
        sinks={
            "totals": SinkOutput(
                kind="delta",
                address="s3://lake/totals",
                can_undo=True,
                descriptors=[{"path": "part-0.parquet", "rows": 3}],
            )
        },
        sink_epochs={"totals": 9},
        vnode_count=256,
        operators={
            "0-stateStoreSave": Operator(
                operator_id=0,
                operator_name="stateStoreSave",
                store="default",
                size_bytes=1500,
                partitions=[
                    Partition(
                        partition=0,
                        path="state/0/0",
                        kind="delta",
                        version=8,
                        unique_id="u-0",
                        size_bytes=1300,
                        files=[
                            File(path="state/0/0/8_u-0.zip", sha256="11" * 32, size_bytes=1000, object=2, offset=24),
                        ],
                    ),
                    Partition(
                        partition=1, path="state/0/1", kind="snap", version=8, unique_id="u-1", size_bytes=200, files=[]
                    ),
                ],
            )
        },
        files=[
            File(path="commits/7", sha256=sha256(b"v2\n{}"), size_bytes=5, inline=base64.b64encode(b"v2\n{}").decode()),
            File(path="metadata", sha256="22" * 32, size_bytes=45, object=1),
        ],
        objects=[
            Object(key=batch_key(IDS[1], 0), kind="batch", sha256="33" * 32, size_bytes=400),
            Object(key=batch_key(IDS[2], 0), kind="batch", sha256="44" * 32, size_bytes=300),
            Object(
                key=artifact_key(IDS[2], "0-stateStoreSave", 0, "snap"),
                kind="object",
                sha256="55" * 32,
                size_bytes=1024,
            ),
        ],
        total_size_bytes=1550,
    )


def golden_rollback() -> Manifest:
    """A rollback to the golden manifest's checkpoint, of a pipeline that never said what its query is."""
    return msgspec.structs.replace(
        golden_manifest(),
        checkpoint_id=IDS[4],
        epoch=4,
        parent_id=IDS[3],
        created_at_ms=1_794_736_900_000,
        pipeline_hash=None,
        query=None,
        origin=None,
        source_watermarks={},
        table_offsets={},
        table_store_path=None,
        sink_epochs={},
        vnode_count=None,
        rollback=RolledBack(to_epoch=2, to_id=IDS[2], keep=["alerts"]),
        sink_names=["alerts", "totals"],
        sinks={
            "alerts": SinkOutput(kind="function", address="app.alert", can_undo=False, descriptors=[]),
            "totals": SinkOutput(kind="delta", address="s3://lake/totals", can_undo=True, descriptors=[]),
        },
    )


def golden_repair() -> Manifest:
    """A repair that goes back to the golden manifest's checkpoint, which not every sink has yet."""
    return msgspec.structs.replace(
        golden_rollback(),
        epoch=7,
        parent_id=IDS[2],
        rollback=RolledBack(to_epoch=2, to_id=IDS[2], keep=[], unsettled=True),
        sink_names=["totals"],
        sinks=golden_manifest().sinks,
    )


def entry(epoch: int, /, **fields: Any) -> LiveCheckpoint:
    made = LiveCheckpoint(
        epoch=epoch,
        checkpoint_id=IDS[epoch],
        manifest_sha256=f"{epoch:064x}",
        manifest_size_bytes=1000 + epoch,
        parent_id=IDS[epoch - 1] if epoch > 1 else None,
        created_at_ms=1000 * epoch,
        append_id=APPENDS[epoch],
        undone=False,
        rollback_to=None,
    )
    return msgspec.structs.replace(made, **fields)


def settlement(epoch: int, **statuses: SinkStatus) -> Settlement:
    return Settlement(
        epoch=epoch,
        sinks=statuses or {"totals": SinkStatus(status="Committed")},
        durations_ms={"append": 12, "artifacts": 30},
        requests={"puts": 4, "lists": 1},
        packed=Packed(batches=1, entries=200, bytes_before=9000, bytes_after=1800, puts=1),
        new_bytes=2000,
        full_bytes=9000,
    )


def checkpoint(epoch: int, /, **fields: Any) -> Checkpoint:
    change = Checkpoint(
        generation=1,
        epoch=epoch,
        checkpoint_id=IDS[epoch],
        manifest_sha256=f"{epoch:064x}",
        manifest_size_bytes=1000 + epoch,
        parent_id=IDS[epoch - 1] if epoch > 1 else None,
        settled=settlement(epoch - 1) if epoch > 1 else None,
        retire=[],
        deleted=[],
    )
    return msgspec.structs.replace(change, **fields)


def rollback(epoch: int, to_epoch: int, /, **fields: Any) -> Rollback:
    change = Rollback(
        generation=1,
        epoch=epoch,
        checkpoint_id=IDS[epoch],
        manifest_sha256=f"{epoch:064x}",
        manifest_size_bytes=1000 + epoch,
        parent_id=IDS[epoch - 1],
        to_epoch=to_epoch,
    )
    return msgspec.structs.replace(change, **fields)


FIRST = State(
    uid=UID,
    generation=1,
    claim_append_id=APPENDS[0],
    release_append_id=None,
    epoch=0,
    settled_epoch=0,
    at_ms=500,
    live=[],
    labels=[],
    retired=[],
)


def state(**fields: Any) -> State:
    return msgspec.structs.replace(FIRST, **fields)


def golden_records() -> dict[str, Record]:
    """One record of every kind of change; each state is written out by hand, so that it is not what ``apply`` says."""

    def record(number: int, change: changes.Change, after: State) -> Record:
        previous = f"{number:x}" * 64 if number > 1 else None
        return Record(
            version=1, number=number, append_id=APPENDS[number], previous_sha256=previous, change=change, state=after
        )

    kept = Savepoint(label="vor dem Umzug ✓", epoch=2, created_at_ms=2500, append_id=APPENDS[4])
    gone = RetiredCheckpoint(epoch=1, checkpoint_id=IDS[1], manifest_sha256=f"{1:064x}")
    dropped = settlement(4, totals=SinkStatus(status="Dropped", reason="the user gave its output up"))
    failed = settlement(3, totals=SinkStatus(status="Failed", reason="[store.unavailable] no answer in time"))
    third = state(epoch=3, settled_epoch=2, at_ms=3000, live=[entry(2), entry(3)], labels=[kept], retired=[gone])
    # Epoch 3 was never settled, and is undone before it was.
    rolled_back = state(
        epoch=4,
        settled_epoch=2,
        at_ms=4000,
        live=[entry(1), entry(2), entry(3, undone=True), entry(4, append_id=APPENDS[5], rollback_to=2)],
    )
    return {
        "claim": record(1, Claim(uid=UID, driver="host:1"), FIRST),
        "checkpoint": record(2, checkpoint(1), state(epoch=1, at_ms=1000, live=[entry(1)])),
        "label": record(
            4,
            Label(label=kept.label, epoch=2),
            state(epoch=2, settled_epoch=1, at_ms=2500, live=[entry(1), entry(2)], labels=[kept]),
        ),
        "checkpoint-that-retires": record(5, checkpoint(3, retire=[1], deleted=[]), third),
        "unlabel": record(6, Unlabel(label=kept.label), msgspec.structs.replace(third, labels=[])),
        "release": record(
            7,
            Release(generation=1, settled=failed, deleted=[1]),
            msgspec.structs.replace(third, labels=[], retired=[], release_append_id=APPENDS[7]),
        ),
        "retire": record(
            6,
            Retire(epochs=[1, 3]),
            msgspec.structs.replace(
                rolled_back,
                live=[rolled_back.live[1], rolled_back.live[3]],
                retired=[gone, RetiredCheckpoint(epoch=3, checkpoint_id=IDS[3], manifest_sha256=f"{3:064x}")],
            ),
        ),
        "deleted": record(6, Deleted(epochs=[1]), msgspec.structs.replace(third, retired=[])),
        "rollback": record(5, rollback(4, 2), rolled_back),
        # Record 6 was damaged; epoch 3 was open, and is committed first.
        "repair": record(
            7,
            Repair(
                driver="host:1 repair",
                from_number=5,
                epoch=5,
                checkpoint_id=IDS[4],
                manifest_sha256=f"{4:064x}",
                manifest_size_bytes=1004,
                parent_id=IDS[3],
                to_epoch=3,
                retire=[3],
            ),
            msgspec.structs.replace(
                third,
                generation=7,
                claim_append_id=APPENDS[7],
                release_append_id=APPENDS[7],
                epoch=5,
                live=[
                    entry(2),
                    entry(
                        4,
                        epoch=5,
                        parent_id=IDS[3],
                        created_at_ms=3000,
                        append_id=APPENDS[7],
                        rollback_to=3,
                        repair=True,
                    ),
                ],
                retired=[gone, RetiredCheckpoint(epoch=3, checkpoint_id=IDS[3], manifest_sha256=f"{3:064x}")],
            ),
        ),
        "release-of-a-dropped-sink": record(
            6,
            Release(generation=1, settled=dropped, deleted=[]),
            msgspec.structs.replace(rolled_back, settled_epoch=4, release_append_id=APPENDS[6]),
        ),
    }


BATCHES: dict[str, dict[str, bytes]] = {
    "one": {"a": b"slack water"},
    "mixed": {
        "state/0/0/8_u-0.changelog": bytes(range(64)),
        "state/0/1/8_u-1.changelog": b"the same again, " * 40,
        "empty": b"",
        "ключ": b"\x00" * 300,
    },
}


def main() -> None:
    files = {
        "good/manifest.json": manifest.encode(golden_manifest()),
        "good/manifest-rollback.json": manifest.encode(golden_rollback()),
        "good/manifest-repair.json": manifest.encode(golden_repair()),
        **{f"good/record-{name}.json": records.encode(record) for name, record in golden_records().items()},
        **{f"good/batch-{name}.lcb": batch.encode(entries)[0] for name, entries in BATCHES.items()},
    }
    for name, data in files.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
