"""What the bodies of HTTP requests and answers hold: messages, and what is wrong with them."""

from __future__ import annotations

import re

import msgspec

from ...errors import Code, InvalidInput, SlackwaterError
from ...settings import MIB
from .messages import decode_json

_NDJSON = re.compile(r"(?i)application/(x-)?(ndjson|jsonl|jsonlines|json-lines)\b")

# Python's own strip() takes more for blank than JSON does.
_BLANKS = b" \t\r\n"


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_body_bytes: int = 8 * MIB
    max_message_bytes: int = 1 * MIB
    # Of one request.
    max_messages: int = 100_000
    # For a request's head, and for its body.
    timeout_s: float = 30.0


class TooLarge(InvalidInput):
    """The sender must send less at once."""


def split(body: bytes, content_type: str, limits: HttpLimits) -> list[bytes]:
    """Split a body into messages, each of them JSON; one document, or one a line."""
    many = _NDJSON.match(content_type) is not None
    if many and body.count(b"\n") > limits.max_messages:
        raise too_large(f"a request may have {limits.max_messages} lines")
    lines = body.split(b"\n") if many else [body]
    messages = [message for line in lines if (message := line.strip(_BLANKS)) or not many]
    if not messages:
        raise _garbage("there is no message in it", many)
    for number, message in enumerate(messages, 1):
        if len(message) > limits.max_message_bytes:
            raise too_large(
                f"a message may have {limits.max_message_bytes} bytes, and number {number} has {len(message)}"
            )
        try:
            decode_json(message)
        except ValueError as error:
            raise _garbage(f"message {number} is not JSON: {error}", many) from None
    return messages


def _garbage(why: str, many: bool) -> InvalidInput:
    hint = (
        "each line is one JSON document" if many else "for one document a line, say Content-Type: application/x-ndjson"
    )
    return InvalidInput(f"nothing of this request was taken: {why:.200}", code="receive.invalid", hint=hint)


def too_large(why: str) -> TooLarge:
    return TooLarge(
        f"nothing of this request was taken: {why}",
        code=Code.RECEIVE_TOO_LARGE,
        hint="send less at once; --max-body, --max-messages and --max-message are the limits, and what may be held",
    )


def describe(error: SlackwaterError) -> dict[str, str | None]:
    """Describe an error to a sender."""
    return {"code": error.code, "message": error.message, "hint": error.hint}
