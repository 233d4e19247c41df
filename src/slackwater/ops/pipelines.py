"""Pipelines of a store: list all, read one by its URL. Nothing is claimed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches

import msgspec

from ..errors import Code, InvalidInput, NotFound, SlackwaterError, Unavailable
from ..formats.keys import CHECKPOINTS
from ..formats.state import State
from ..keyed.config import CheckpointConfig
from ..parallel import in_parallel
from ..protocol.address import as_text, folder_name, join_url, refuse_pipeline_at, split_url
from ..protocol.directory import refuse_inside
from ..protocol.log_damage import refuse_missing_log
from ..protocol.pipeline import Pipeline, locate
from ..protocol.verified_reads import DAMAGE
from ..settings import Settings
from ..store import Store, local_folder, open_store


class Problem(msgspec.Struct, frozen=True):
    code: str
    message: str


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a store. With a problem, its state could not be read.

    ``released`` says that its last driver ended in order; otherwise one is running, or has crashed.
    """

    name: str
    url: str
    epoch: int | None = None
    updated_at_ms: int | None = None
    checkpoints: int | None = None
    savepoints: int | None = None
    released: bool | None = None
    problem: Problem | None = None


def read_pipeline(
    url: str | os.PathLike[str], settings: Settings | None = None, storage_options: Mapping[str, str] | None = None
) -> Pipeline:
    """Read the newest state of the pipeline ``{store}/{name}``, which must be there. It is not claimed."""
    url = as_text(url)
    pipeline = locate(url, settings, storage_options)
    if _read(pipeline) is None:
        inside, near = _near(url, pipeline.settings, storage_options)
        raise NotFound(
            f"there is no pipeline at {url}" + (", but there are pipelines below it" if inside else ""),
            code=Code.PIPELINE_NOT_FOUND,
            hint=(f"did you mean {' or '.join(near)}? " if near else "")
            + f"slackwater pipelines {url if inside else split_url(url)[0] or 'STORE'}",
            near=near,
        )
    return pipeline


def _read(pipeline: Pipeline) -> State | None:
    """Read the newest state; checkpoints that no record vouches for are a loss to report."""
    state = pipeline.log.read()
    if state is None and (keys := [entry.key for entry in pipeline.store.list(CHECKPOINTS)]):
        # A driver's first objects follow its claim, so the log is read once more after they were seen.
        state = pipeline.log.read()
        refuse_missing_log(state, keys)
    return state


def pipelines(
    store: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> list[PipelineSummary]:
    """List the pipelines of a store; one that is damaged or cannot be read is among them, with its problem.

    >>> import tempfile
    >>> from slackwater.program import open_pipeline
    >>> with open_pipeline(store := tempfile.mkdtemp(), "orders") as orders:
    ...     for row in range(3):
    ...         report = orders.checkpoint(offsets={"rows": {"row": row}}, state={"counts": {0: b"%d" % row}})
    >>> [(found.name, found.epoch, found.released) for found in pipelines(store)]
    [('orders', 3, True)]
    """
    store_url, settings, options = as_text(store), settings or Settings(), storage_options or {}
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


def _refuse_other(store: Store, url: str) -> None:
    """Refuse a URL at which no store can be: a folder that is not there, a pipeline."""
    refuse_pipeline_at(store, url)
    folder = local_folder(store.url)
    if folder is not None and not os.path.isdir(folder):
        raise NotFound(
            f"there is no folder {url}",
            code="folder.not_found",
            hint="see how it is spelled; a pipeline's first start makes it",
        )


def _summarise(url: str, component: str, settings: Settings, options: Mapping[str, str]) -> PipelineSummary | None:
    name = folder_name(component)
    try:
        state = _read(locate(url, settings, options))
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


def _near(url: str, settings: Settings, options: Mapping[str, str] | None) -> tuple[bool, list[str]]:
    """Find pipelines that may be meant: right below the URL, or beside it with a similar name."""
    store_url, component = split_url(url)
    with suppress(SlackwaterError):
        if below := _look_for(url, settings, options or {}):
            return True, [summary.url for summary in below[:3]]
        if store_url:
            beside = {
                split_url(summary.url)[1]: summary.url for summary in _look_for(store_url, settings, options or {})
            }
            return False, [beside[name] for name in get_close_matches(component, beside, n=3)]
    return False, []


def refuse_own_folders(pipeline: Pipeline, target: str, *, hint: str = "name a folder elsewhere") -> None:
    """Refuse to write into a pipeline's own folders: in its store, or that of a keyed state on this machine."""
    root, folder = local_folder(pipeline.store.url), local_folder(target)
    if root is not None and folder is not None:
        local = CheckpointConfig(str(root)).folder  # unless it was put elsewhere
        refuse_inside(folder, [root, *([local] if local.is_dir() else [])], hint=hint)
    elif f"{target}/".startswith(f"{pipeline.store.url}/"):
        raise InvalidInput(f"{target} is inside the pipeline's own folder", code="option.invalid", hint=hint)
