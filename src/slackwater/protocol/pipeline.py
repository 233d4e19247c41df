"""A pipeline in its store: the store, the log, the clock and the settings that every operation on it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from ..clock import Clock, SystemClock
from ..formats.state import State
from ..settings import Settings
from ..store import Store, open_store
from .address import folder_name, split_url
from .log import Log


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """What every operation on a pipeline needs. ``url`` is as it was given; ``store.url`` is its one spelling."""

    name: str
    url: str
    store: Store
    log: Log
    clock: Clock
    settings: Settings

    @property
    def state(self) -> State:
        """The newest state that was read; there is one, because somebody has read it or claimed."""
        return cast(State, self.log.state)


def locate(
    url: str,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
) -> Pipeline:
    """Find the place of the pipeline at ``{store}/{name}``. Nothing is read yet."""
    settings, clock = settings or Settings(), clock or SystemClock()
    store = open_store(url, settings, **(storage_options or {}))
    log = Log(store, clock, settings)
    return Pipeline(name=folder_name(split_url(url)[1]), url=url, store=store, log=log, clock=clock, settings=settings)
