"""A probe sees what a store does not honour, names it, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import SlackwaterError, Unavailable, Unsupported
from slackwater.settings import Settings
from slackwater.store import Store, disk, open_store
from slackwater.store.opening import open_unproven
from slackwater.store.probe import ProbeResult, probe
from tests.services.tiny_s3 import TinyS3
from tests.store.test_store_errors import Failing

HASTY = Settings(request_timeout_s=1.0, total_timeout_s=2.0)


def probed(server: TinyS3, **flaws: Any) -> ProbeResult:
    for name, value in flaws.items():
        setattr(server, name, value)
    return probe(open_unproven("s3://bucket/p", HASTY, **server.options))


def outcomes(report: ProbeResult, outcome: str) -> set[str]:
    return {check.name for check in report.checks if check.outcome == outcome}


def refused(report: ProbeResult) -> SlackwaterError:
    refusal = report.refusal()
    assert refusal is not None
    return refusal


def test_every_kind_of_store_honours_all_and_is_left_as_it_was(store: Store) -> None:
    store.put("keep/me", b"x")
    report = probe(store)
    assert [check for check in report.checks if check.outcome != "ok"] == []
    assert report.refusal() is None
    assert report.permissions.missing == report.permissions.unknown == report.left == []
    assert [listed.key for listed in store.list("")] == ["keep/me"]
    assert [one.verb for one in report.latencies] == ["list", "put", "get", "create", "delete", "move"]
    assert all(0 < one.median_ms <= one.max_ms and one.calls for one in report.latencies)


def test_a_folder_that_was_not_there_is_gone_again(tmp_path: Path) -> None:
    assert probe(open_unproven(str(tmp_path / "a/b"))).refusal() is None
    assert os.listdir(tmp_path) == []
    (tmp_path / "there").mkdir()
    assert probe(open_unproven(str(tmp_path / "there"))).refusal() is None
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize(
    ("flaw", "failed", "said"),
    [
        ({"ignores_conditions": True}, "create of a taken name", "overwritten"),
        ({"refuses_conditions": True}, "create", "status 501"),
        ({"checks_before_it_writes": True}, "concurrent creates", "of 8 concurrent creates of one name have won"),
    ],
)
def test_a_server_without_conditional_creates_is_refused_with_the_reason(tiny, flaw, failed, said) -> None:
    report = probed(tiny, **flaw)
    assert outcomes(report, "failed") == {failed}
    refusal = refused(report)
    assert (refusal.code, refusal.exit_code) == ("store.unsupported", 14)
    assert said in refusal.message
    assert tiny.objects == {}


@pytest.mark.parametrize(
    ("flaw", "failed"),
    [
        ({"ignores_ranges": True}, "ranges"),
        ({"hides_from_lists": {"listed/3"}}, "list after write"),
        ({"keeps": {"put/2"}}, "bulk delete"),
        ({"keeps": {"put/1"}}, "delete"),
    ],
)
def test_a_server_that_does_not_do_what_it_should_is_refused_with_the_check(tiny, flaw, failed) -> None:
    report = probed(tiny, **flaw)
    assert outcomes(report, "failed") == {failed}
    refusal = refused(report)
    assert (refusal.code, refusal.exit_code) == ("store.unsupported", 14)
    assert failed in refusal.message


@pytest.mark.parametrize(
    ("verb", "permission", "unknown"),
    [
        ("get", "s3:GetObject", []),
        ("put", "s3:PutObject", ["s3:GetObject", "s3:DeleteObject"]),
        ("list", "s3:ListBucket", []),
        ("delete", "s3:DeleteObject", []),
    ],
)
def test_a_missing_permission_is_named(tiny, verb, permission, unknown) -> None:
    report = probed(tiny, denied={verb})
    assert report.permissions.missing == [permission]
    assert report.permissions.unknown == unknown
    refusal = refused(report)
    assert (type(refusal), refusal.code, refusal.exit_code) == (Unavailable, "store.denied", 12)
    assert permission in refusal.message
    assert outcomes(report, "failed") == set()
    assert sorted(key.removeprefix("p/") for key in tiny.objects) == report.left
    assert bool(report.left) == (verb == "delete")


def test_ignored_conditions_weigh_more_than_a_missing_permission(tiny) -> None:
    refusal = refused(probed(tiny, ignores_conditions=True, denied={"get"}))
    assert refusal.code == "store.unsupported" and "If-None-Match" in str(refusal)


def test_a_disk_without_hard_links_is_refused(tmp_path, monkeypatch) -> None:
    store = open_unproven(str(tmp_path))
    monkeypatch.setattr(disk, "os", Failing("link", 1))
    refusal = refused(probe(store))
    assert isinstance(refusal, Unsupported)
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_reached_is_no_verdict_and_nothing_is_written(tiny) -> None:
    tiny.delays_s["list"] = 3
    with pytest.raises(Unavailable) as caught:
        probed(tiny)
    assert caught.value.code == "store.unavailable"
    assert set(tiny.asked) == {"list"}


def end_before(request: int) -> Callable[[], None]:
    count = iter(range(1, request))

    def pause() -> None:
        if next(count, None) is None:
            raise KeyboardInterrupt

    return pause


def test_whatever_ends_a_probe_everything_is_removed(tmp_path) -> None:
    """The probe is ended before its first, second, third … request, until it comes to its end."""
    for url in ("memory:", str(tmp_path / "root")):
        store = open_unproven(url)
        for request in range(1, 200):
            try:
                probe(store, pause=end_before(request))
            except KeyboardInterrupt:
                assert store.list("") == []
            else:
                break
        assert 60 < request < 199
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("request_number", [3, 40, 60, 90])
def test_whatever_ends_a_probe_everything_is_removed_from_a_server(tiny, request_number) -> None:
    with pytest.raises(KeyboardInterrupt):
        probe(open_unproven("s3://bucket/p", HASTY, **tiny.options), pause=end_before(request_number))
    assert "put" in tiny.asked
    assert tiny.objects == {}


def test_what_cannot_be_removed_is_told_with_its_place(tiny) -> None:
    store = open_unproven("s3://bucket/p", HASTY, **tiny.options)

    def pause() -> None:
        if tiny.objects:
            tiny.delays_s["bulk delete"] = 5
            raise KeyboardInterrupt

    with pytest.raises(Unavailable) as caught:
        probe(store, pause=pause)
    assert caught.value.code == "store.unavailable" and "what the probe wrote may still be there" in str(caught.value)
    assert next(iter(tiny.objects)).split("/")[1] in (caught.value.hint or "")


# --- the cheap form, before the first create


def test_a_server_is_looked_at_once_a_process_and_store(tiny) -> None:
    open_store("s3://bucket/p", HASTY, **tiny.options).create("log/1", b"")
    assert tiny.asked == ["put", "put", "bulk delete", "put"]
    tiny.asked.clear()
    again = open_store("s3://bucket/p", HASTY, **tiny.options)
    assert again.create("log/1", b"") is False
    assert tiny.asked == ["put"]
    tiny.asked.clear()
    open_store("s3://bucket/q", HASTY, **tiny.options).create("log/1", b"")
    assert len(tiny.asked) == 4


def test_a_server_that_fails_the_look_is_looked_at_again(tiny) -> None:
    tiny.ignores_conditions = True
    for _ in range(2):
        with pytest.raises(Unsupported) as caught:
            open_store("s3://bucket/p", HASTY, **tiny.options).create("log/1", b"")
        assert caught.value.code == "store.unsupported" and "If-None-Match" in str(caught.value)
    tiny.ignores_conditions = False
    assert open_store("s3://bucket/p", HASTY, **tiny.options).create("log/1", b"") is True
    assert list(tiny.objects) == ["p/log/1"]


def test_a_look_that_fails_leaves_nothing(tiny) -> None:
    tiny.refuses_conditions = True
    with pytest.raises(Unavailable):
        open_store("s3://bucket/p", HASTY, **tiny.options).create("log/1", b"")
    assert tiny.objects == {}


def test_a_bulk_delete_that_is_denied_says_so(tiny) -> None:
    store = open_store("s3://bucket/p", HASTY, **tiny.options)
    store.put("a", b"")
    tiny.denied = {"delete"}
    with pytest.raises(Unavailable) as caught:
        store.delete(["a", "b"])
    assert caught.value.code == "store.denied"
