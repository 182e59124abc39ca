"""The REST interface over its real socket: who may ask, versions, sizes, problems, operations."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, ended, running

from wherry import __version__
from wherry.base.errors import Code, Failed, Refused
from wherry.model.objects import ClusterState, OperationState
from wherry.model.owner import Owner
from wherry.node.fake import FakeDriver
from wherry.service.credentials import PeerCredentials, peer_of
from wherry.service.operations import Operations, Task
from wherry.store import Store


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as service:
        yield service


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(service.place.socket))
    with httpx.Client(transport=transport, base_url="http://x", timeout=60) as client:
        yield client


def test_the_socket_is_its_owners_alone(service: Service) -> None:
    assert service.place.socket.stat().st_mode & 0o777 == 0o600


def test_an_unknown_path_is_a_problem_with_three_parts(http: httpx.Client) -> None:
    answer = http.get("/v1/nothing")
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "NOT_FOUND" and answer.json()["next"]


def test_versions_must_match(http: httpx.Client) -> None:
    assert http.get("/healthz").headers["Wherry-Version"] == __version__
    answer = http.get("/v1/clusters", headers={"Wherry-Version": "0.0.0"})
    assert answer.status_code == 503 and answer.json()["code"] == "VERSION_MISMATCH"
    assert "wherry daemon stop" in answer.json()["next"]
    assert http.get("/v1/version", headers={"Wherry-Version": "0.0.0"}).json() == {"version": __version__}


def test_a_request_that_is_too_large_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/clusters", content=b" " * (5 * 2**20))
    assert answer.status_code == 422 and "too large" in answer.json()["what"]
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"spec": 1}', b'{"spec": {}, "more": 1}', b"\xff\xfe"])
def test_a_body_that_is_not_valid_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/clusters", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and answer.json()["code"] == "USAGE"


def test_a_cluster_from_plan_to_removal(http: httpx.Client, service: Service) -> None:
    plan = http.post("/v1/clusters", json={"spec": CLUSTER, "dry_run": True})
    assert plan.status_code == 200 and "3 to create" in plan.json()["text"]
    assert http.get("/v1/clusters").json() == [] and http.get("/v1/operations").json() == []

    up = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert up["state"] == "done" and len(up["result"]["nodes"]) == 3 and up["lines"]
    assert [c["name"] for c in http.get("/v1/clusters").json()] == ["hello"]
    again = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert {step["kind"] for step in again["result"]["plan"]["steps"]} == {"keep"}
    assert http.get("/v1/nodes/hello-1").json()["usage"]["processes"] == 1

    refused = http.delete("/v1/fabric")
    assert (refused.status_code, refused.json()["code"]) == (409, "WRONG_STATE")
    down = ended(http, http.delete("/v1/clusters/hello"))
    assert down["state"] == "done" and http.get("/v1/nodes").json() == []
    assert ended(http, http.delete("/v1/fabric"))["state"] == "done"
    assert http.get("/v1/fabric").status_code == 404


def test_what_is_wrong_makes_no_operation(http: httpx.Client) -> None:
    for answer, code in (
        (http.post("/v1/clusters", json={"spec": CLUSTER | {"memroy": "1GiB"}}), "INVALID_FILE"),
        (http.post("/v1/clusters", json={"spec": CLUSTER | {"nodes": 200}}), "NO_CAPACITY"),
        (http.delete("/v1/clusters/none"), "NOT_FOUND"),
        (http.post("/v1/moves", json={"node": "none", "host": "a1"}), "NOT_FOUND"),
        (http.post("/v1/hosts/none/drain"), "NOT_FOUND"),
        (http.post("/v1/jobs", json={"cluster": "none", "argv": ["x"], "ranks": 1}), "NOT_FOUND"),
        (http.post("/v1/jobs", json={"cluster": "none", "argv": ["x"], "ranks": 0}), "USAGE"),
        (http.get("/v1/jobs", params={"cluster": "none"}), "NOT_FOUND"),
        (http.get("/v1/nodes", params={"cluster": "none"}), "NOT_FOUND"),
        (http.get("/v1/jobs/none"), "NOT_FOUND"),
        (http.get("/v1/operations/none"), "NOT_FOUND"),
    ):
        assert answer.status_code >= 400 and answer.json()["code"] == code, answer.text
    assert http.get("/v1/operations").json() == []


def test_a_move_and_its_prediction(http: httpx.Client) -> None:
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
    source = nodes[0]["host"]
    target = next(host for host in ("a1", "a2", "b1") if host != source)
    cost = http.post("/v1/moves", json={"node": "hello-0", "host": target, "dry_run": True})
    assert cost.status_code == 200 and cost.json()["predicted"]["bytes"] > 0
    moved = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": target}))
    assert moved["state"] == "done", moved["error"]
    move = moved["result"]["move"]
    assert (move["source"], move["destination"], move["phase"]) == (source, target, "done")
    assert http.get(f"/v1/moves/{move['id']}").json() == move
    assert http.post("/v1/moves", json={"node": "hello-0", "host": target}).status_code in (403, 409)


def test_drain_empties_a_host_and_restore_puts_back(http: httpx.Client) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    before = {node["name"]: node["host"] for node in http.get("/v1/nodes").json()}
    drained = ended(http, http.post("/v1/hosts/a1/drain"))
    assert drained["state"] == "done", drained["error"]
    assert all(node["host"] != "a1" for node in http.get("/v1/nodes").json())
    assert [host["name"] for host in http.get("/v1/hosts").json() if host["drained"]] == ["a1"]
    assert ended(http, http.post("/v1/hosts/a1/drain"))["result"]["moves"] == []
    assert ended(http, http.post("/v1/hosts/a1/restore"))["state"] == "done"
    assert {node["name"]: node["host"] for node in http.get("/v1/nodes").json()} == before
    assert not any(host["drained"] for host in http.get("/v1/hosts").json())


def test_a_drain_takes_what_was_on_its_way_to_the_host(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    (coming,) = (node["name"] for node in http.get("/v1/nodes").json() if node["host"] == "a2")
    driver, standing, go_on = (
        service.context.require_managers().drivers["container"],
        threading.Event(),
        threading.Event(),
    )
    assert isinstance(driver, FakeDriver)

    def on_call(name: str) -> None:
        if name == "freeze" and not standing.is_set():
            standing.set()
            go_on.wait(20)

    driver.on_call = on_call
    move = http.post("/v1/moves", json={"node": coming, "host": "a1"})
    assert standing.wait(20)
    drain = http.post("/v1/hosts/a1/drain")
    path = drain.headers["Location"]
    assert drain.status_code == 202, drain.text
    for _ in range(200):
        if "on its way to a1" in (said := http.get(path).json()["operation"]["progress"]):
            break
        time.sleep(0.05)
    assert coming in said and http.post("/v1/moves", json={"node": coming, "host": "b1"}).status_code in (403, 409)
    go_on.set()
    assert ended(http, move)["state"] == "done"
    drained = ended(http, drain)
    assert drained["state"] == "done" and coming in [one["node"] for one in drained["result"]["moves"]], drained
    assert all(node["host"] != "a1" for node in http.get("/v1/nodes").json())
    assert ended(http, http.post("/v1/hosts/a1/restore"))["state"] == "done"


def test_a_drain_that_finds_no_room_changes_nothing(http: httpx.Client) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER | {"cpus": 2}}))
    refused = http.post("/v1/hosts/a1/drain")
    assert refused.status_code == 403 and refused.json()["code"] == "NO_CAPACITY"
    assert not any(host["drained"] for host in http.get("/v1/hosts").json())


def test_a_job_and_its_output(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    body = {"cluster": "hello", "argv": ["prog", "3"], "ranks": 2, "env": {"A": "b"}}
    job = ended(http, http.post("/v1/jobs", json=body))["result"]["job"]
    assert service.jobs.environments[job["id"]] == {"A": "b"} and job["uid"] == os.getuid()
    first = http.get(f"/v1/jobs/{job['id']}/output", params={"wait": 5}).json()
    assert [chunk["stream"] for chunk in first["chunks"]] == ["stdout", "stderr"] and not first["end"]
    last = http.get(f"/v1/jobs/{job['id']}/output", params={"offset": first["next"], "wait": 5}).json()
    assert last["end"] and last["job"]["exit_code"] == 3
    assert http.delete(f"/v1/jobs/{job['id']}").json()["code"] == "WRONG_STATE"

    long = ended(http, http.post("/v1/jobs", json=body | {"argv": ["sleep"]}))["result"]["job"]
    assert ended(http, http.delete(f"/v1/jobs/{long['id']}"))["result"]["job"]["state"] == "cancelled"


def test_a_node_that_ends_by_itself_is_lost_and_repaired(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    job = {"cluster": "hello", "argv": ["sleep"], "ranks": 2}
    ended(http, http.post("/v1/jobs", json=job))
    driver: Any = service.context.require_managers().drivers["container"]
    driver.places.clear()
    service.monitor.look()
    service.monitor.look()
    assert {node["state"] for node in http.get("/v1/nodes").json()} == {"lost"}
    assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
    assert {node["state"] for node in http.get("/v1/nodes").json()} == {"running"}
    kinds = [event["kind"] for event in http.get("/v1/events").json()]
    assert kinds.count("node.lost") == kinds.count("job.node-lost") == 3
    told: Any = service.context.require_managers().jobs
    assert told.lost == [("job-1", f"hello-{index}") for index in range(3)]


def test_events_are_waited_for(http: httpx.Client, service: Service) -> None:
    last = service.context.store.add_event("test", "x", "one").id
    threading.Timer(0.2, lambda: service.context.store.add_event("test", "x", "two")).start()
    found = http.get("/v1/events", params={"after": last, "wait": 20}).json()
    assert [event["text"] for event in found] == ["two"]


# Who asks.


def test_the_peer_is_who_the_kernel_says() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == PeerCredentials(os.getuid(), os.getgid(), frozenset(os.getgroups()))


def test_only_root_may_name_another_user() -> None:
    named = Owner(uid=4242, gid=4242, home="/home/x", cwd="/tmp")
    assert PeerCredentials(0, 0, frozenset()).owner(named) == named
    assert PeerCredentials(4242, 4242, frozenset()).owner(named).cwd == "/tmp"
    with pytest.raises(Refused) as caught:
        PeerCredentials(4243, 4243, frozenset()).owner(named)
    assert caught.value.code == Code.PERMISSION


def test_a_group_may_be_let_in() -> None:
    assert not PeerCredentials(4242, 4242, frozenset()).may_ask(None)
    assert not PeerCredentials(4242, 4242, frozenset({7})).may_ask(8)
    assert PeerCredentials(4242, 4242, frozenset({7})).may_ask(7) and PeerCredentials(4242, 7, frozenset()).may_ask(7)


# Operations.


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    return Operations(Store(tmp_path / "wherry.db"))


def until_ended(operations: Operations, id: str) -> OperationState:
    thread = operations._tasks[id].thread
    assert thread
    thread.join(20)
    return operations.get(id).state


def test_an_operation_can_be_cancelled(operations: Operations) -> None:
    def body(task: Task) -> None:
        while True:
            task.stop.wait(20)
            task.check()

    id = operations.start("up", "x", body).id
    assert operations.cancel(id).id == id
    assert until_ended(operations, id) == OperationState.CANCELLED
    with pytest.raises(Refused):
        operations.cancel(id)


def test_what_is_claimed_is_not_claimed_twice(operations: Operations) -> None:
    go = threading.Event()

    def body(task: Task) -> None:
        go.wait(20)

    first = operations.start("move", "x", body, shared=["cluster x"], exclusive=["node x-1"])
    operations.start("move", "x", body, shared=["cluster x"], exclusive=["node x-2"])
    for claims in ({"shared": ["node x-1"]}, {"exclusive": ["cluster x"]}):
        with pytest.raises(Refused) as caught:
            operations.start("down", "x", body, **claims)
        assert first.id in caught.value.why
    go.set()
    assert until_ended(operations, first.id) == OperationState.DONE


def test_nobody_looks_at_what_an_operation_works_on(operations: Operations) -> None:
    go, seen = threading.Event(), list[str]()

    def body(task: Task) -> None:
        go.wait(20)

    id = operations.start("move", "x", body, shared=["cluster x"]).id
    assert not operations.while_idle("cluster x", lambda: "x", seen.append)
    assert operations.while_idle("cluster y", lambda: "y", seen.append)
    go.set()
    until_ended(operations, id)
    assert operations.while_idle("cluster x", lambda: "x", seen.append) and seen == ["y", "x"]


def test_a_look_that_takes_long_holds_up_nobody_and_is_forgotten_when_somebody_was_at_it(
    operations: Operations,
) -> None:
    seen = list[str]()

    def look() -> str:
        """A host is silent; meanwhile an operation on the cluster begins and ends."""
        id = operations.start("move", "x", lambda task: None, shared=["cluster x"]).id
        assert until_ended(operations, id) == OperationState.DONE
        return "old"

    assert not operations.while_idle("cluster x", look, seen.append) and seen == []


def test_errors_and_bugs_end_an_operation(operations: Operations) -> None:
    def fails(task: Task) -> None:
        raise Failed(Code.MOVE_FAILED, "it failed")

    def breaks(task: Task) -> None:
        raise KeyError("x")

    for body, code in ((fails, "MOVE_FAILED"), (breaks, "BUG")):
        id = operations.start("move", "x", body).id
        assert until_ended(operations, id) == OperationState.FAILED
        error = operations.get(id).error
        assert error and error["code"] == code


def test_what_a_dead_daemon_left_running_is_marked_failed(tmp_path: Path) -> None:
    first, go = Operations(Store(tmp_path / "wherry.db")), threading.Event()

    def body(task: Task) -> None:
        go.wait(20)

    id = first.start("up", "x", body).id
    second = Operations(Store(tmp_path / "wherry.db"))
    second.end_left_over()
    found = second.get(id)
    assert found.state == OperationState.FAILED and found.error and found.error["what"] == "the daemon was stopped"
    go.set()
    until_ended(first, id)


def test_recovery_ends_what_was_cut_short(tmp_path: Path) -> None:
    with (
        running(tmp_path) as service,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(service.place.socket)), base_url="http://x", timeout=60
        ) as http,
    ):
        nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
        target = next(host for host in ("a1", "a2", "b1") if host != nodes[0]["host"])
        move = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": target}))
        context, store = service.context, service.context.store
        row = store.operation(move["id"])
        cluster = store.cluster("hello")
        assert row and cluster
        cut = {"state": OperationState.RUNNING, "ended": None, "result": None}
        store.put_operation(row.model_copy(update=cut))
        store.put_operation(row.model_copy(update=cut | {"id": "op-2", "target": "hello-1 to a1"}))
        store.put_cluster(cluster.model_copy(update={"state": ClusterState.MAKING}))
        context.recover()
        first, second, after = store.operation(move["id"]), store.operation("op-2"), store.cluster("hello")
        assert first and first.state == OperationState.DONE and first.result
        assert second and second.state == OperationState.FAILED
        assert after and after.state == ClusterState.PARTLY and "daemon" in after.reason
