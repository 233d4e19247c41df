"""Settings: what can be tuned, time-outs too, each with its default and bounds. Options have the same names."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .errors import InvalidInput

KIB = 1024
MIB = 1024 * KIB


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tunables of one pipeline. The names are also those of ``sw.writeStream(...).option(name, value)``."""

    # Retention: the newest checkpoints that stay, beside savepoints.
    keep_last: Annotated[int, Meta(ge=1, le=500)] = 10
    # An epoch has all micro-batches that begin to be staged within this time of its first; 0: it has one.
    interval_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    # Epochs that may be staged but not yet settled before the next micro-batch waits.
    epochs_in_flight: Annotated[int, Meta(ge=1, le=16)] = 2
    # Placement: a file up to this size may go inline into the manifest, while the budget lasts.
    inline_max_bytes: Annotated[int, Meta(ge=0, le=64 * KIB)] = 4 * KIB
    inline_budget_bytes: Annotated[int, Meta(ge=0, le=256 * KIB)] = 16 * KIB
    # What is new of one partition gets an object of its own from this size on; below, it goes into a batch.
    object_min_bytes: Annotated[int, Meta(ge=1, le=64 * MIB)] = 1 * MIB
    # A batch is closed when its content reaches this size before compression.
    batch_target_bytes: Annotated[int, Meta(ge=64 * KIB, le=32 * MIB)] = 8 * MIB
    # Objects on the way at once.
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 8
    # Deadlines of one request, and of an operation with all its retries.
    request_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    total_timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 120.0


def check_settings(settings: Settings) -> Settings:
    """Return settings that a program has made, if they are within their bounds: to make them does not see to it."""
    if not isinstance(settings, Settings):
        raise InvalidInput(
            f"these are no settings: {settings!r:.100}", code="option.invalid", hint="sw.Settings(keep_last=20)"
        )
    given = msgspec.structs.asdict(settings)
    try:
        return msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the settings cannot be so: {error}",
            code="option.invalid",
            hint="change the value, or leave it out; docs/options.md has all bounds",
        ) from None
