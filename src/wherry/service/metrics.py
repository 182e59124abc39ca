"""The metrics that Prometheus reads at `/metrics`: the state of the instance, and counts since the daemon began.

Gauges are counted in the records when they are asked for. Counters and histograms of operations and moves follow the
events, so an operation or move is counted once, whatever caller began it. Nothing is measured while nobody asks,
except the seconds of requests.
"""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wherry.base.version import __version__
from wherry.model.records import ClusterState, Event, JobState, NodeState
from wherry.store import Store

_DOWNTIME = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_REQUEST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_OPERATION = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Upper bounds of buckets, in seconds."""
_MAX_EVENTS = 1000
"""Events that are read at once."""
disable_created_metrics()


class Metrics(Collector):
    """The metrics of one daemon. Safe from several threads."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._registry = CollectorRegistry()
        text, labels = "Time from a request to its answer; long polls are not in it", ("method", "route", "status")
        self._requests = Histogram("wherry_request_seconds", text, labels, buckets=_REQUEST, registry=self._registry)
        self._operations = Histogram(
            "wherry_operation_seconds",
            "Duration of operations that ended",
            ("kind", "state"),
            buckets=_OPERATION,
            registry=self._registry,
        )
        text = "Time from the freeze of a node to its thaw, of moves that were done"
        self._downtime = Histogram("wherry_move_downtime_seconds", text, buckets=_DOWNTIME, registry=self._registry)
        text = "Moves that ended: done, or rolled back"
        self._moves = Counter("wherry_moves", text, ("outcome",), registry=self._registry)
        self._bytes = Counter("wherry_move_bytes", "Bytes that moves sent which were done", registry=self._registry)
        for outcome in _OUTCOMES.values():
            self._moves.labels(outcome)
        self._followed = store.newest_event_id()
        self._registry.register(self)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request that was answered. `route` has names of parameters, not their values."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        with self._lock:
            self._follow()
            return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The gauges, for `text`."""
        yield _gauge("wherry_info", "The daemon's version", "version", {__version__: 1})
        clusters = Counts(str(cluster.state) for cluster in self._store.clusters())
        yield _gauge("wherry_clusters", "Clusters by state", "state", _all(ClusterState, clusters))
        nodes = Counts(str(node.state) for node in self._store.nodes())
        yield _gauge("wherry_nodes", "Nodes by state", "state", _all(NodeState, nodes))
        jobs = _all(JobState, self._store.job_states())
        yield _gauge("wherry_jobs", "Jobs by state; of ended jobs the newest are kept", "state", jobs)
        running = Counts(operation.kind for operation in self._store.operations(running=True))
        yield _gauge("wherry_operations_running", "Operations under way by kind", "kind", running)

    def _follow(self) -> None:
        while events := self._store.events(self._followed, _MAX_EVENTS):
            for event in events:
                self._count(event)
            self._followed = events[-1].id

    def _count(self, event: Event) -> None:
        data = event.data
        if event.kind == "operation" and "seconds" in data:
            self._operations.labels(str(data["command"]), str(data["state"])).observe(float(str(data["seconds"])))
        if outcome := _OUTCOMES.get(event.kind):
            self._moves.labels(outcome).inc()
            self._bytes.inc(float(str(data.get("bytes") or 0)))
            if (downtime := data.get("downtime")) is not None:
                self._downtime.observe(float(str(downtime)))


_OUTCOMES = {"move.done": "done", "move.rolled-back": "rolled back"}
"""Kinds of events."""


def _all(states: type[ClusterState | NodeState | JobState], counted: Mapping[str, int]) -> dict[str, int]:
    """A count for each state, also of states that nothing is in."""
    return {str(state): counted.get(str(state), 0) for state in states}


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
