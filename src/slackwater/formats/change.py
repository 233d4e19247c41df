"""What can change in a pipeline's history: one change a log record."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from .ids import CheckpointId, Count, Name, RandomId, Sha256

MAX_REASON = 500


class SinkStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a sink stands with an epoch. ``Dropped``: the user gave up its output for good."""

    status: Literal["Pending", "Committed", "Failed", "Dropped"]
    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None


class Packed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint put into batches. Bytes are those of the entries alone, before and after packing."""

    batches: Count
    entries: Count
    bytes_before: Count
    bytes_after: Count
    puts: Count

    def __add__(self, other: Packed) -> Packed:
        return Packed(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


NOTHING_PACKED: Final = Packed(batches=0, entries=0, bytes_before=0, bytes_after=0, puts=0)


class Settlement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an epoch ended: each sink's status, where the time went, what it cost."""

    epoch: Count
    sinks: dict[str, SinkStatus]
    durations_ms: dict[str, Count]
    requests: dict[str, Count]
    packed: Packed
    new_bytes: Count
    full_bytes: Count


# --- the changes


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=str.lower, tag_field="type"):
    """Stored with the lower-case name of its class as its ``type``."""


class NewCheckpoint(_Change, frozen=True, kw_only=True):
    """A change that makes a checkpoint, and vouches for its manifest."""

    epoch: Count
    checkpoint_id: CheckpointId
    manifest_sha256: Sha256
    manifest_size_bytes: Count
    parent_id: CheckpointId | None


class Claim(_Change, frozen=True, kw_only=True):
    """A driver starts. ``uid`` names the pipeline if this is its first record; later ones keep the first."""

    uid: RandomId
    driver: Annotated[str, Meta(max_length=200)]


class Checkpoint(NewCheckpoint, frozen=True, kw_only=True):
    """This checkpoint counts. It also settles the epoch before it, retires older ones, tells whose bytes are gone."""

    generation: Count
    settled: Settlement | None
    retire: list[Count]
    deleted: list[Count]


class Rollback(NewCheckpoint, frozen=True, kw_only=True):
    """A checkpoint whose content is an older epoch's; the epochs between are undone. Sinks follow at the next start."""

    generation: Count
    to_epoch: Count


class Label(_Change, frozen=True, kw_only=True):
    label: Name
    epoch: Count


class Unlabel(_Change, frozen=True, kw_only=True):
    label: Name


class Release(_Change, frozen=True, kw_only=True):
    """The driver ends, and says how its last epoch was settled."""

    generation: Count
    settled: Settlement | None
    deleted: list[Count]


class Retire(_Change, frozen=True, kw_only=True):
    """These checkpoints are gone, and their bytes may be deleted. Anyone may say so; a running driver goes on."""

    epochs: list[Count]


class Deleted(_Change, frozen=True, kw_only=True):
    """The bytes of these retired checkpoints are gone, too."""

    epochs: list[Count]


class Repair(NewCheckpoint, frozen=True, kw_only=True):
    """Go on from the record ``from_number``: all after it were damaged. A claim, a rollback and a release in one."""

    driver: Annotated[str, Meta(max_length=200)]
    from_number: Count
    to_epoch: Count
    retire: list[Count]


Change = Claim | Checkpoint | Rollback | Label | Unlabel | Release | Retire | Deleted | Repair
