"""Libraries that come with an extra of the package, and what is said where one is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import Unsupported

_PACKAGES = {
    "spark": ("pyspark", "pyarrow", "pandas", "numpy"),
    "delta": ("deltalake",),
    "keyed": ("rocksdict",),
    "metrics": ("prometheus_client",),
    "receive": ("rocksdict", "starlette", "uvicorn", "websockets"),
}


@contextmanager
def needed_for(what: str, *extras: str) -> Iterator[None]:
    """Let what is imported inside be missing only with a word on how to install it."""
    try:
        yield
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        if not any(package in _PACKAGES[extra] for extra in extras):
            raise
        raise Unsupported(
            f"{what} needs the package {package}, which is not installed",
            code="extra.missing",
            hint=f"pip install 'slackwater[{','.join(extras)}]'",
        ) from None
