"""``slackwater run``: a PySpark program whose pipelines end cleanly."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from types import FrameType
from typing import Any

import click

from .. import errors
from ..errors import Code, InvalidInput, SlackwaterError
from .entry import INTERRUPTED
from .options import json_option
from .text import note, print_json

_WRAPPED = re.compile(r"slackwater\.[\w.]*?(\w+): \[([a-z0-9_]+(?:\.[a-z0-9_]+)+)\] (.*?)(?: \(hint: (.*)\))?$", re.M)
_POLL_S = 0.05


@click.command("run", context_settings={"allow_interspersed_args": False})
@json_option
@click.argument("app")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(app: str, args: tuple[str, ...], as_json: bool) -> int:
    """Run a PySpark program with pipelines.

    Pipelines that still run when the program ends are waited for. Ctrl-C or SIGTERM stops them: what is committed is
    checkpointed, and the micro-batch under way is dropped and done again next time. A second one ends at once, which is
    safe: the next start recovers. Options of slackwater stand before APP, everything after it is the program's.

    \b
    Examples:
      slackwater run app.py
      slackwater run app.py --day 2026-11-15
    """
    _check(app)
    log_to_stderr()
    stop = _Stop()
    with stop.listening(), redirect_stdout(sys.stderr if as_json else sys.stdout):
        code = _run(app, args, stop)
    if as_json:
        signal_name = signal.Signals(stop.signal).name if stop.signal else None
        print_json({"app": app, "exit_code": code, "stopped_by": signal_name})
    return code


def _check(app: str) -> None:
    try:
        with open(app, "rb") as file:
            compile(file.read(), app, "exec", dont_inherit=True)
    except OSError as error:
        raise InvalidInput(
            f"{app} cannot be read: {error.strerror}", code="usage.wrong", hint="slackwater run path/to/app.py"
        ) from None
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InvalidInput(
            f"{app} is not a Python program: {message}{line}", code="usage.wrong", hint="slackwater run path/to/app.py"
        ) from None


def _run(path: str, args: tuple[str, ...], stop: _Stop) -> int:
    import runpy  # noqa: PLC0415

    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    failure: BaseException | None = None
    code = 0
    try:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = _exit_code(end)
        if code == 0:
            _wait()
    except BaseException as error:
        failure = error
    if (failure is not None or code) and _active():
        note("the program has failed: stopping its pipelines; what is committed is checkpointed")
    for query in _active():
        with suppress(Exception):  # What ended the program is what is told.
            query.stop()
    failure = failure or stop.result()
    if stop.signal is not None and (failure is None or _was_asked_for(failure)):
        return INTERRUPTED if stop.signal == signal.SIGINT else 0
    if failure is not None:
        return _report(failure, path)
    return code


def _wait() -> None:
    """Wait for every pipeline that runs; the first failure ends it."""
    waiting = _active()
    while waiting:
        waiting = [query for query in waiting if not query.awaitTermination(1)] or _active()


def _active() -> list[Any]:
    """List the running pipelines; without the module that starts them there are none."""
    module = sys.modules.get("slackwater.streaming.query")
    return list(module.active()) if module else []


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    note(str(end.code))
    return 1


class _Stop:
    """What a first signal does: stop every pipeline, in a thread, because the main one may hold any lock."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._interrupt = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        signal.set_wakeup_fd(-1)  # From here on, only a second signal ends the process.
        install = signal.signal

        def keep(number: int, handler: Any) -> Any:
            # A new SparkContext would take Ctrl-C for itself, and cancel the jobs of the last checkpoint.
            if number == signal.SIGINT and str(getattr(handler, "__module__", "")).startswith("pyspark."):
                return signal.getsignal(number)
            return install(number, handler)

        for number in (signal.SIGINT, signal.SIGTERM):
            install(number, self._handle)
        signal.signal = keep  # type: ignore[assignment]
        try:
            yield
        finally:
            signal.signal = install

    def result(self) -> BaseException | None:
        if self._thread is not None:
            self._thread.join()
        return self._failure

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._interrupt:
            self._interrupt = False
            raise KeyboardInterrupt
        if self.signal is not None:
            note("ended at once; the next start recovers")
            os._exit(INTERRUPTED)
        self.signal = number
        self._thread = threading.Thread(target=self._stop, name="slackwater-stop", daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        while not (running := _active()) and _java_is_starting():
            time.sleep(_POLL_S)
        if not running:
            note("stopping: no pipeline is running")
            _expect_interrupt()
            self._interrupt = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        note("stopping: what is committed is checkpointed, the micro-batch under way is dropped and done again next "
             "time (once more ends at once)")  # fmt: skip
        sys.modules["slackwater.streaming.query"].hush_spark()
        for query in running:
            try:
                query.stop()
                note(_describe_end(query))
            except BaseException as error:
                self._failure = self._failure or error


def _describe_end(query: Any) -> str:
    kept = query.checkpoints()
    return f"{query.name}: ended cleanly, " + (f"at epoch {kept[-1].epoch}" if kept else "and has no checkpoint yet")


def _java_is_starting() -> bool:
    """Tell whether the main thread waits for a JVM: interrupted there, pyspark would leave it behind for ever."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != "launch_gateway":
        frame = frame.f_back
    return frame is not None


def _expect_interrupt() -> None:
    """Let the interrupt of a call to the JVM not be logged with its traceback, as py4j does: it was asked for."""
    import logging  # noqa: PLC0415

    logging.getLogger().addFilter(lambda record: not (record.exc_info and record.exc_info[0] is KeyboardInterrupt))


def _was_asked_for(failure: BaseException) -> bool:
    typed = _typed(failure)
    return isinstance(failure, KeyboardInterrupt) or (typed is not None and typed.code == Code.PIPELINE_STOPPING)


def _report(failure: BaseException, path: str) -> int:
    """Raise our own error, or show the program's as Python would."""
    import traceback  # noqa: PLC0415

    typed = _typed(failure)
    if typed is not None:
        raise typed from failure
    trace = failure.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    if trace is None:
        raise failure
    traceback.print_exception(failure.with_traceback(trace))
    return INTERRUPTED if isinstance(failure, KeyboardInterrupt) else 1


def _typed(failure: BaseException) -> SlackwaterError | None:
    """Find our own error among the causes, or in the text: Spark passes on nothing but that."""
    link: BaseException | None = failure
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, SlackwaterError):
            return link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    match = _WRAPPED.search(str(failure))
    if match is None:
        return None
    kind = getattr(errors, match[1], SlackwaterError)
    kind = kind if isinstance(kind, type) and issubclass(kind, SlackwaterError) else SlackwaterError
    return kind(match[3], code=match[2], hint=match[4])


def log_to_stderr() -> None:
    """Show what the pipelines log, a line a checkpoint, whatever the program does about logging."""
    import logging  # noqa: PLC0415

    formatter = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger("slackwater")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
