"""The metrics for Prometheus, and that the dashboard asks for no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_service import CLUSTER, Service

from wherry.base.errors import Code, Failed
from wherry.client import Client
from wherry.service.metrics import Metrics
from wherry.store import Store

DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana-dashboard.json"


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and by the values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_the_state_of_the_instance(service: Service, http: httpx.Client) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
    answer = http.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    found = samples(answer.text)
    assert found["wherry_clusters"][("running",)] == 1 and found["wherry_clusters"][("partly",)] == 0
    assert found["wherry_nodes"][("running",)] == 3 and found["wherry_nodes"][("lost",)] == 0
    assert found["wherry_jobs"][("running",)] == 0
    assert found["wherry_operation_seconds_count"][("up", "done")] == 1
    assert samples(http.get("/metrics").text)["wherry_operation_seconds_count"][("up", "done")] == 1


def test_requests_by_route(service: Service, http: httpx.Client) -> None:
    for path in ("/v1/clusters", "/v1/nodes/no-1", "/v1/nodes/no-2", "/nowhere", "/other", "/v1/events?wait=0.1"):
        http.get(path)
    found = samples(http.get("/metrics").text)["wherry_request_seconds_count"]
    assert found[("GET", "/v1/clusters", "200")] == 1
    assert found[("GET", "/v1/nodes/{name}", "404")] == 2, "one series, whatever was asked for"
    assert found[("GET", "none", "404")] == 2
    assert not [labels for labels in found if labels[1] == "/v1/events"], "a long poll sleeps on purpose"


def test_moves_of_this_daemon_are_counted_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    store.add_event("move.done", "a-0", "before this daemon", bytes=1, downtime=9.0)
    metrics = Metrics(store)
    for downtime in (0.04, 0.3, None):
        store.add_event("move.done", "a-0", "", move="mv", bytes=100, downtime=downtime)
    store.add_event("move.rolled-back", "a-0", "", move="mv")
    metrics.text()
    found = samples(metrics.text().decode())
    assert found["wherry_moves_total"] == {("done",): 3, ("rolled back",): 1}
    assert found["wherry_move_bytes_total"][()] == 300
    buckets = found["wherry_move_downtime_seconds_bucket"]
    assert (buckets[("0.05",)], buckets[("0.5",)], buckets[("+Inf",)]) == (1, 2, 2)


def test_the_dashboard_asks_for_what_exists(service: Service, http: httpx.Client) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
    http.get("/metrics")  # the first request whose seconds the next one has
    known = samples(http.get("/metrics").text).keys()
    known |= {"wherry_operations_running"}  # of which there is no sample while nothing runs
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert asked
    for expression in asked:
        names = re.findall(r"wherry_\w+", expression)
        assert names and set(names) <= known, expression


def test_healthz_is_of_the_database_too(service: Service, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}

    def fails() -> int:
        raise Failed(Code.FAILED, "the instance's database cannot be read", "the server is gone", "")

    monkeypatch.setattr(service.context.store, "newest_event_id", fails)
    answer = http.get("/healthz")
    assert answer.status_code == 500 and "the server is gone" in answer.json()["detail"]
