"""A real S3 server behind a proxy that breaks connections, cuts answers and refuses for a while: every verb is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slackwater.errors import NotFound
from slackwater.settings import Settings
from slackwater.store import Store, open_store
from tests.services.proxy import CUT, LOST_ANSWER, RESET, SLOW_DOWN, TOO_MANY, in_front_of
from tests.services.seaweed import Seaweed, running

BODY = bytes(range(256)) * 100
TIMES = 6


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    with running() as server:
        yield server


def get_missing(store: Store, n: int) -> None:
    with pytest.raises(NotFound):
        store.get("missing")


def list_all(store: Store, n: int) -> None:
    assert [listed.key for listed in store.list("there/")] == [f"there/{i}" for i in range(TIMES)]


def move(store: Store, n: int) -> None:
    store.move(f"there/{n}", f"moved/{n}")
    assert store.get(f"moved/{n}") == BODY


def read_back(store: Store, n: int) -> None:
    """Create; when the name is taken, it may be by a try whose answer was lost."""
    assert store.create(f"created/{n}", BODY) or store.get(f"created/{n}") == BODY


VERBS: dict[str, Callable[[Store, int], object]] = {
    "get": lambda store, n: store.get(f"there/{n}") == BODY or pytest.fail("not what was put"),
    "get a part": lambda store, n: store.get(f"there/{n}", offset=7, size=9000) == BODY[7:9007] or pytest.fail("no"),
    "get what is missing": get_missing,
    "put": lambda store, n: store.put(f"put/{n}", BODY),
    "create": read_back,
    "list": list_all,
    "list names": lambda store, n: f"{n}" in store.list_names("there/") or pytest.fail("a name is missing"),
    "list folders": lambda store, n: store.list_folders("") == ["there"] or pytest.fail("a folder is missing"),
    "delete": lambda store, n: store.delete([f"there/{n}", f"never/{n}"]),
    "move": move,
}


@pytest.mark.parametrize("fault", [RESET, LOST_ANSWER, CUT, SLOW_DOWN, TOO_MANY])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_done_though_requests_are_spoilt(verb: str, fault: str, server: Seaweed) -> None:
    url = server.url(f"{list(VERBS).index(verb)}-{fault[:3].strip()}")
    whole = open_store(url, None, **server.options)
    for n in range(TIMES):
        whole.put(f"there/{n}", BODY)
    with in_front_of(server, 3, {fault: 40}) as proxy:
        store = open_store(url, Settings(request_timeout_s=5, total_timeout_s=60), **proxy.options)
        for n in range(TIMES):
            VERBS[verb](store, n)
        assert proxy.befell[fault] or (verb, fault) in (("put", CUT),), "nothing was spoilt"
