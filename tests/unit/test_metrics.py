"""Metrics over HTTP, as Prometheus reads them."""

from __future__ import annotations

import http.client
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

import slackwater as sw
from slackwater.clock import SystemClock
from slackwater.protocol.checkpoint import CheckpointReport
from slackwater.store import Requests
from slackwater.streaming.metrics import Endpoint, parse_metrics, serve
from slackwater.streaming.progress import Progress


def scrape(address: str) -> dict[tuple[str, ...], float]:
    """Read all samples: a name, the pipeline and what other label there is → the value."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, s.labels.pop("pipeline"), *s.labels.values()): s.value for s in samples}


def report(epoch: int, took_ms: int) -> CheckpointReport:
    return CheckpointReport(
        epoch=epoch,
        checkpoint_id=SystemClock().checkpoint_id(),
        micro_batch=epoch,
        new_files=2,
        new_file_bytes=300,
        new_bytes=200,
        full_bytes=1000 * epoch,
        durations_ms={"capture": 0, "append": took_ms},
        objects=frozenset(),
    )


def progress() -> Progress:
    return Progress(SystemClock(), None, Requests(puts=7, gets=3), lambda: 2)


def test_every_figure_is_served_in_seconds_bytes_and_totals():
    endpoint, run = serve(0, "orders"), progress()
    try:
        endpoint.show(run)
        assert ("slackwater_checkpoint_age_seconds", "orders") not in scrape(endpoint.address)
        run.note_settled(report(1, took_ms=40), Requests(puts=4))
        run.note_settled(report(2, took_ms=700), Requests(puts=4))
        run.note_failed(sw.Unavailable("away", code="store.unavailable"))
        found = scrape(endpoint.address)
    finally:
        endpoint.close()
    assert 0 <= found.pop(("slackwater_checkpoint_age_seconds", "orders")) < 5
    buckets = {key[-1]: value for key, value in found.items() if key[0].endswith("_bucket")}
    assert (buckets["0.025"], buckets["0.05"], buckets["0.5"], buckets["1.0"], buckets["+Inf"]) == (0, 1, 1, 2, 2)
    assert {key: value for key, value in found.items() if not key[0].endswith("_bucket")} == {
        ("slackwater_epoch", "orders"): 2,
        ("slackwater_state_bytes", "orders"): 2000,
        ("slackwater_epochs_in_flight", "orders"): 2,
        ("slackwater_checkpoints_total", "orders"): 2,
        ("slackwater_checkpoint_failures_total", "orders"): 1,
        ("slackwater_new_bytes_total", "orders"): 400,
        ("slackwater_requests_total", "orders", "put"): 7,
        ("slackwater_requests_total", "orders", "get"): 3,
        ("slackwater_requests_total", "orders", "list"): 0,
        ("slackwater_requests_total", "orders", "delete"): 0,
        ("slackwater_checkpoint_duration_seconds_count", "orders"): 2,
        ("slackwater_checkpoint_duration_seconds_sum", "orders"): 0.74,
    }


def epochs_in_flight_of(endpoint: Endpoint) -> set[str]:
    return {key[1] for key in scrape(endpoint.address) if key[0] == "slackwater_epochs_in_flight"}


def test_pipelines_share_an_address_and_the_server_goes_with_the_last():
    first = serve("127.0.0.1:0", "orders")
    second = serve(first.address, "clicks")
    assert first.address == second.address
    with pytest.raises(sw.Conflict, match=r"\[pipeline.running\]"):
        serve(first.address, "orders")
    first.show(progress())
    second.show(progress())
    assert epochs_in_flight_of(second) == {"orders", "clicks"}
    first.close()
    assert epochs_in_flight_of(second) == {"clicks"}
    second.close()
    second.close()
    with pytest.raises(ConnectionRefusedError):
        scrape(second.address)
    again = serve(first.address, "orders")
    again.close()


def test_an_address_that_cannot_be_had_is_a_typed_error():
    in_use = pytest.raises(sw.InvalidInput, match=r"\[option.invalid\].*Address already in use")
    with socket.create_server(("127.0.0.1", 0)) as taken, in_use:
        serve(taken.getsockname()[1], "orders")
    for host in ("a..b", "x" * 70):
        with pytest.raises(sw.InvalidInput, match=r"\[option.invalid\].*no host can have this name"):
            serve(f"{host}:0", "orders")
    with pytest.raises(sw.InvalidInput, match=r"\[option.invalid\]"):
        serve("203.0.113.1:0", "orders")


@pytest.mark.parametrize("given", ["", "localhost", ":9109", "127.0.0.1:", "127.0.0.1:65536", "a:-1", True, "²"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(sw.InvalidInput, match=r"\[option.invalid\]"):
        parse_metrics(given)


def test_a_port_alone_is_one_of_the_loopback_interface():
    assert parse_metrics(9109) == parse_metrics("9109") == ("127.0.0.1", 9109)
    assert parse_metrics("[::1]:9109") == ("::1", 9109)
    assert parse_metrics("0.0.0.0:9109") == ("0.0.0.0", 9109)
