"""Nodes that are ended and restarted: `POST /v1/restarts`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, ended

from wherry.model.records import ClusterState, Node, NodeState
from wherry.node.fake import FakeDriver


@pytest.fixture
def driver(service: Service, http: httpx.Client) -> FakeDriver:
    """Of a cluster of three nodes; it has only the calls from now on."""
    assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
    assert service.context.managers
    found = service.context.managers.drivers["container"]
    assert isinstance(found, FakeDriver)
    found.calls.clear()
    return found


def restarted(http: httpx.Client, *nodes: str, **body: Any) -> dict[str, Any]:
    return ended(http, http.post("/v1/restarts", json={"nodes": nodes, **body}))


def node(service: Service, name: str) -> Node:
    found = service.context.store.node(name)
    assert found
    return found


def state(service: Service) -> ClusterState:
    found = service.context.store.cluster("hello")
    assert found
    return found.state


def test_one_node_is_started_anew_where_it_was(service: Service, http: httpx.Client, driver: FakeDriver) -> None:
    before = node(service, "hello-1")
    done = restarted(http, "hello-1", "hello-1")
    assert (done["state"], done["kind"], done["target"]) == ("done", "restart", "hello-1"), done["error"]
    assert [call for call in driver.calls if call in ("stop", "start")] == ["stop", "start"]
    assert node(service, "hello-1") == before and state(service) is ClusterState.RUNNING
    assert [one["name"] for one in done["result"]["nodes"]] == ["hello-1"]
    assert "cluster.restart" in [event.kind for event in service.context.store.events()]


def test_jobs_there_are_ended_only_when_that_is_said(service: Service, http: httpx.Client, driver: FakeDriver) -> None:
    job = ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1}))["result"]["job"]
    refused = http.post("/v1/restarts", json={"nodes": ["hello-0"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "WRONG_STATE"), refused.text
    assert job["id"] in refused.text and "wherry node restart hello-0 --yes" in refused.json()["next"]
    assert not driver.calls and not service.jobs.lost
    service.jobs.update(job["id"], lambda found: found.model_copy(update={"nodes": ("hello-2",)}))
    assert restarted(http, "hello-0")["state"] == "done", "it has no ranks there"
    assert restarted(http, "hello-2", end_jobs=True)["state"] == "done"
    assert service.jobs.lost == [(job["id"], "hello-2")]


def test_what_does_not_start_is_lost_and_can_be_restarted(
    service: Service, http: httpx.Client, driver: FakeDriver
) -> None:
    driver.fail_at["start"] = "out of memory"
    failed = restarted(http, "hello-0", "hello-1")
    assert (failed["state"], failed["error"]["code"]) == ("failed", "PARTLY_DONE")
    assert "out of memory" in failed["error"]["why"] and state(service) is ClusterState.PARTLY
    (lost,) = [one for one in service.context.store.nodes() if one.state is NodeState.LOST]
    other = {"hello-0": "hello-1", "hello-1": "hello-0"}[lost.name]
    assert restarted(http, other)["state"] == "done" and state(service) is ClusterState.PARTLY, "one is lost still"
    assert restarted(http, lost.name)["state"] == "done"
    assert node(service, lost.name).state is NodeState.RUNNING and state(service) is ClusterState.RUNNING


def test_refusals(service: Service, http: httpx.Client, driver: FakeDriver) -> None:
    spec = {**CLUSTER, "name": "other", "nodes": 1}
    assert ended(http, http.post("/v1/clusters", json={"spec": spec}))["state"] == "done"
    driver.calls.clear()
    for nodes, status, code in (
        (["hello-0", "other-0"], 422, "USAGE"), (["hello-9"], 404, "NOT_FOUND"), ([], 422, "USAGE"),
        (["hello-0"] * 251, 422, "USAGE"),
    ):  # fmt: skip
        answer = http.post("/v1/restarts", json={"nodes": nodes})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    removing = service.context.store.cluster("other")
    assert removing
    service.context.store.put_cluster(removing.model_copy(update={"state": ClusterState.REMOVING}))
    assert http.post("/v1/restarts", json={"nodes": ["other-0"]}).json()["code"] == "WRONG_STATE"
    assert not driver.calls
