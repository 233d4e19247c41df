"""A state at all its bounds, with the longest of everything, fits into a record beside the largest change."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock import SystemClock
from slackwater.errors import InvalidInput
from slackwater.formats import record as records
from slackwater.formats import state as states
from slackwater.formats.change import MAX_REASON, Checkpoint, Packed, Release, Settlement, SinkStatus
from slackwater.formats.record import Record
from slackwater.formats.state import MAX_LABELS, MAX_LIVE, LiveCheckpoint, RetiredCheckpoint, Savepoint, State
from slackwater.protocol.log import Log
from slackwater.settings import Settings
from slackwater.store import open_store
from tests.unit.test_log import CLAIM

MOST = 2**53 - 1  # the largest number
WIDE = "\U0001f30a"  # four bytes a character, which no shorter escape stands for
SHA256, RANDOM = "f" * 64, "f" * 32
SINKS = 100


def id_of(number: int) -> str:
    return f"{number:08x}-ffff-7fff-8fff-ffffffffffff"


def largest_state() -> State:
    first = MOST - MAX_LIVE
    live = [
        LiveCheckpoint(
            epoch=first + n,
            checkpoint_id=id_of(n),
            manifest_sha256=SHA256,
            manifest_size_bytes=MOST,
            parent_id=id_of(n - 1),
            created_at_ms=MOST,
            append_id=RANDOM,
            # Repairs, all back to the first: they take the most room.
            undone=1 < n < MAX_LIVE,
            rollback_to=first + 1 if n > 1 else None,
            repair=n > 1,
        )
        for n in range(1, MAX_LIVE + 1)
    ]
    labels = [
        Savepoint(label=f"{n:04}{WIDE * 196}", epoch=live[n].epoch, created_at_ms=MOST, append_id=RANDOM)
        for n in range(MAX_LABELS)
    ]
    retired = [
        RetiredCheckpoint(epoch=first - n, checkpoint_id=id_of(MAX_LIVE + 1 + n), manifest_sha256=SHA256)
        for n in range(MAX_LIVE)
    ]
    return State(
        uid=RANDOM,
        generation=MOST - 1,
        claim_append_id=RANDOM,
        release_append_id=RANDOM,
        epoch=MOST,
        settled_epoch=MOST,
        at_ms=MOST,
        live=live,
        labels=labels,
        retired=retired,
    )


def largest_settlement(sinks: int = SINKS) -> Settlement:
    wordy = SinkStatus(status="Committed", reason=WIDE * MAX_REASON)
    return Settlement(
        epoch=MOST,
        sinks={f"{n:03}{'x' * 197}": wordy for n in range(sinks)},
        durations_ms=dict.fromkeys(("capture", "artifacts", "manifest", "append", "commit", "latest"), MOST),
        requests=dict.fromkeys(("puts", "gets", "lists", "deletes"), MOST),
        packed=Packed(batches=MOST, entries=MOST, bytes_before=MOST, bytes_after=MOST, puts=MOST),
        new_bytes=MOST,
        full_bytes=MOST,
    )


def largest_change() -> Checkpoint:
    return Checkpoint(
        generation=MOST,
        epoch=MOST,
        checkpoint_id=id_of(0),
        manifest_sha256=SHA256,
        manifest_size_bytes=MOST,
        parent_id=id_of(0),
        settled=largest_settlement(),
        retire=[MOST] * 1000,
        deleted=[MOST] * 1000,
    )


def test_the_largest_state_and_the_largest_change_fit_into_a_record():
    state = largest_state()
    assert states.find_contradiction(state, MOST) is None
    record = Record(
        version=1,
        number=MOST,
        append_id=RANDOM,
        previous_sha256=SHA256,
        change=largest_change(),
        state=state,
    )
    data = records.encode(record)
    assert records.decode(data, number=MOST) == record
    assert len(msgspec.json.encode(state)) < 3_800_000, "the bound that docs/spec/log.md states"
    assert len(data) <= records.MAX_RECORD_BYTES


def test_a_record_that_would_be_larger_is_refused_with_what_to_do():
    store = open_store("memory:")
    log = Log(store, SystemClock(), Settings())
    log.append(lambda state: CLAIM)
    settled = msgspec.structs.replace(largest_settlement(sinks=5_000), epoch=0)
    with pytest.raises(InvalidInput) as caught:
        log.append(lambda state: Release(generation=1, settled=settled, deleted=[]))
    assert caught.value.code == "log.state_too_large"
    assert "slackwater forget" in (caught.value.hint or "")
    assert len(store.list("log/")) == 1
