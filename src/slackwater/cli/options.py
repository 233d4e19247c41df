"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .text import format_time, note

if TYPE_CHECKING:
    from ..protocol.state import LeftOut
    from ..settings import Settings

VARIABLE = "SLACKWATER_PIPELINE"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Invocation:
    """What an error message needs to know of the command that failed."""

    def __init__(self) -> None:
        self.as_json = False
        self.url: str | None = None


def _remember_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.ensure_object(Invocation).as_json = value
    return value


def remember_url(url: str) -> None:
    """Let a hint name the pipeline that this command is about."""
    click.get_current_context().ensure_object(Invocation).url = url


def _remember_argument(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    remember_url(url)
    return url


url_argument = click.argument("url", envvar=VARIABLE, callback=_remember_argument)


def url_and(other: str) -> Callable[[_Function], _Function]:
    """Take URL and one argument more, or that alone when the variable names the pipeline."""

    def split(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, str]:
        url = os.environ.get(VARIABLE)
        if len(names) == 1 and url:
            names = (url, *names)
        if len(names) != 2:
            raise click.UsageError(f"give URL and {other}; URL may be left out when {VARIABLE} is set")
        remember_url(names[0])
        return names[0], names[1]

    return click.argument(f"url_and_{other.lower()}", nargs=-1, metavar=f"[URL] {other}", callback=split)


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help="Print one JSON document."
)
at_option = click.option(
    "--at", "ref", metavar="REF", default="latest", show_default=True, help="The checkpoint: epoch, id, label or @TIME."
)


class _Seconds(click.FloatRange):
    """A time. What is no number is in no range, and passes every comparison with its ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value!r} is not a time in seconds.", param, ctx)
        return seconds


def store_options(function: _Function) -> _Function:
    """Add --json and --timeout."""
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=_Seconds(0, 86400, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Give up when the store has not answered for so long.",
    )
    return json_option(timeout(function))


def make_settings(timeout_s: float) -> Settings:
    from ..settings import Settings  # noqa: PLC0415

    return Settings(total_timeout_s=timeout_s, request_timeout_s=min(timeout_s, 30.0))


def tell_choice(ref: str, epoch: int, created_at_ms: int, passed: Sequence[LeftOut]) -> None:
    """Say which checkpoint a time has led to, and what a REF has passed over; ``latest`` is the newest all the same."""
    from ..ops.refs import LATEST_REF, format_zone  # noqa: PLC0415

    if ref.startswith("@"):
        note(f"note: {ref}{format_zone(ref)} is epoch {epoch}, made at {format_time(created_at_ms)}")
    if ref != LATEST_REF:
        tell_passed_over(passed)


def tell_passed_over(passed: Sequence[LeftOut]) -> None:
    """Say which checkpoints were not taken, and why."""
    for one in passed:
        note(f"note: epoch {one.epoch} was passed over: {one.reason}")
