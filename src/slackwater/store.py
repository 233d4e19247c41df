"""The object store: a few verbs by URL.

Every verb is synchronous and thread-safe, and raises nothing but ``slackwater.errors``. Cloud stores and ``memory:`` go
through obstore, which retries by itself with exponential, jittered waits; a folder on disk is ours (``durable``),
because it must be durable. Never fork a process that has used obstore: the child hangs.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from obstore import exceptions as foreign
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from .durable import HIDDEN, Buffer, Disk
from .errors import Corrupt, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported
from .settings import MIB, Settings

_PAGE = 1000  # keys in one answer to a list, or in one bulk delete
_ONE_PUT_BYTES = 64 * MIB
_PART_BYTES = 16 * MIB


class Listed(msgspec.Struct, frozen=True):
    """One object of a listing."""

    key: str
    size_bytes: int


class Requests(msgspec.Struct):
    """What a store was asked for, in requests as S3 counts them, without retries."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0

    def add(self, **counts: int) -> None:
        """Count more."""
        with _counting:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def snapshot(self) -> Requests:
        """Copy the counts of this moment."""
        with _counting:
            return Requests(*msgspec.structs.astuple(self))

    def __sub__(self, earlier: Requests) -> Requests:
        pairs = zip(msgspec.structs.astuple(self.snapshot()), msgspec.structs.astuple(earlier), strict=True)
        return Requests(*(now - then for now, then in pairs))


_counting = threading.Lock()


Listing = list[Listed]
Names = list[str]


class Store(Protocol):
    """Objects below one root. Keys are relative, ``/`` between segments, encoded by the layout."""

    url: str
    requests: Requests

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        """Read an object, or exactly ``size`` bytes of it. More than ``max_bytes`` is refused before it is read."""

    def put(self, key: str, data: bytes | Sequence[Buffer]) -> None:
        """Write an object, over an older one. It is durable when this returns."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless its name is taken, and say whether it was written.

        Two creates of one name never both win. ``False`` does not say whose the object is: a retry inside may find what
        the first try wrote. ``Unavailable`` leaves the outcome open. In both cases read back and compare.
        """

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        """List the objects below the folder ``prefix``, sorted; only keys greater than ``after``.

        Use ``after`` on folders without folders inside: not every server sorts those as keys are sorted.
        """

    def list_folders(self, prefix: str) -> Names:
        """List the names of the folders right below ``prefix``, sorted. One that just fell empty may be among them."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. One that is missing is fine."""

    def move(self, source: str, target: str) -> None:
        """Rename an object. When the source is gone and the target is there, it was done before."""


class _Window:
    """The part of an object that was asked for, checked against the object's size before it is read."""

    def __init__(self, key: str, offset: int, size: int | None, max_bytes: int | None) -> None:
        self.key, self.offset, self.size, self.max_bytes = key, offset, size, max_bytes
        self.admitted = 0

    def admit(self, total: int) -> int:
        rest = total - self.offset
        wanted = rest if self.size is None else self.size
        if rest < 0 or wanted > rest:
            self.fail_short(total)
        if self.max_bytes is not None and wanted > self.max_bytes:
            raise Corrupt(
                f"{self.key} has {wanted} bytes to read, more than the {self.max_bytes} that can be right",
                code="store.too_large",
                hint="the object is not what its name says; restore it from a copy",
            )
        self.admitted = wanted
        return wanted

    def fail_short(self, total: int) -> NoReturn:
        asked = f"{self.size} bytes" if self.size is not None else "all"
        raise Corrupt(
            f"{self.key} ends after {total} bytes, but {asked} from {self.offset} on were to be read",
            code="store.short_read",
            hint="the object was cut; restore it from a copy",
        )


class _Checked:
    """A backend whose keys are checked, whose requests are counted, and whose errors are ours."""

    def __init__(self, url: str, backend: Disk | _Objects) -> None:
        self.url = url
        self.requests = Requests()
        self._backend = backend

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def get(self, key: str, *, offset: int = 0, size: int | None = None, max_bytes: int | None = None) -> bytes:
        if offset < 0 or (size is not None and size < 0):
            raise InvalidInput(f"get {key}: a range cannot be negative", code="store.bad_range")
        window = _Window(check_key(key), offset, size, max_bytes)
        self.requests.add(gets=1)
        with _translated("get", key, self.url):
            data = self._backend.get(key, offset, size, window.admit)
        if len(data) != window.admitted:
            window.fail_short(offset + len(data))
        return data

    def put(self, key: str, data: bytes | Sequence[Buffer]) -> None:
        buffers = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self.requests.add(puts=1 if size <= _ONE_PUT_BYTES else 2 + math.ceil(size / _PART_BYTES))
        with _translated("put", check_key(key), self.url):
            self._backend.put(key, buffers)

    def create(self, key: str, data: bytes) -> bool:
        self.requests.add(puts=1)
        with _translated("create", check_key(key), self.url):
            return self._backend.create(key, [data])

    def list(self, prefix: str, *, after: str | None = None) -> Listing:
        folder = _folder(prefix)
        with _translated("list", prefix, self.url):
            found = self._backend.list(folder, after)
        self.requests.add(lists=_pages(found))
        return sorted((Listed(key, size) for key, size in found), key=lambda listed: listed.key)

    def list_folders(self, prefix: str) -> Names:
        folder = _folder(prefix)
        with _translated("list", prefix, self.url):
            names = self._backend.list_folders(folder)
        self.requests.add(lists=_pages(names))
        return sorted(names)

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self.requests.add(deletes=_pages(keys))
            with _translated("delete", check_key(keys[0]), self.url):
                self._backend.delete([check_key(key) for key in keys])

    def move(self, source: str, target: str) -> None:
        self.requests.add(puts=1, deletes=1)
        with _translated("move", check_key(source), self.url):
            self._backend.move(source, check_key(target))


def check_key(key: str) -> str:
    """Return ``key`` when every store can hold it and it stays below the root."""
    parts = key.split("/")
    wrong = (
        "" in parts
        or "." in parts
        or ".." in parts
        or _NOT_IN_KEYS.search(key)
        or any(HIDDEN.fullmatch(part) or len(part.encode()) > 255 for part in parts)
        or len(key.encode()) > 1024
    )
    if wrong:
        raise InvalidInput(
            f"{key[:200]!r} cannot be the key of an object",
            code="store.bad_key",
            hint="keys are relative, with segments of up to 255 bytes; build them with slackwater.formats.layout",
        )
    return key


# Control characters, the other systems' separator, and surrogates, which are no text.
_NOT_IN_KEYS = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")


def _folder(prefix: str) -> str:
    return check_key(prefix.removesuffix("/")) + "/" if prefix else ""


def _pages(items: Sequence[object]) -> int:
    return max(1, math.ceil(len(items) / _PAGE))


class _Objects:
    """obstore's verbs, made alike across its stores."""

    def __init__(self, objects: S3Store | GCSStore | AzureStore | MemoryStore) -> None:
        self._objects = objects
        # Some servers that speak S3 ignore the condition of a create without a word.
        self._create_is_proven = not isinstance(objects, S3Store)

    def get(self, key: str, offset: int, size: int | None, admit: Callable[[int], int]) -> bytes:
        if size == 0:  # HTTP has no empty range
            admit(self._objects.head(key)["size"])
            return b""
        try:
            if size is not None:
                result = self._objects.get(key, options={"range": (offset, offset + size)})
            else:
                result = self._objects.get(key, options={"range": {"offset": offset}} if offset else None)
        except foreign.GenericError as error:
            # A range that begins at the end or after it is an error, worded by each store in its own way.
            if "range" not in str(error).lower() or admit(self._objects.head(key)["size"]):
                raise
            return b""
        admit(result.meta["size"])
        return bytes(result.bytes())

    def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        data = _joined(buffers)
        many = len(data) > _ONE_PUT_BYTES
        self._objects.put(key, data, use_multipart=many, chunk_size=_PART_BYTES, max_concurrency=4)

    def create(self, key: str, buffers: Sequence[Buffer]) -> bool:
        if not self._create_is_proven:
            self._prove_create()
        return self._create(key, _joined(buffers))

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._objects.put(key, data, mode="create", use_multipart=False)
        except (foreign.AlreadyExistsError, foreign.PreconditionError):
            return False
        return True

    def _prove_create(self) -> None:
        """See once, before anything relies on it, that a create of a taken name is refused."""
        probe = f"_probe-{secrets.token_hex(8)}"
        self._objects.put(probe, b"", use_multipart=False)
        refused = not self._create(probe, b"")
        self._objects.delete(probe)
        if not refused:
            raise Unsupported(
                "this S3 server overwrites an object that was to be created only if absent",
                code="store.no_conditional_put",
                hint="use a server that honours If-None-Match on PUT",
            )
        self._create_is_proven = True

    def list(self, prefix: str, after: str | None) -> Sequence[tuple[str, int]]:
        pages = self._objects.list(prefix or None, offset=after, chunk_size=_PAGE)
        found = [(meta["path"], meta["size"]) for page in pages for meta in page]
        return [pair for pair in found if after is None or pair[0] > after]

    def list_folders(self, prefix: str) -> Sequence[str]:
        folders = self._objects.list_with_delimiter(prefix or None)["common_prefixes"]
        return [folder.rstrip("/").rsplit("/", 1)[-1] for folder in folders]

    def delete(self, keys: Sequence[str]) -> None:
        try:
            self._objects.delete(list(keys))
        except FileNotFoundError:  # where deletes are single requests, the first missing object stops them
            for key in keys:
                with suppress(FileNotFoundError):
                    self._objects.delete(key)

    def move(self, source: str, target: str) -> None:
        try:
            self._objects.copy(source, target)
        except FileNotFoundError:
            self._objects.head(target)
        else:
            self.delete([source])


def _joined(buffers: Sequence[Buffer]) -> bytes:
    """Return immutable bytes: ``memory:`` keeps the very buffer that it is given."""
    return bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)


@contextmanager
def _translated(verb: str, key: str, url: str) -> Iterator[None]:
    """Turn foreign errors into ours. Their text stays behind: it may hold signed URLs, key ids and answers in full."""
    what = f"{verb} {key or '/'} at {url}"
    try:
        yield
    except FileNotFoundError as error:
        if _NO_BUCKET in str(error):
            raise _no_bucket(what) from None
        raise NotFound(f"{what}: no such object", code="store.not_found") from None
    except OSError as error:
        raise _of_disk(error, what) from error
    except foreign.BaseError as error:
        raise _of_cloud(error, what) from None
    except BaseException as error:
        if _is_panic(error):
            raise _bad_option(*_DO_NOT_FIT) from None
        raise


_NO_BUCKET = "NoSuchBucket"


def _no_bucket(what: str) -> NotFound:
    return NotFound(f"{what}: the bucket does not exist", code="store.no_bucket", hint="create it, or mend the URL")


_NOT_A_FOLDER = partial(
    InvalidInput,
    code="store.not_a_folder",
    hint="a file stands where a folder is needed, or the other way round; choose another root",
)
_BAD_PATH = partial(
    InvalidInput,
    code="store.bad_key",
    hint="below the root no part of a key may be a symbolic link, or longer than the file system allows",
)
_FULL = partial(Unavailable, code="store.full", hint="free some space or raise the quota, then try again")
_DENIED = partial(Unavailable, code="store.denied", hint="let this user read and write the folder, or choose another")
_NO_LINKS = partial(
    Unsupported,
    code="store.no_hard_links",
    hint="choose a file system with hard links (ext4, XFS, NFS), or object storage",
)
_OTHER = partial(Unavailable, code="store.unavailable", hint="check the disk and its mount, then try again")
_BY_ERRNO: dict[int | None, Callable[[str], SlackwaterError]] = {
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.ELOOP: _BAD_PATH,
    errno.ENAMETOOLONG: _BAD_PATH,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EOPNOTSUPP: _NO_LINKS,
}


def _of_disk(error: OSError, what: str) -> SlackwaterError:
    return _BY_ERRNO.get(error.errno, _OTHER)(f"{what}: {os.strerror(error.errno or errno.EIO)}")


def _of_cloud(error: foreign.BaseError, what: str) -> SlackwaterError:
    text = str(error)
    found = re.search(r"status(?: code)?: ([1-5][0-9]{2})", text)
    status = found[1] if found else None
    if isinstance(error, foreign.NotSupportedError):
        return Unsupported(f"{what}: this store cannot do that", code="store.unsupported")
    if isinstance(error, foreign.InvalidPathError):
        return InvalidInput(f"{what}: this store refuses the key", code="store.bad_key")
    if _NO_BUCKET in text:
        return _no_bucket(what)
    # A listing that is denied, or a machine without credentials that is no cloud's, comes as a generic error.
    refused = isinstance(error, foreign.PermissionDeniedError | foreign.UnauthenticatedError)
    if refused or status in ("401", "403") or _CLOUD_METADATA in text:
        hint = "check the credentials in the environment or the options, and what they may do in this bucket"
        return Unavailable(f"{what}: access was denied", code="store.denied", hint=hint)
    if status:
        reason = f"the server answered with status {status}"
    elif re.search(r"timed ?out|kind: Timeout", text, re.IGNORECASE):
        reason = "no answer in time"
    else:
        reason = "no connection" if "kind: Connect" in text else "the request failed"
    hint = "check that the endpoint is up and can be reached, then try again"
    return Unavailable(f"{what}: {reason}", code="store.unavailable", hint=hint)


_CLOUD_METADATA = "169.254."


_shared_memory: dict[str, MemoryStore] = {}
_shared_memory_lock = threading.Lock()
_KINDS: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def open_store(url: str, settings: Settings | None = None, **options: str) -> Store:
    """Open the store at ``url``: a path, ``file:``, ``memory:`` (``memory:name`` is shared), ``s3:``, ``gs:``, ``az:``.

    Nothing is read or written yet. Credentials come from the environment or ``options`` (obstore's names for them).
    """
    scheme, colon, rest = url.partition(":")
    if not url.strip() or "\0" in url:
        raise _bad_url("the URL is empty")
    if not colon or "/" in scheme:
        return _open_disk(os.path.expanduser(url), options)
    if scheme == "memory":
        return _open_memory(rest, options)
    try:
        parsed = urlsplit(url)
    except ValueError:
        raise _bad_url("the URL is malformed") from None
    if "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise _bad_url("the URL holds credentials, a query or a fragment")
    if scheme == "file":
        if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
            raise _bad_url("a file: URL needs an absolute path and no host")
        return _open_disk(unquote(parsed.path), options)
    if scheme not in _KINDS:
        raise _bad_url("this kind of URL is unknown")
    prefix = parsed.path.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parsed.netloc):
        raise _bad_url("the bucket or container is missing or malformed")
    return _open_cloud(scheme, parsed.netloc, check_key(prefix) if prefix else "", settings or Settings(), options)


def _bad_url(reason: str) -> InvalidInput:
    return InvalidInput(
        f"the store cannot be opened: {reason}",
        code="store.bad_url",
        hint="write a path, file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; "
        "credentials belong into the environment or the options",
    )


def _bad_option(reason: str, hint: str) -> InvalidInput:
    return InvalidInput(f"the store cannot be opened: {reason}", code="store.bad_option", hint=hint)


def _open_disk(path: str, options: dict[str, str]) -> Store:
    if options:
        raise _bad_option("a folder takes no options", "leave them out")
    root = os.path.abspath(path)
    if os.path.exists(root) and not os.path.isdir(root):
        raise _bad_url("its path is a file, not a folder")
    return _Checked(Path(root).as_uri(), Disk(root))


def _open_memory(name: str, options: dict[str, str]) -> Store:
    if options:
        raise _bad_option("memory: takes no options", "leave them out")
    if not re.fullmatch(r"[\w.-]*", name):
        raise _bad_url("a memory: store has a plain name or none")
    with _shared_memory_lock:
        memory = _shared_memory.setdefault(name, MemoryStore()) if name else MemoryStore()
    return _Checked(f"memory:{name}", _Objects(memory))


def _open_cloud(scheme: str, bucket: str, prefix: str, settings: Settings, options: dict[str, str]) -> Store:
    config = {
        "timeout": f"{round(settings.request_timeout_s * 1000)}ms",
        "connect_timeout": f"{round(min(settings.request_timeout_s, 5.0) * 1000)}ms",
        **({"unsigned_payload": "true"} if scheme == "s3" else {}),  # what we store has a SHA-256 of our own
        **_allow_http(scheme, options),
        **options,
    }
    total = settings.total_timeout_s
    retry = {
        "max_retries": 1000,  # the time decides
        "retry_timeout": timedelta(seconds=total),
        "backoff": {"max_backoff": timedelta(seconds=min(15.0, total / 8))},
    }
    try:
        objects = _KINDS[scheme](bucket, prefix=prefix or None, config=config, retry_config=retry)
    except foreign.UnknownConfigurationKeyError:
        known = "names are those of obstore's S3Config, GCSConfig, AzureConfig and ClientConfig"
        raise _bad_option("one of its options is unknown", known) from None
    except (foreign.BaseError, TypeError, ValueError):
        raise _bad_option(*_DO_NOT_FIT) from None
    except BaseException as error:
        if _is_panic(error):
            raise _bad_option(*_DO_NOT_FIT) from None
        raise
    return _Checked(f"{scheme}://{bucket}/{prefix}".rstrip("/"), _Objects(objects))


_DO_NOT_FIT = ("its options do not fit", "check the options and the environment's variables, the endpoint first")


def _is_panic(error: BaseException) -> bool:
    """Tell whether obstore's native code has panicked, as it does on some malformed endpoints."""
    return type(error).__name__ == "PanicException"


_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3")


def _allow_http(scheme: str, options: dict[str, str]) -> dict[str, str]:
    """Allow plain HTTP to this very machine; elsewhere only the user can."""
    prefix = _PREFIXES[scheme]
    environment = {name.lower(): value for name, value in os.environ.items() if name.lower().startswith(prefix)}
    given = {name.removeprefix(prefix): value for name, value in {**environment, **options}.items()}
    endpoints = [given[name] for name in _ENDPOINTS if name in given]
    for endpoint in endpoints:
        if "@" in endpoint:
            raise _bad_option("its endpoint holds credentials", "pass them as options of their own")
        try:
            local = _is_loopback(urlsplit(endpoint).hostname or "")
        except ValueError:
            raise _bad_option("its endpoint is malformed", "write it as https://host:port") from None
        if endpoint.startswith("http:") and not local and "allow_http" not in given:
            raise _bad_option("its endpoint is plain HTTP", "use https, or set the option allow_http=true")
    plain = endpoints and "allow_http" not in given and all(endpoint.startswith("http:") for endpoint in endpoints)
    return {"allow_http": "true"} if plain else {}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
