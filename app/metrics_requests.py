"""What this process counts about its own requests. Others beside it count theirs."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.process_collector import ProcessCollector

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"  # any method or path that is no operation's: whoever asks cannot make up series
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

disable_created_metrics()  # type: ignore[no-untyped-call]

CONNECTIONS = CollectorRegistry()  # of this process, which are there before its application
OPEN_CONNECTIONS = Gauge("grasp_connections", "Connections that are open", registry=CONNECTIONS)
CLOSED_CONNECTIONS = Counter(
    "grasp_connections_closed",
    "Connections that the service cut off: waiting too long for a head, a body or a reader, or"
    " beyond a limit, in all or of one address",
    ["reason"],
    registry=CONNECTIONS,
)
for _reason in ("head", "body", "reader", "limit", "address"):
    CLOSED_CONNECTIONS.labels(_reason)


class RequestMetrics:
    """Counts requests by operation, never by the path that was asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "grasp_request_seconds",
            "Time until the answer began, by method, path of the operation and status",
            ["method", "route", "status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._received = self._counter("grasp_received_bytes", "Bytes of bodies that came in")
        self._sent = self._counter("grasp_sent_bytes", "Bytes of bodies that were sent")

    def received(self, count: int) -> None:
        self._received.inc(count)

    def sent(self, count: int) -> None:
        self._sent.inc(count)

    def answered(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._seconds.labels(method, route_of(scope), str(status)).observe(seconds)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, registry=self.registry)


def route_of(scope: Mapping[str, Any]) -> str:
    """The path of the operation that was chosen, with its parameters by name."""
    return str(getattr(scope.get("route"), "path", OTHER))
