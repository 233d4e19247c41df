"""``slackwater receive``: receivers for sources that push and cannot replay."""

from __future__ import annotations

import signal
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..extras import needed_for
from ..network import format_address
from .entry import INTERRUPTED
from .options import json_option
from .run import log_to_stderr
from .text import count, format_age, format_size, format_time, note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from ..inboxes.inbox import Inbox
    from ..inboxes.reader import Contents

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MIB = 1024 * 1024


@click.group("receive")
def command() -> None:
    """Receive messages that nobody can send again.

    Each message is durable in DIR before it is acknowledged. A pipeline reads them with sw.inbox(spark, DIR), exactly
    once; what its checkpoints cover is dropped. One receiver runs for each DIR.

    \b
    Examples:
      slackwater receive http ./clicks --listen 127.0.0.1:8080
      slackwater receive ws ./trades wss://example.com/feed --subscribe '{"after": {position}}' --position '$.seq'
      slackwater receive show ./clicks
    """


def _number(
    name: str, limits: tuple[int, int | None], default: int, metavar: str, text: str
) -> Callable[[_Function], _Function]:
    """Make an option of a whole number. One of SECONDS has its unit in the parameter's name."""
    names = (name, f"{name.removeprefix('--').replace('-', '_')}_s") if metavar == "SECONDS" else (name,)
    return click.option(
        *names, type=click.IntRange(*limits), default=default, show_default=True, metavar=metavar, help=text
    )


_SHARED = (
    _number("--max-message", (1, 64 * _MIB), _MIB, "BYTES", "Refuse a larger message."),
    _number("--max-held", (1, None), 100_000_000, "N", "Let senders wait when so many messages wait for the pipeline."),
    _number("--max-held-bytes", (1, None), 16 * 1024 * _MIB, "BYTES", "The same, by size."),
    _number("--keep-keys", (0, 366 * 86400), 3600, "SECONDS",
            "Know an idempotency key for at least so long, while a receiver runs."),
    _number("--max-keys", (1, None), 10_000_000, "N", "Let senders wait when so many keys are known."),
    json_option,
)  # fmt: skip


def _shared(function: _Function) -> _Function:
    for option in reversed(_SHARED):
        function = option(function)
    return function


@command.command("http")
@click.argument("folder", metavar="DIR")
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Where; port 0 is any free one.",
)
@_number("--max-body", (1, 64 * _MIB), 8 * _MIB, "BYTES", "Refuse a larger request.")
@_number("--max-messages", (1, 1_000_000), 100_000, "N", "Refuse a request with more lines.")
@_number("--timeout", (1, 3600), 30, "SECONDS", "Give up a request whose head or body takes longer.")
@_shared
def http(
    folder: str,
    listen: str,
    *,
    max_body: int,
    max_messages: int,
    timeout_s: int,
    max_message: int,
    as_json: bool,
    **limits: Any,
) -> int:
    """Receive POSTs of JSON, or of NDJSON, into DIR.

    The answer 200 comes when all of a request is durable: {"accepted": 2, "first": 7, "last": 8}. With the header
    Idempotency-Key a request may be sent again. 400 and 413: nothing of it was taken; 429: wait. Where
    SLACKWATER_RECEIVE_TOKEN is set, senders say Authorization: Bearer TOKEN. Ctrl-C or SIGTERM ends it cleanly.

    \b
    Examples:
      slackwater receive http ./clicks
      slackwater receive http ./clicks --listen 0.0.0.0:8080 --max-held-bytes 1073741824
      curl --json '{"id": 1}' -H 'Idempotency-Key: 1' http://127.0.0.1:8080
    """
    _need("rocksdict", "starlette", "uvicorn")
    from ..inboxes.receivers import http as receiver  # noqa: PLC0415
    from ..inboxes.receivers.http_bodies import HttpLimits  # noqa: PLC0415
    from ..inboxes.receivers.process import read_token  # noqa: PLC0415

    token = read_token()
    host, port = receiver.parse_listen(listen)
    log_to_stderr()
    with receiver.open_socket(host, port, token=token) as listening:
        inbox = _open(folder, limits)
        told = HttpLimits(
            # What can never fit is too large: to wait would not help.
            max_body_bytes=min(max_body, limits["max_held_bytes"]),
            max_message_bytes=min(max_message, limits["max_held_bytes"]),
            max_messages=min(max_messages, limits["max_held"]),
            timeout_s=timeout_s,
        )
        at = f"http://{format_address(host, listening.getsockname()[1])}"
        number = receiver.serve(
            inbox, listening, told, token=token, ready=lambda: note(f"receiving at {at} into {folder}")
        )
    return _end(inbox, number, as_json)


@command.command("ws")
@click.argument("folder", metavar="DIR")
@click.argument("url")
@click.option(
    "--subscribe",
    multiple=True,
    metavar="MESSAGE",
    help="Say this when connected; {position} is where to go on. May be given more than once.",
)
@click.option("--position", "path", metavar="PATH", help="Where a message has its position, like '$.seq'.")
@click.option(
    "--first-position",
    default="0",
    show_default=True,
    metavar="TEXT",
    help="What {position} is before the first message.",
)
@click.option(
    "--unique-positions",
    is_flag=True,
    help="No two messages have one position: go on after the newest, instead of asking for it again.",
)
@_shared
def ws(
    folder: str,
    url: str,
    *,
    subscribe: tuple[str, ...],
    path: str | None,
    first_position: str,
    unique_positions: bool,
    max_message: int,
    as_json: bool,
    **limits: Any,
) -> int:
    """Receive what a WebSocket server at URL sends, into DIR.

    It connects again after every break, and says {position} in --subscribe or in the URL, so that a server that can
    go on from there does; a message that comes twice is kept once. Where SLACKWATER_RECEIVE_TOKEN is set, it
    is sent as Authorization: Bearer TOKEN. Ctrl-C or SIGTERM ends it cleanly.

    \b
    Examples:
      slackwater receive ws ./trades wss://example.com/feed
      slackwater receive ws ./trades wss://example.com/feed --subscribe '{"after": {position}}' --position '$.seq'
    """
    _need("rocksdict", "websockets")
    from ..inboxes.receivers import websocket as receiver  # noqa: PLC0415
    from ..inboxes.receivers.messages import parse_path  # noqa: PLC0415
    from ..inboxes.receivers.process import read_token  # noqa: PLC0415

    subscription = receiver.check_positions(
        receiver.Subscription(
            url=receiver.check_url(url),
            subscribe=subscribe,
            position_path=parse_path(path) if path is not None else None,
            first_position=first_position,
            unique_positions=unique_positions,
            max_message_bytes=min(max_message, limits["max_held_bytes"]),
            secret=read_token(),
        )
    )
    log_to_stderr()
    inbox = _open(folder, limits)
    address = receiver.without_secrets(url)
    number = receiver.follow(inbox, subscription, ready=lambda: note(f"receiving from {address} into {folder}"))
    return _end(inbox, number, as_json)


@command.command("show")
@click.argument("folder", metavar="DIR")
@json_option
def show(folder: str, as_json: bool) -> None:
    """Show what DIR holds: positions, what is covered, what was refused, and when nothing was received.

    \b
    Examples:
      slackwater receive show ./clicks
      slackwater receive show ./clicks --json
    """
    _need("rocksdict")
    from pathlib import Path  # noqa: PLC0415

    from ..inboxes.reader import read_contents  # noqa: PLC0415

    found = read_contents(Path(folder))
    if as_json:
        print_json(_facts(found))
    else:
        _print(found)


def _need(*packages: str) -> None:
    """Refuse to begin without what is imported only once something is received."""
    with needed_for("slackwater receive", "receive"):
        for package in packages:
            import_module(package)


def _open(folder: str, limits: dict[str, Any]) -> Inbox:
    from pathlib import Path  # noqa: PLC0415

    from ..inboxes.group_commit import Limits  # noqa: PLC0415
    from ..inboxes.inbox import Inbox  # noqa: PLC0415

    if "://" in folder:  # as a path it would be ./s3:/…
        raise click.BadParameter(f"{folder} is a URL; a directory of this machine is needed.", param_hint="DIR")
    wanted = Limits(
        max_messages=limits["max_held"],
        max_bytes=limits["max_held_bytes"],
        keep_keys_s=limits["keep_keys_s"],
        max_keys=limits["max_keys"],
    )
    return Inbox(Path(folder), wanted)


def _end(inbox: Inbox, number: int | None, as_json: bool) -> int:
    known = inbox.description
    if as_json:
        name = signal.Signals(number).name if number else None
        print_json({"inbox": known.uid, "position": known.last, "dropped": known.dropped, "stopped_by": name})
    else:
        note(f"ended cleanly at position {known.last}; {count(known.held, 'message')} held")
    return INTERRUPTED if number == signal.SIGINT else 0


def _facts(found: Contents) -> dict[str, Any]:
    known = found.description
    return {
        "inbox": known.uid,
        "position": known.last,
        "dropped": known.dropped,
        "covered": found.covered,
        "held": known.held,
        "held_bytes": known.held_bytes,
        "keys": known.keys_held,
        "full": known.full,
        "refused": {"garbage": known.garbage, "oversized": known.oversized},
        "repeated": known.repeated,
        "upstream_position": known.token,
        "alive_at_ms": known.alive_at_ms,
        "away": known.away,
        "gap_count": known.gaps,
        "gaps": [
            {"from_ms": gap.from_ms, "to_ms": gap.to_ms, "after": gap.after, "why": gap.why} for gap in found.gaps
        ],
    }


def _print(found: Contents) -> None:
    known = found.description
    alive = (
        "never"
        if known.alive_at_ms is None
        else f"{format_time(known.alive_at_ms)} ({format_age(known.alive_at_ms)} ago)"
    )
    print_fields(
        {
            "inbox": known.uid,
            "position": str(known.last),
            "covered": "nothing yet" if found.covered is None else str(found.covered),
            "held": f"{count(known.held, 'message')}, {format_size(known.held_bytes)}",
            "keys": str(known.keys_held),
            "full": known.full or "no",
            "refused": f"{known.garbage} garbage, {known.oversized} oversized",
            "repeated": str(known.repeated),
            "upstream": known.token if known.token is not None else "no position",
            "last alive": alive + (f"; {known.away}" if known.away else ""),
            "gaps": str(known.gaps),
        }
    )
    if found.gaps:
        print()
        print_table(
            ["FROM", "TO", ">AFTER", "WHY"],
            [[format_time(gap.from_ms), format_time(gap.to_ms), str(gap.after), gap.why] for gap in found.gaps[-20:]],
        )
