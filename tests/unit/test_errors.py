"""The tree of errors: codes in the text, exit codes by class, a trip through pickle."""

from __future__ import annotations

import pickle

import pytest

from slackwater import errors
from slackwater.errors import SlackwaterError

EXIT_CODES = {
    "SlackwaterError": 1,
    "InvalidInput": 2,
    "NotFound": 10,
    "Conflict": 11,
    "Unavailable": 12,
    "Corrupt": 13,
    "Unsupported": 14,
}
KINDS = [getattr(errors, name) for name in EXIT_CODES]


def test_these_are_all_the_classes_and_their_exit_codes():
    found = {k: v for k, v in vars(errors).items() if isinstance(v, type) and issubclass(v, SlackwaterError)}
    assert {name: kind.exit_code for name, kind in found.items()} == EXIT_CODES


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_begins_with_the_code_and_ends_with_the_hint(kind):
    assert str(kind("it broke", code="area.detail")) == "[area.detail] it broke"
    assert str(kind("it broke", code="area.detail", hint="mend it")) == "[area.detail] it broke (hint: mend it)"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_a_pickle_with_all_its_facts(kind):
    error = pickle.loads(pickle.dumps(kind("it broke", code="area.detail", hint="mend it", epoch=7, key="a/b")))
    assert type(error) is kind
    assert (error.message, error.code, error.hint, error.details) == (
        "it broke", "area.detail", "mend it", {"epoch": 7, "key": "a/b"},
    )  # fmt: skip


def test_a_code_cannot_be_forgotten():
    with pytest.raises(TypeError):
        errors.Corrupt("it broke")  # type: ignore[call-arg]
