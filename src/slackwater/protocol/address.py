"""A pipeline's address: its URL, ``{store}/{name}``, taken apart, put together, and told from a store's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import quote, unquote

from ..errors import Code, Corrupt, InvalidInput, Unavailable
from ..formats.keys import parse_name
from ..settings import Settings
from ..store import Store, open_store
from .log import list_records


def as_text(given: object) -> str:
    """Take a path or a URL; refuse what is neither."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise InvalidInput(
            f"{given!r:.100} is neither a path nor a URL",
            code="store.invalid",
            hint="write it as text: a path, or a URL like s3://bucket/slackwater",
        )
    return text


def join_url(store_url: str, component: str) -> str:
    """Join a store's URL and a folder's stored name, which a ``file:`` URL holds encoded once more."""
    if not store_url.strip():  # with a name behind it, it would be the root of the disk
        raise InvalidInput(
            "the store is empty", code="store.invalid", hint="write a path or a URL; the folder of this process is ."
        )
    return f"{store_url.rstrip('/')}/{quote(component, safe='') if store_url.startswith('file:') else component}"


def split_url(url: str) -> tuple[str, str]:
    """Split a pipeline's URL into its store's URL (empty when there is none) and the folder's name."""
    store, slash, component = url.rstrip("/").rpartition("/")
    if not slash:
        return ("" if ":" in url else "."), component
    if store.endswith(":/"):  # a bucket alone
        return "", component
    return store or "/", unquote(component) if url.startswith("file:") else component


def pipeline_name(url: str) -> str:
    """Read the name of a pipeline that is to be made off its URL."""
    component = split_url(url)[1]
    try:
        return parse_name(component)
    except Corrupt:
        raise InvalidInput(
            f"the last component of {url} is not how Slackwater writes a pipeline's name",
            code="name.invalid",
            hint="percent-encode what is not a letter, digit, - . or _, as in s3://bucket/slackwater/my%20orders",
        ) from None


def folder_name(component: str) -> str:
    try:
        return parse_name(component)
    except Corrupt:
        return component


def refuse_pipeline(url: str, settings: Settings, options: Mapping[str, str] | None = None) -> None:
    """Refuse a pipeline's own URL where its store's belongs: a new pipeline would lie inside the other."""
    try:
        refuse_pipeline_at(open_store(url, settings, **(options or {})), url)
    except Unavailable as error:
        if error.code != Code.STORE_DENIED:  # Whoever may look at this pipeline alone can still have it.
            raise


def refuse_inside_pipeline(url: str, settings: Settings, options: Mapping[str, str] | None = None) -> None:
    """Refuse the URL of a pipeline that is to be made where another one is its store."""
    if store_url := split_url(url)[0]:
        refuse_pipeline(store_url, settings, options)


def refuse_pipeline_at(store: Store, url: str) -> None:
    if list_records(store):
        raise InvalidInput(
            f"{url} is a pipeline, not a store of pipelines",
            code="store.invalid",
            hint=f"slackwater list {url}; its store is {split_url(url)[0] or 'one level up'}",
        )
