"""The kinds of pipelines: a Spark query's, a program's, a keyed state's, an imported one. Each refuses the others."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from ..errors import Corrupt, InvalidInput, Unsupported
from ..formats.change import Claim
from ..formats.manifest import Kind, Manifest, kind_of
from .pipeline import Pipeline
from .verified_reads import load_manifest, twice

# The roles by which claims name drivers, ``host:pid role``, so that they are told apart before there is a checkpoint.
# Spark's has none; tools make way for it.
PROGRAM = "program"
KEYED = "keyed"
_KINDS: Final[dict[str, Kind]] = {PROGRAM: "program", KEYED: "keyed"}


class _Words(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a kind: whose it is, and how to go on with it."""

    whose: str
    way: str


_WORDS: Final[dict[Kind, _Words]] = {
    "spark": _Words(whose="Spark's", way="start it with sw.writeStream"),
    "program": _Words(whose="a program's", way="open it with sw.open_pipeline"),
    "keyed": _Words(whose="a keyed state's", way="open it with sw.open_keyed"),
    "imported": _Words(whose="imported", way="write its files with slackwater restore URL --to DIR"),
}


def whose(kind: Kind) -> str:
    """Say whose checkpoints of a kind are, in words that follow on "it is"."""
    return _WORDS[kind].whose


def refuse_foreign(pipeline: Pipeline, kind: Kind) -> Manifest | None:
    """Refuse what is not of this kind before the claim, which would fence the driver whose it is.

    Return the newest manifest that can be read. Where one is damaged, the one before it tells whose they are; recovery
    says what is wrong.
    """
    name, log = pipeline.name, pipeline.log
    state = log.read()
    for entry in reversed(state.live if state else []):
        # What another release has written is not damaged: that is refused, too.
        try:
            manifest = twice(partial(load_manifest, pipeline.store, entry))
        except Corrupt:
            continue
        check_kind(manifest, kind)
        refuse_renamed(manifest, name)
        return manifest
    change = log.change
    if state is not None and state.head is None and isinstance(change, Claim) and _claimed_as(change) != kind:
        raise Unsupported(
            f"the pipeline {name!r} has no checkpoint yet, and is not {_WORDS[kind].whose}: {change.driver} has "
            "claimed it",
            code="pipeline.foreign",
            hint="choose another name; or let that driver end first: whoever comes after it may have the pipeline",
            kind=kind,
            found=_claimed_as(change),
        )
    return None


def refuse_renamed(manifest: Manifest, name: str) -> None:
    """Refuse a start under another name: sinks remember epochs under the pipeline's, and would find none of theirs."""
    if manifest.pipeline != name:
        raise InvalidInput(
            f"the folder of {name!r} holds the pipeline {manifest.pipeline!r}",
            code="pipeline.renamed",
            hint=f"rename the folder back, and start it as {manifest.pipeline!r}; another name begins anew",
        )


def check_kind(manifest: Manifest, kind: Kind) -> None:
    """Refuse a checkpoint of another kind."""
    if (found := kind_of(manifest)) != kind:
        source = f" from {manifest.origin.format}" if manifest.origin else ""
        raise Unsupported(
            f"the checkpoints of {manifest.pipeline!r} are not {_WORDS[kind].whose}: they are {_WORDS[found].whose}"
            f"{source}",
            code="pipeline.foreign",
            hint=f"{_WORDS[found].way}, or choose another name; slackwater show URL says what it holds",
            kind=kind,
            found=found,
        )


def _claimed_as(claim: Claim) -> Kind:
    role = claim.driver.partition(" ")[2].partition(" ")[0]
    return _KINDS.get(role, "spark")
