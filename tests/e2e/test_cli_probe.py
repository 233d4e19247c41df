"""``slackwater probe``, as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from tests.commands import NOWHERE, answer, command, environment, lines, refusal
from tests.pipelines import make_pipeline
from tests.services import tiny_s3


def variables(server: tiny_s3.TinyS3) -> dict[str, str]:
    return {**NOWHERE, "AWS_ENDPOINT_URL": server.options["endpoint"]}


def test_a_folder_is_probed_and_left_as_it_was(tmp_path):
    told = lines("probe", tmp_path / "store")
    assert told[0].split() == ["CHECK", "RESULT", "DETAIL"]
    assert told[-1] == "usable"
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_is_not_probed_in_place_of_its_store(tmp_path):
    url = make_pipeline(tmp_path, 1)
    assert f"[store.invalid] {url} is a pipeline" in refusal("probe", url, code=2)


def test_the_document_has_checks_permissions_and_latencies(tiny):
    document = answer("probe", "s3://bucket/p", code=0, **variables(tiny))
    assert list(document) == ["store", "usable", "problem", "checks", "permissions", "latencies", "left"]
    assert (document["store"], document["usable"], document["problem"]) == ("s3://bucket/p", True, None)
    assert {check["outcome"] for check in document["checks"]} == {"ok"}
    assert document["permissions"]["needed"] == ["s3:ListBucket", "s3:PutObject", "s3:GetObject", "s3:DeleteObject"]
    assert list(document["latencies"][0]) == ["verb", "calls", "median_ms", "max_ms"]
    assert tiny.objects == {}


def test_ignored_conditions_exit_14_with_the_reason(tiny):
    tiny.ignores_conditions = True
    document = answer("probe", "s3://bucket/p", code=14, **variables(tiny))
    assert document["usable"] is False
    assert document["problem"]["code"] == "store.unsupported"
    assert "create of a taken name" in document["problem"]["message"]
    assert "only if absent" in lines("probe", "s3://bucket/p", code=14, **variables(tiny))[-1]
    assert tiny.objects == {}


def test_a_missing_permission_exits_12_and_is_named(tiny):
    tiny.denied = {"delete"}
    done = subprocess.run(
        command("probe", "s3://bucket/p"), env=environment(**variables(tiny)), capture_output=True, check=False
    )
    assert done.returncode == 12
    assert b"\nmissing: s3:DeleteObject\n" in done.stdout
    assert b"could not be removed" in done.stderr and b"_probe-" in done.stderr


def test_a_folder_that_cannot_be_made_is_denied():
    document = answer("probe", "/proc/x", code=12)
    assert document["problem"]["code"] == "store.denied"
    put = next(check for check in document["checks"] if check["name"] == "put")
    assert put["outcome"] == "denied" and put["detail"].endswith("at file:///proc/x: Permission denied")


def test_a_url_that_no_path_can_be_is_wrong_usage():
    assert "[store.invalid] the store cannot be opened" in refusal("probe", "file:///tmp/q%00", code=2)


def test_a_store_that_is_away_is_an_error_and_no_verdict(tiny):
    tiny.delays_s["list"] = 5
    assert "[store.unavailable]" in refusal("probe", "s3://bucket/p", "--timeout", "1", code=12, **variables(tiny))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_probe_removes_what_it_wrote_however_long_that_takes(tiny, number):
    tiny.delays_s = {"get": 0.2, "bulk delete": 3}
    process = subprocess.Popen(
        command("probe", "s3://bucket/p", "--json"),
        env=environment(**variables(tiny)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while "get" not in tiny.asked and time.monotonic() < deadline:
        time.sleep(0.02)
    assert tiny.objects
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (stdout, tiny.objects) == (b"", {})
    assert stderr.decode().splitlines()[-1] == "interrupted"


def test_a_second_signal_ends_at_once(tiny):
    tiny.delays_s = {"get": 0.2, "bulk delete": 20}
    process = subprocess.Popen(
        command("probe", "s3://bucket/p"), env=environment(**variables(tiny)), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    while "get" not in tiny.asked and time.monotonic() < deadline:
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, time.monotonic() - began < 10) == (130, True)
    assert b"_probe-" in stderr


def test_nothing_secret_is_shown(tiny):
    tiny.denied = {"put"}
    shown = json.dumps(answer("probe", "s3://bucket/p", code=12, **variables(tiny)))
    assert NOWHERE["AWS_SECRET_ACCESS_KEY"] not in shown
