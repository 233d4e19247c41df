"""Pipelines of a store: open one by its URL, list all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from urllib.parse import quote, unquote

import msgspec

from ..clock import SystemClock
from ..errors import Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable
from ..formats.keys import CHECKPOINTS, parse_name
from ..formats.state import State
from ..protocol.artifacts import in_parallel
from ..protocol.log import Log, list_records
from ..protocol.recovery import DAMAGE, refuse_missing_log
from ..settings import Settings
from ..store import Store, local_folder, open_store


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """An opened pipeline: where it is, and its newest state."""

    name: str
    url: str
    store: Store
    log: Log
    state: State


class Problem(msgspec.Struct, frozen=True):
    code: str
    message: str


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a store. With a problem, its state could not be read.

    ``released`` says that its last driver ended in order; else one is running, or has crashed.
    """

    name: str
    url: str
    epoch: int | None = None
    updated_at_ms: int | None = None
    checkpoints: int | None = None
    savepoints: int | None = None
    released: bool | None = None
    problem: Problem | None = None


def open_pipeline(
    url: str, settings: Settings | None = None, storage_options: Mapping[str, str] | None = None
) -> Pipeline:
    """Open the pipeline ``{store}/{name}`` and read its newest state."""
    settings = settings or Settings()
    store = open_store(url, settings, **(storage_options or {}))
    log = Log(store, SystemClock(), settings)
    state = _read(store, log)
    if state is None:
        inside, near = _near(url, settings, storage_options)
        raise NotFound(
            f"there is no pipeline at {url}" + (", but there are pipelines below it" if inside else ""),
            code="pipeline.not_found",
            hint=(f"did you mean {' or '.join(near)}? " if near else "")
            + f"slackwater pipelines {url if inside else _split(url)[0] or 'STORE'}",
            near=near,
        )
    return Pipeline(name=_name(_split(url)[1]), url=url, store=store, log=log, state=state)


def _read(store: Store, log: Log) -> State | None:
    """Read the newest state; checkpoints that no record vouches for are a loss to report."""
    state = log.read()
    if state is None and (keys := [entry.key for entry in store.list(CHECKPOINTS)]):
        # A driver's first objects follow its claim, so the log is read once more after they were seen.
        state = log.read()
        refuse_missing_log(state, keys)
    return state


def pipelines(
    store_url: str, settings: Settings | None = None, storage_options: Mapping[str, str] | None = None
) -> list[PipelineSummary]:
    """Find the pipelines of a store; a damaged one is reported, not hidden."""
    settings, options = settings or Settings(), storage_options or {}
    found = _look_for(store_url, settings, options)
    if not found:
        _refuse_other(open_store(store_url, settings, **options), store_url)
    return found


def _look_for(store_url: str, settings: Settings, options: Mapping[str, str]) -> list[PipelineSummary]:
    jobs = [
        lambda name=name: _summarise(join_url(store_url, name), name, settings, options)
        for name in open_store(store_url, settings, **options).list_folders("")
    ]
    found: list[PipelineSummary | None] = in_parallel(jobs, settings.concurrency)
    return [summary for summary in found if summary is not None]


def refuse_pipeline(url: str, settings: Settings, options: Mapping[str, str] | None = None) -> None:
    """Refuse a pipeline's own URL where its store's belongs: a new pipeline would lie inside the other."""
    try:
        _refuse_pipeline(open_store(url, settings, **(options or {})), url)
    except Unavailable as error:
        if error.code != "store.denied":  # Whoever may look at this pipeline alone can still have it.
            raise


def refuse_inside_pipeline(url: str, settings: Settings, options: Mapping[str, str] | None = None) -> None:
    """Refuse the URL of a pipeline that is to be made where another one is its store."""
    if store_url := _split(url)[0]:
        refuse_pipeline(store_url, settings, options)


def _refuse_pipeline(store: Store, url: str) -> None:
    if list_records(store):
        raise InvalidInput(
            f"{url} is a pipeline, not a store of pipelines",
            code="store.is_pipeline",
            hint=f"slackwater list {url}; its store is {_split(url)[0] or 'one level up'}",
        )


def _refuse_other(store: Store, url: str) -> None:
    """Refuse a URL at which no store can be: a folder that is not there, a pipeline."""
    _refuse_pipeline(store, url)
    folder = local_folder(store.url)
    if folder is not None and not os.path.isdir(folder):
        raise NotFound(
            f"there is no folder {url}",
            code="store.no_folder",
            hint="see how it is spelled; a pipeline's first start makes it",
        )


def _summarise(url: str, component: str, settings: Settings, options: Mapping[str, str]) -> PipelineSummary | None:
    name = _name(component)
    try:
        store = open_store(url, settings, **options)
        state = _read(store, Log(store, SystemClock(), settings))
    except InvalidInput:
        return None  # No pipeline can have such a name.
    except (*DAMAGE, Unavailable) as error:  # The others can be read, or their reads say so, too.
        return PipelineSummary(name=name, url=url, problem=Problem(error.code, error.message))
    if state is None:
        return None
    return PipelineSummary(
        name=name,
        url=url,
        epoch=state.head.epoch if state.head else None,
        updated_at_ms=state.at_ms,
        checkpoints=len(state.live),
        savepoints=len(state.labels),
        released=state.release_append_id is not None,
    )


def join_url(store_url: str, component: str) -> str:
    """Join a store's URL and a folder's stored name, which a ``file:`` URL holds encoded once more."""
    if not store_url.strip():  # with a name behind it, it would be the root of the disk
        raise InvalidInput(
            "the store is empty", code="store.bad_url", hint="write a path or a URL; the folder of this process is ."
        )
    return f"{store_url.rstrip('/')}/{quote(component, safe='') if store_url.startswith('file:') else component}"


def _split(url: str) -> tuple[str, str]:
    """Split a pipeline's URL into its store's URL (empty when there is none) and the folder's name."""
    store, slash, component = url.rstrip("/").rpartition("/")
    if not slash:
        return ("" if ":" in url else "."), component
    if store.endswith(":/"):  # a bucket alone
        return "", component
    return store or "/", unquote(component) if url.startswith("file:") else component


def pipeline_name(url: str) -> str:
    """Read the name of a pipeline that is to be made off its URL."""
    component = _split(url)[1]
    try:
        return parse_name(component)
    except Corrupt:
        raise InvalidInput(
            f"the last component of {url} is not how Slackwater writes a pipeline's name",
            code="name.not_encoded",
            hint="percent-encode what is not a letter, digit, - . or _, as in s3://bucket/slackwater/my%20orders",
        ) from None


def _name(component: str) -> str:
    try:
        return parse_name(component)
    except Corrupt:
        return component


def _near(url: str, settings: Settings, options: Mapping[str, str] | None) -> tuple[bool, list[str]]:
    """Find pipelines that may be meant: right below the URL, or beside it with a similar name."""
    store_url, component = _split(url)
    with suppress(SlackwaterError):
        if below := _look_for(url, settings, options or {}):
            return True, [summary.url for summary in below[:3]]
        if store_url:
            beside = {_split(summary.url)[1]: summary.url for summary in _look_for(store_url, settings, options or {})}
            return False, [beside[name] for name in get_close_matches(component, beside, n=3)]
    return False, []
