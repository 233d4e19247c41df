"""The object store: a few verbs by URL.

Every verb is synchronous and thread-safe, and raises nothing but ``slackwater.errors``. Cloud stores and ``memory:`` go
through obstore, which retries by itself with exponential, jittered waits; a folder on disk is ours (``disk.py``),
because it must be durable. Never fork a process that has used obstore: the child hangs.
"""

from __future__ import annotations

from .opening import local_folder, open_store
from .verbs import Buffer, Listed, Listing, Names, Requests, Store, Stream

__all__ = [
    "Buffer",
    "Listed",
    "Listing",
    "Names",
    "Requests",
    "Store",
    "Stream",
    "local_folder",
    "open_store",
]
