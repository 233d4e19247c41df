"""Labels of savepoints: what may be one, and the record that gives one to a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import Code, InvalidInput, NotFound
from ..formats.change import Label
from ..formats.state import LiveCheckpoint, Savepoint, State
from .log import Log

MAX_LABEL = 100
# The other forms of a REF, which a label could be taken for.
REF_WORDS = ("latest", "newest-verified")
ID_PREFIX = re.compile(r"[0-9a-f]{1,8}|[0-9a-f]{8}-[0-9a-f-]{0,27}")


def check_label(label: str) -> str:
    """Refuse a label that could not be told from another form of a REF, or not be shown."""
    wrong = (
        "a label is text" if not isinstance(label, str)
        else f"a label has 1 to {MAX_LABEL} characters" if not 0 < len(label) <= MAX_LABEL
        else "a label has no control or invisible characters" if not label.isprintable()
        else "a label does not begin with @, which begins a time" if label.startswith("@")
        else "a number would be taken for an epoch" if label.isdigit()
        else "it has a meaning of its own" if label.lower() in REF_WORDS
        else "it looks like a checkpoint's id" if "-" in label and ID_PREFIX.fullmatch(label.lower())
        else None
    )  # fmt: skip
    if wrong:
        raise InvalidInput(
            f"{label!r:.{MAX_LABEL}} cannot be a label: {wrong}",
            code="name.invalid",
            hint="choose a word, like before-upgrade",
        )
    return label


def find_label(state: State, label: str) -> Savepoint | None:
    return next((savepoint for savepoint in state.labels if savepoint.label == label), None)


def newest(state: State) -> LiveCheckpoint:
    """Choose the newest checkpoint; there must be one."""
    if state.head is None:
        raise NotFound(
            "the pipeline has no checkpoint yet", code="checkpoint.none", hint="start it: a micro-batch makes one"
        )
    return state.head


def label_checkpoint(log: Log, label: str, choose: Callable[[State], LiveCheckpoint] = newest) -> Savepoint:
    """Give the checkpoint that is chosen of the newest state a label, so that retention keeps it."""
    check_label(label)

    def decide(state: State | None) -> Label:
        if state is None:
            raise NotFound(
                "the pipeline has no records yet", code=Code.PIPELINE_NOT_FOUND, hint="slackwater pipelines STORE"
            )
        return Label(label=label, epoch=choose(state).epoch)

    savepoint = find_label(log.append(decide), label)
    if savepoint is None:
        raise AssertionError("the state that has the append has the label")
    return savepoint
