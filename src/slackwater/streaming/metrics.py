"""Prometheus metrics of the pipelines of this process, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ..errors import Conflict, InvalidInput
from ..extras import needed_for
from ..network import format_address, parse_address
from .progress import BUCKETS_S, Progress, by_verb

if TYPE_CHECKING:
    from prometheus_client import Metric

_servers: dict[tuple[str, int], _Server] = {}
_lock = threading.Lock()


class Endpoint:
    """One pipeline's place at a server that it may share with others."""

    def __init__(self, server: _Server, pipeline: str) -> None:
        self._server, self._pipeline = server, pipeline
        self.address = format_address(*server.at)

    def show(self, progress: Progress) -> None:
        """Serve these figures from now on."""
        self._server.pipelines[self._pipeline] = progress

    def close(self) -> None:
        """Serve them no more; the server goes with its last pipeline. A second time does nothing."""
        with _lock:
            self._server.pipelines.pop(self._pipeline, None)
            if not self._server.pipelines and _servers.pop(self._server.at, None) is not None:
                self._server.close()


def parse_metrics(given: str | int) -> tuple[str, int]:
    """Parse ``9109``, ``127.0.0.1:9109`` or ``[::1]:9109``; a port alone is one of the loopback interface."""
    found = None if isinstance(given, bool) else parse_address(str(given))
    if found is None:
        raise InvalidInput(
            f"{str(given)[:100]!r} is not an address to serve metrics at",
            code="option.invalid",
            hint='.option("metrics", "127.0.0.1:9109"), or a port alone; 0 takes any that is free',
        )
    return found


def serve(given: str | int, pipeline: str) -> Endpoint:
    """Open an address for a pipeline, which may take its time to show anything there."""
    host, port = parse_metrics(given)
    with _lock:
        server = _servers.get((host, port)) or _Server(host, port)
        if pipeline in server.pipelines:
            raise Conflict(
                f"{format_address(*server.at)} serves metrics of a pipeline {pipeline!r} already",
                code="pipeline.running",
                hint="give this one another port",
            )
        server.pipelines[pipeline] = None
        _servers[server.at] = server
    return Endpoint(server, pipeline)


class _Server:
    def __init__(self, host: str, port: int) -> None:
        with needed_for("the option metrics", "metrics"):
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
        self.pipelines: dict[str, Progress | None] = {}
        registry = CollectorRegistry()
        registry.register(cast(Any, self))
        try:
            self._http, self._thread = start_http_server(port, host, registry)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no host can have this name"
            raise InvalidInput(
                f"metrics cannot be served at {format_address(host, port)}: {reason}",
                code="option.invalid",
                hint="choose another port; 0 takes any that is free",
            ) from None
        self.at = (host, int(self._http.server_port))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Give the figures of this moment, as the library asks for them with each scrape."""
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        with _lock:
            shown = {name: progress for name, progress in self.pipelines.items() if progress is not None}
        for name, (text, read) in (_GAUGES | _COUNTERS).items():
            make = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            family = make(name, text, labels=["pipeline"])
            for pipeline, progress in shown.items():
                if (value := read(progress)) is not None:
                    family.add_metric([pipeline], value)
            yield family
        requests = CounterMetricFamily("slackwater_requests", "Requests to the store", labels=["pipeline", "verb"])
        durations = HistogramMetricFamily(
            "slackwater_checkpoint_duration_seconds", "From capture to settled", labels=["pipeline"]
        )
        for pipeline, progress in shown.items():
            for verb, count in by_verb(progress.requests()).items():
                requests.add_metric([pipeline, verb], count)
            figures = progress.figures
            within = zip(map(str, BUCKETS_S), map(float, figures.within), strict=True)
            buckets = [*within, ("+Inf", float(figures.checkpoints_total))]
            durations.add_metric([pipeline], buckets, figures.duration_s_total)
        yield requests
        yield durations


def _age_s(progress: Progress) -> float | None:
    age_ms = progress.age_ms()
    return None if age_ms is None else age_ms / 1000


_GAUGES: dict[str, tuple[str, Callable[[Progress], float | None]]] = {
    "slackwater_epoch": ("Newest settled epoch", lambda p: p.figures.epoch),
    "slackwater_checkpoint_age_seconds": ("Age of the newest settled checkpoint", _age_s),
    "slackwater_state_bytes": ("All that the newest checkpoint needs", lambda p: p.figures.full_bytes),
    "slackwater_epochs_in_flight": ("Epochs staged and not settled", lambda p: p.epochs_in_flight()),
}
_COUNTERS: dict[str, tuple[str, Callable[[Progress], float | None]]] = {
    "slackwater_checkpoints": ("Checkpoints settled", lambda p: p.figures.checkpoints_total),
    "slackwater_checkpoint_failures": ("Checkpoints failed", lambda p: p.figures.failures_total),
    "slackwater_new_bytes": ("Bytes stored by checkpoints", lambda p: p.figures.new_bytes_total),
}
