"""Values of one Arrow type as those of another: just as they are, or not at all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

# Any integer, before the decimals that are asked for; and what Arrow can hold.
_INTEGER_DIGITS, _MOST_DIGITS = 20, 76


def cast_exactly(column: Any, kind: pa.DataType) -> Any:
    """Cast a column, with null for a value that the type does not have: 1.239 is no decimal(10, 2).

    Of some of these Arrow makes another value without a word, for others it raises its errors; so does this.
    """
    given = column.type
    if given == kind:
        return column
    if types.is_integer(given) and types.is_decimal(kind):
        # Directly, Arrow refuses even a small one unless there is room for the greatest.
        digits = min(_INTEGER_DIGITS + kind.scale, _MOST_DIGITS)
        return pc.cast(pc.cast(column, pa.decimal256(digits, kind.scale)), kind)
    typed = pc.cast(column, kind)
    if _family(given) == "text":
        if not types.is_integer(kind):
            return typed
        # It takes 0x10 for 16.
        kept = pc.invert(pc.or_(pc.match_substring(column, "x"), pc.match_substring(column, "X")))
    elif _family(given) is None or _family(kind) in (None, "text") or types.is_floating(kind):
        return typed  # rounding is what floating point does
    else:
        kept = pc.equal(pc.cast(typed, given), column)
    return pc.if_else(kept, typed, pa.scalar(None, kind))


def can_compare(given: pa.DataType, kind: pa.DataType) -> bool:
    """Tell whether values of two types can be equal, without a guess at what is meant: which time zone, or which unit.

    Text is compared with anything that can be read from it.
    """
    try:
        cast_exactly(pa.nulls(1, given), kind)
    except pa.ArrowException:
        return False
    families = {_family(given), _family(kind)}
    return len(families) == 1 or "text" in families or types.is_null(given)


def _family(kind: pa.DataType) -> str | None:
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_timestamp(kind) and kind.tz is not None:
        return "instant"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "local time"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return "text"
    return None
