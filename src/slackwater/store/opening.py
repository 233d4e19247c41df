"""A store by its URL."""

from __future__ import annotations

import os
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore import exceptions as foreign
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from ..errors import InvalidInput
from ..network import is_loopback
from ..settings import Settings, check_settings
from .checked import Checked, CheckedDisk
from .disk import Disk
from .objects import Objects, Proof
from .translation import DO_NOT_FIT, bad_option, is_panic
from .verbs import Store, check_key

# What this process has seen of servers, by URL and endpoint.
_proofs: dict[tuple[str, ...], Proof] = {}
_shared_memory: dict[str, MemoryStore] = {}
_shared_memory_lock = threading.Lock()
_KINDS: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def open_store(url: str, settings: Settings | None = None, /, **options: str) -> Store:
    """Open the store at ``url``: a path, ``file:``, ``memory:`` (``memory:name`` is shared), ``s3:``, ``gs:``, ``az:``.

    Nothing is read or written yet. Credentials come from the environment or ``options`` (obstore's names for them).
    """
    return _open(url, check_settings(settings or Settings()), options, prove=True)


def open_unproven(url: str, settings: Settings | None = None, /, **options: str) -> Store:
    """Open a store whose creates go out without a look at it first, for the probe, which takes that look itself."""
    return _open(url, check_settings(settings or Settings()), options, prove=False)


def _open(url: str, settings: Settings, options: dict[str, str], *, prove: bool) -> Store:
    if not isinstance(url, str) or not url.strip():
        raise _bad_url("the URL is empty, or no text")
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme or scheme == "file":
        return _open_disk(url, options)
    if scheme == "memory":
        return _open_memory(rest, options)
    try:
        parsed = urlsplit(url)
    except ValueError:
        raise _bad_url("the URL is malformed") from None
    if "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise _bad_url("the URL holds credentials, a query or a fragment")
    if scheme not in _KINDS:
        raise _bad_url("this kind of URL is unknown")
    prefix = parsed.path.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parsed.netloc):
        raise _bad_url("the bucket or container is missing or malformed")
    objects = _open_cloud(scheme, parsed.netloc, check_key(prefix) if prefix else "", settings, options)
    name = f"{scheme}://{parsed.netloc}/{prefix}".rstrip("/")
    # Some servers that speak a cloud's language ignore the condition of a create without a word.
    proof = _proofs.setdefault((name, *_servers(scheme, options)), Proof()) if prove else None
    return Checked(name, Objects(objects, proof, settings.total_timeout_s))


def local_folder(url: str) -> Path | None:
    """Name the folder of this machine that a path or a ``file:`` URL means, as it is opened; None when it means none.

    It is absolute and goes nowhere by ``..``, so that two of them can be compared.
    """
    scheme, colon, _ = url.partition(":")
    if not colon or "/" in scheme:
        path = os.path.expanduser(url)
    elif scheme == "file":
        path = _path_of(url)
    else:
        return None
    return Path(os.path.abspath(path)) if path and _can_be_path(path) else None


def _path_of(url: str) -> str:
    """Take the path out of a ``file:`` URL; empty when it is of another machine, or not from the root."""
    try:
        parsed = urlsplit(url)
    except ValueError:
        return ""
    plain = parsed.netloc in ("", "localhost") and not parsed.query and not parsed.fragment
    return unquote(parsed.path) if plain and parsed.path.startswith("/") else ""


def _bad_url(reason: str) -> InvalidInput:
    return InvalidInput(
        f"the store cannot be opened: {reason}",
        code="store.invalid",
        hint="write a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; "
        "credentials belong into the environment or the options",
    )


def _open_disk(url: str, options: dict[str, str]) -> Store:
    if options:
        raise bad_option("a folder takes no options", "leave them out")
    folder = local_folder(url)
    if folder is None:
        raise _bad_url("a file: URL needs an absolute path and no host, and a path what a file system can hold")
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise _bad_url("its path is a file, not a folder")
    return CheckedDisk(folder.as_uri(), Disk(str(folder)))


def _can_be_path(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _open_memory(name: str, options: dict[str, str]) -> Store:
    if options:
        raise bad_option("memory: takes no options", "leave them out")
    if not re.fullmatch(r"[\w.-]*", name):
        raise _bad_url("a memory: store has a plain name or none")
    with _shared_memory_lock:
        memory = _shared_memory.setdefault(name, MemoryStore()) if name else MemoryStore()
    return Checked(f"memory:{name}", Objects(memory))


def _open_cloud(scheme: str, bucket: str, prefix: str, settings: Settings, options: dict[str, str]) -> Any:
    config = {
        "timeout": f"{round(settings.request_timeout_s * 1000)}ms",
        "connect_timeout": f"{round(min(settings.request_timeout_s, 5.0) * 1000)}ms",
        **({"unsigned_payload": "true"} if scheme == "s3" else {}),  # what we store has a SHA-256 of our own
        **allow_http(scheme, options),
        **options,
    }
    total = settings.total_timeout_s
    retry = {
        "max_retries": 1000,  # the time decides
        "retry_timeout": timedelta(seconds=total),
        "backoff": {"max_backoff": timedelta(seconds=min(15.0, total / 8))},
    }
    try:
        return _KINDS[scheme](bucket, prefix=prefix or None, config=config, retry_config=retry)
    except foreign.UnknownConfigurationKeyError:
        known = "names are those of obstore's S3Config, GCSConfig, AzureConfig and ClientConfig"
        raise bad_option("one of its options is unknown", known) from None
    except (foreign.BaseError, TypeError, ValueError):
        raise bad_option(*DO_NOT_FIT) from None
    except BaseException as error:
        if is_panic(error):
            raise bad_option(*DO_NOT_FIT) from None
        raise


_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3", "base_url")
# What else tells two servers with one URL apart.
_ACCOUNTS = ("account_name", "storage_account_name", "use_emulator", "storage_use_emulator")


def allow_http(scheme: str, options: dict[str, str]) -> dict[str, str]:
    """Allow plain HTTP to this very machine; elsewhere only the user can."""
    given, endpoints = _given(scheme, options), _endpoints(scheme, options)
    for endpoint in endpoints:
        if not isinstance(endpoint, str):
            raise bad_option("its endpoint is not text", "write it as https://host:port")
        if "@" in endpoint:
            raise bad_option("its endpoint holds credentials", "pass them as options of their own")
        try:
            local = is_loopback(urlsplit(endpoint).hostname or "")
        except ValueError:
            raise bad_option("its endpoint is malformed", "write it as https://host:port") from None
        if endpoint.startswith("http:") and not local and "allow_http" not in given:
            raise bad_option("its endpoint is plain HTTP", "use https, or set the option allow_http=true")
    plain = endpoints and "allow_http" not in given and all(endpoint.startswith("http:") for endpoint in endpoints)
    return {"allow_http": "true"} if plain else {}


def _endpoints(scheme: str, options: dict[str, str]) -> list[str]:
    given = _given(scheme, options)
    return [given[name] for name in _ENDPOINTS if name in given]


def _servers(scheme: str, options: dict[str, str]) -> list[str]:
    given = _given(scheme, options)
    return [f"{name}={given[name]}" for name in (*_ENDPOINTS, *_ACCOUNTS) if name in given]


def _given(scheme: str, options: dict[str, str]) -> dict[str, str]:
    """Put the environment's variables and the options, which win, under the names that they share."""
    prefix = _PREFIXES[scheme]
    environment = {name.lower(): value for name, value in os.environ.items() if name.lower().startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in {**environment, **options}.items()}
