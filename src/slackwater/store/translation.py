"""Foreign errors become ours, at this one place."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from obstore import exceptions as foreign

from ..errors import Code, InvalidInput, NotFound, SlackwaterError, Unavailable, Unsupported


@contextmanager
def translated(verb: str, key: str, url: str) -> Iterator[None]:
    """Turn foreign errors into ours. Their text stays behind: it may hold signed URLs, key ids and answers in full."""
    what = f"{verb} {key or '/'} at {url}"
    try:
        yield
    except FileNotFoundError as error:
        if _NO_BUCKET in str(error):
            raise _no_bucket(what) from None
        raise NotFound(f"{what}: no such object", code=Code.STORE_NOT_FOUND) from None
    except OSError as error:
        raise _of_disk(error, what) from error
    except foreign.BaseError as error:
        raise _of_cloud(error, what) from None
    except BaseException as error:
        if is_panic(error):
            raise bad_option(*DO_NOT_FIT) from None
        raise


_NO_BUCKET = "NoSuchBucket"


def _no_bucket(what: str) -> NotFound:
    return NotFound(f"{what}: the bucket does not exist", code="folder.not_found", hint="create it, or fix the URL")


def no_conditional_put() -> Unsupported:
    """Refuse a server that ignores the condition of a create without a word, as some that speak S3 do."""
    return Unsupported(
        "this S3 server overwrites an object that was to be created only if absent",
        code="store.unsupported",
        hint="use a server that honours If-None-Match on PUT",
    )


_NOT_A_FOLDER = partial(
    InvalidInput,
    code="store.invalid",
    hint="a file stands where a folder is needed, or the other way round; choose another root",
)
_BAD_PATH = partial(
    InvalidInput,
    code="store.invalid",
    hint="below the root no part of a key may be a symbolic link, or longer than the file system allows",
)
_FULL = partial(Unavailable, code=Code.STORE_FULL, hint="free some space or raise the quota, then try again")
_DENIED = partial(
    Unavailable, code=Code.STORE_DENIED, hint="let this user read and write the folder, or choose another"
)
_NO_LINKS = partial(
    Unsupported,
    code="store.unsupported",
    hint="choose a file system with hard links (ext4, XFS, NFS), or object storage",
)
_OTHER = partial(Unavailable, code=Code.STORE_UNAVAILABLE, hint="check the disk and its mount, then try again")
_UNREADABLE = partial(
    Unavailable,
    code=Code.STORE_UNAVAILABLE,
    hint="check the disk and its mount, then try again; an object that stays unreadable is put back from a copy, over "
    "itself. Never delete a record of the log: slackwater repair goes on from one that is damaged, not from a gap",
)
_BY_ERRNO: dict[int | None, Callable[[str], SlackwaterError]] = {
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.ELOOP: _BAD_PATH,
    errno.ENAMETOOLONG: _BAD_PATH,
    errno.EIO: _UNREADABLE,
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
        return InvalidInput(f"{what}: this store refuses the key", code="store.invalid")
    if _NO_BUCKET in text:
        return _no_bucket(what)
    # What is denied to a listing or a bulk delete, or to a machine without credentials that is no cloud's, comes as a
    # generic error.
    refused = isinstance(error, foreign.PermissionDeniedError | foreign.UnauthenticatedError)
    if refused or status in ("401", "403") or _CLOUD_METADATA in text or _DENIED_IN_BULK in text:
        hint = "check the credentials in the environment or the options, and what they may do in this bucket"
        return Unavailable(f"{what}: access was denied", code=Code.STORE_DENIED, hint=hint)
    hint = "check that the endpoint is up and can be reached, then try again"
    if status:
        reason = f"the server answered with status {status}"
        return Unavailable(f"{what}: {reason}", code=Code.STORE_UNAVAILABLE, hint=hint, status=int(status))
    if re.search(r"timed ?out|kind: Timeout", text, re.IGNORECASE):
        reason = "no answer in time"
    else:
        reason = "no connection" if "kind: Connect" in text else "the request failed"
    return Unavailable(f"{what}: {reason}", code=Code.STORE_UNAVAILABLE, hint=hint)


_CLOUD_METADATA = "169.254."
_DENIED_IN_BULK = "(code: AccessDenied)"


def is_broken(error: Exception) -> bool:
    """Tell a connection that broke, or brought half an answer, from what a server says; of obstore or of delta-rs."""
    text = str(error)
    return "HTTP error" in text and _CLOUD_METADATA not in text


def bad_option(reason: str, hint: str) -> InvalidInput:
    return InvalidInput(f"the store cannot be opened: {reason}", code="store.invalid", hint=hint)


DO_NOT_FIT = ("its options do not fit", "check the options and the environment's variables, the endpoint first")


def is_panic(error: BaseException) -> bool:
    """Tell whether obstore's native code has panicked, as it does on some malformed endpoints."""
    return type(error).__name__ == "PanicException"
