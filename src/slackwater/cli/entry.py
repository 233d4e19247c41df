"""The entry of the command line: every error becomes a line with an exit code."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from .. import __version__
from ..errors import InvalidInput, SlackwaterError
from .options import Invocation
from .text import note, plain

INTERRUPTED = 130
READER_LEFT = 141  # as of a command that SIGPIPE has ended
COMMANDS = (
    "pipelines", "list", "show", "verify", "savepoint", "forget", "restore", "rollback", "repair", "import", "export",
    "probe", "run", "receive",
)  # fmt: skip
# A command whose name no module can have.
_MODULES = {"import": "import_"}
_GRACE_S = 2.0
_untold = threading.Lock()
_removals: list[Callable[[], None]] = []
# A user and a password in a URL, which do not belong there. A secret may have slashes.
_CREDENTIALS = re.compile(r"://(?:[^\s/:]*:\S*|[^\s/]*)@")


class _ReaderLeft(Exception):
    """Whoever read stdout has closed it."""


class _Commands(click.Group):
    """The commands, one file each, imported when they are asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeft from error  # click would exit with 1

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "copy":
            ctx.fail("'copy' is 'import' now: slackwater import FOLDER URL")
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{_MODULES.get(cmd_name, cmd_name)}", __package__).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slackwater", message="%(prog)s %(version)s")
def group() -> None:
    """Checkpoints that can be trusted, for PySpark streaming pipelines.

    A pipeline is named by one URL, {store}/{pipeline}, or by the variable SLACKWATER_PIPELINE. REF names one of its
    checkpoints: latest, an epoch, a label, an id or the beginning of one, or @TIME for the newest one at that time.

    \b
    Examples:
      slackwater pipelines s3://bucket/slackwater
      slackwater list s3://bucket/slackwater/orders
      slackwater restore s3://bucket/slackwater/orders --to /tmp/orders --at @2026-11-15T10:00Z

    \b
    Exit codes:
      0 ok    2 wrong usage    10 not found    11 conflict    12 store unavailable
      13 corrupt    14 unsupported    130 interrupted    1 anything else
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    args = sys.argv[1:] if args is None else list(args)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It was closed: what is said to it must neither fail nor go elsewhere.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation()
    _end_soon_when_interrupted()
    try:
        code = group.main(args, prog_name="slackwater", standalone_mode=False, obj=invocation)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        invocation.as_json = invocation.as_json or "--json" in args
        return _refuse(error, invocation)
    except (click.Abort, KeyboardInterrupt):
        _remove_unfinished()
        _tell_interrupted()
        return INTERRUPTED
    except SlackwaterError as error:
        return _fail(error, invocation)
    except (BrokenPipeError, _ReaderLeft):
        # As head does. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "set SLACKWATER_TRACEBACK=1 to see where it was raised"
        return _fail(SlackwaterError(message, code="unexpected.failure", hint=hint), invocation, error)


def _refuse(error: click.UsageError, invocation: Invocation) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return InvalidInput.exit_code
    path = error.ctx.command_path if error.ctx else "slackwater"
    return _fail(InvalidInput(error.format_message(), code="usage.wrong", hint=f"{path} --help"), invocation)


def _fail(error: SlackwaterError, invocation: Invocation, cause: BaseException | None = None) -> int:
    hint = _with_address(error.hint, invocation.url)
    if os.environ.get("SLACKWATER_TRACEBACK") == "1":
        import traceback  # noqa: PLC0415

        traceback.print_exception(cause or error)
    print(_redact(plain(f"error: [{error.code}] {error.message}")), file=sys.stderr)
    if hint:
        print(_redact(plain(f"hint: {hint}")), file=sys.stderr)
    if invocation.as_json:
        import msgspec  # noqa: PLC0415 - kept off the path of --help

        details = msgspec.to_builtins(error.details, enc_hook=str)
        facts = {"code": error.code, "message": error.message, "hint": hint, "details": details}
        with suppress(OSError):  # A full or closed stdout cannot be told anything.
            print(_redact(json.dumps({"error": facts}, indent=2)), flush=True)
    return error.exit_code


def _redact(text: str) -> str:
    """Leave out credentials: what was typed is told again, as a surplus argument or as a REF that names nothing."""
    return _CREDENTIALS.sub("://***@", text)


def _with_address(hint: str | None, url: str | None) -> str | None:
    """Put the pipeline's own URL into a command, so that it can be copied."""
    if not hint or not url:
        return hint
    return re.sub(r"(\bslackwater [a-z ]+ )URL\b", lambda match: match[1] + shlex.quote(url), hint)


def remove_when_interrupted(remove: Callable[[], None]) -> None:
    """Have a command clean up however it is interrupted: by Ctrl-C, or by SIGTERM, which then ends it as Ctrl-C does.

    ``remove`` is called in the end, perhaps by another thread, and perhaps with nothing left to do.
    """
    _removals.append(remove)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _remove_unfinished() -> None:
    for remove in _removals:
        remove()


def _tell_interrupted() -> None:
    """Say it once, whichever thread comes first: on a busy machine both do."""
    if _untold.acquire(blocking=False):
        note("interrupted")


def _end_soon_when_interrupted() -> None:
    """See to it that Ctrl-C ends the process even while the store's client waits for an answer in native code."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)

    def watch() -> None:
        os.read(readable, 1)
        time.sleep(_GRACE_S)
        _remove_unfinished()
        _tell_interrupted()
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, name="slackwater-interrupt", daemon=True).start()
