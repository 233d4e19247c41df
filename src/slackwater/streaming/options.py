"""The options of a pipeline: from what a user writes to typed values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, cast

import msgspec

from ..errors import InvalidInput
from ..formats.keys import format_name
from ..settings import Settings
from .delivery import Level
from .metrics import parse_metrics


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options beside the settings, as their values are written."""

    store: str
    workdir: str | None = None
    # What to do when the newest checkpoint is damaged; None is to stop.
    fallback: Literal["newest-verified"] | None = None
    # Sinks that are gone, and whose output that was not committed is given up: names, in a list or between commas.
    drop_sink: list[str] = []
    # Go on with the state of a query that was another.
    accept_changes: bool = False
    # The guarantee that is asked for; one that does not hold is refused.
    delivery: Level | None = None
    # Up to which checkpoint sources are acknowledged; after the newest, nothing older can be rolled back to.
    acknowledge: Literal["oldest", "newest"] = "oldest"
    # Where to serve metrics: host:port, or a port of the loopback interface.
    metrics: str | None = None
    settings: Settings = Settings()
    store_options: dict[str, Any] = {}


SETTINGS = frozenset(Settings.__struct_fields__)
OPTIONS = SETTINGS | set(Options.__struct_fields__) - {"settings", "store_options"}


def find_near(key: str) -> str | None:
    """Find the option that may be meant, in whichever way its words are joined.

    >>> find_near("stor"), find_near("keepLast"), find_near("colour")
    ('store', 'keep_last', None)
    """
    by_letters = {name.replace("_", ""): name for name in sorted(OPTIONS)}
    near = get_close_matches(key.replace("_", "").lower(), by_letters, n=1, cutoff=0.75)
    return by_letters[near[0]] if near else None


def parse_options(given: Mapping[str, Any]) -> Options:
    """Parse what was given; numbers and truth values may be text, as in PySpark."""
    own = {key: _plain(key, value) for key, value in given.items() if key in OPTIONS - SETTINGS}
    try:
        options = msgspec.convert(own, Options, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"an option is not valid: {error}", code="option.invalid", hint=_name_choices(own)) from None
    settings = msgspec.structs.replace(
        Settings(), **{key: _parse_setting(key, value) for key, value in given.items() if key in SETTINGS}
    )
    for name in options.drop_sink:
        format_name(name)
    if options.metrics is not None:
        parse_metrics(options.metrics)
    of_client = {key.removeprefix("store."): value for key, value in given.items() if key.startswith("store.")}
    return msgspec.structs.replace(options, settings=settings, store_options=of_client)


def _name_choices(given: Mapping[str, Any]) -> str:
    """Name the values of an option that has but some, and was given none of them."""
    for field in cast(msgspec.inspect.StructType, msgspec.inspect.type_info(Options)).fields:
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        choices = [value for kind in kinds if isinstance(kind, msgspec.inspect.LiteralType) for value in kind.values]
        if choices and given.get(field.name) not in (None, *choices):
            return f"{field.name} can be {' or '.join(map(str, choices))}; or leave it out"
    return "change the value, or leave it out"


def _parse_setting(key: str, value: Any) -> Any:
    try:
        return getattr(msgspec.convert({key: value}, Settings, strict=False), key)
    except msgspec.ValidationError:
        pass
    fields = cast(msgspec.inspect.StructType, msgspec.inspect.type_info(Settings)).fields
    field = next(field for field in fields if field.name == key)
    kind = cast(msgspec.inspect.IntType | msgspec.inspect.FloatType, field.type)
    number = "a whole number" if isinstance(kind, msgspec.inspect.IntType) else "a number"
    unit = {"s": " of seconds", "bytes": " of bytes"}.get(key.rpartition("_")[2], "")
    least = f"{kind.ge:.15g}" if kind.ge is not None else f"above {kind.gt:.15g}"
    raise InvalidInput(
        f"the option {key} cannot be {value!r:.60}: it is {number}{unit}, from {least} to {kind.le:.15g}",
        code="option.invalid",
        hint=f'write it without a unit, like .option("{key}", {field.default:.15g}), which is the default',
    )


def _plain(key: str, value: Any) -> Any:
    if key == "drop_sink" and isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if key in ("store", "workdir") and isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if key == "metrics" and isinstance(value, int) else value
