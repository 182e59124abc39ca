"""Clusters that wait for room: order, backfill, quotas, cancellation, the next daemon, fifty clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from accounts_world import UNLIMITED, Accounts
from rest_service import CLUSTER, Service, ended

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.model.accounts import Role
from wherry.model.records import OperationState
from wherry.service import cluster_queue
from wherry.service.cluster_queue import ClusterQueue, resume
from wherry.service.context import ServiceContext
from wherry.service.operations import Operations

LARGE = {**CLUSTER, "cpus": 2}
"""All three hosts."""
SMALL = {**CLUSTER, "nodes": 1, "cpus": 2}


def enter(http: httpx.Client, name: str, spec: dict[str, Any] = SMALL, **more: Any) -> str:
    answer = http.post("/v1/clusters", json={"spec": {**spec, "name": name}, "wait": True, **more})
    assert answer.status_code == 202 and answer.json()["state"] == "waiting", answer.text
    id: str = answer.json()["id"]
    return id


def state(http: httpx.Client, id: str) -> str:
    found: str = http.get(f"/v1/operations/{id}").json()["operation"]["state"]
    return found


def run(service: Service, queue: ClusterQueue, times: int = 1) -> None:
    """Looks so many times, and waits for the operations that run."""
    for _ in range(times):
        queue.run_once()
        for operation in service.context.store.operations(running=True):
            if service.context.operations.get(operation.id).state is OperationState.RUNNING:
                service.context.operations.wait(operation.id, 60)


def down(http: httpx.Client, name: str) -> None:
    assert ended(http, http.delete(f"/v1/clusters/{name}"))["state"] == "done"


def up(http: httpx.Client) -> list[str]:
    return [cluster["name"] for cluster in http.get("/v1/clusters").json()]


def order(http: httpx.Client) -> list[str]:
    return [entry["cluster"] for entry in http.get("/v1/queue").json()]


@pytest.fixture
def queue(service: Service) -> ClusterQueue:
    return ClusterQueue(service.context)


def test_a_cluster_waits_for_room(http: httpx.Client, service: Service, queue: ClusterQueue) -> None:
    first, second = enter(http, "first", LARGE), enter(http, "second")
    run(service, queue, 2)
    assert (state(http, first), state(http, second)) == ("done", "waiting") and up(http) == ["first"]
    operation = http.get("/v1/operations", params={"running": True}).json()
    assert [one["id"] for one in operation] == [second] and "position 1 of 1" in operation[0]["progress"]
    (entry,) = http.get("/v1/queue").json()
    assert (entry["cluster"], entry["position"], entry["starts"]) == ("second", 1, None) and "CPUs" in entry["why"]
    assert service.context.operations.conflicting_operation(exclusive=["fabric", "cluster second"]) is None
    down(http, "first")
    run(service, queue)
    found = http.get(f"/v1/operations/{second}").json()
    assert found["operation"]["state"] == "done" and found["operation"]["result"]["cluster"]["name"] == "second"
    assert any("there is room" in line for line in found["lines"])
    run(service, queue)
    assert service.context.store.queue.all() == []


def test_the_order_is_kept_also_from_those_who_do_not_wait(
    http: httpx.Client, service: Service, queue: ClusterQueue
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": {**SMALL, "name": "one"}}))
    enter(http, "large", LARGE)
    enter(http, "small")
    enter(http, "urgent", LARGE, priority=3)
    run(service, queue)
    assert order(http) == ["urgent", "large", "small"] and up(http) == ["one"]
    answer = http.post("/v1/clusters", json={"spec": {**SMALL, "name": "pushy"}})
    assert answer.json()["code"] == "NO_CAPACITY" and "--wait" in answer.json()["next"]
    down(http, "one")
    run(service, queue)
    assert up(http) == ["urgent"]


def test_one_with_a_lease_goes_ahead_where_it_delays_none(
    http: httpx.Client, service: Service, queue: ClusterQueue
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": {**SMALL, "name": "one", "lease": "8h"}}))
    enter(http, "large", LARGE)
    enter(http, "long", {**SMALL, "lease": "9h"})
    enter(http, "short", {**SMALL, "lease": "1h"})
    run(service, queue, 2)
    assert up(http) == ["one", "short"]
    large, long = http.get("/v1/queue").json()
    assert large["starts"] == http.get("/v1/clusters").json()[0]["lease"]["ends"] and long["starts"] is None
    ended(http, http.post("/v1/clusters", json={"spec": {**SMALL, "name": "brief", "lease": "1h"}}))
    assert up(http) == ["brief", "one", "short"], "it does not wait, and delays nobody"


def test_what_no_wait_helps_is_refused(http: httpx.Client, service: Service) -> None:
    for body, code in (
        ({"spec": {**LARGE, "nodes": 4}, "wait": True}, "NO_CAPACITY"),
        ({"spec": {**LARGE, "hosts": ["a9"]}, "wait": True}, "NOT_FOUND"),
        ({"spec": SMALL, "priority": 1}, "USAGE"),
        ({"spec": SMALL, "wait": True, "priority": 101}, "USAGE"),
    ):
        assert http.post("/v1/clusters", json=body).json()["code"] == code, body
    enter(http, "hello")
    answer = http.post("/v1/clusters", json={"spec": SMALL, "wait": True})
    assert answer.json()["code"] == "NAME_TAKEN" and order(http) == ["hello"]


def test_one_that_waits_is_cancelled(http: httpx.Client, service: Service, queue: ClusterQueue) -> None:
    enter(http, "first", LARGE)
    run(service, queue)
    second, third = enter(http, "second"), enter(http, "third")
    assert http.post(f"/v1/operations/{second}/cancel").status_code == 202
    waiting.until(lambda: state(http, second) == "cancelled", "the end of the operation")
    run(service, queue)
    assert order(http) == ["third"] and [one.operation for one in service.context.store.queue.all()] == [third]
    assert http.post(f"/v1/operations/{second}/cancel").json()["code"] == "WRONG_STATE"


def test_a_start_for_which_there_is_no_room_any_more_waits_on(
    http: httpx.Client, service: Service, queue: ClusterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, clusters = enter(http, "hello"), service.context.require_managers().clusters
    with monkeypatch.context() as patch:
        patch.setattr(clusters, "plan", Mock(side_effect=Refused(Code.NO_CAPACITY, "it no longer fits", "", "")))
        run(service, queue)
    run(service, queue)
    assert state(http, id) == "waiting" and "it no longer fits" in http.get("/v1/queue").json()[0]["why"] + str(
        http.get(f"/v1/operations/{id}").json()["operation"]["progress"]
    )
    monkeypatch.setattr(cluster_queue, "_AGAIN", 0.0)
    queue._refused.clear()
    run(service, queue)
    assert state(http, id) == "done"


def test_a_start_that_fails_ends(http: httpx.Client, service: Service, queue: ClusterQueue) -> None:
    id, clusters = enter(http, "hello"), service.context.require_managers().clusters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "plan", Mock(side_effect=Refused(Code.NAME_TAKEN, "another has it", "", "")))
        run(service, queue, 2)
    assert state(http, id) == "failed" and service.context.store.queue.all() == []


def next_daemon(service: Service) -> ServiceContext:
    """The context as the next daemon finds it."""
    context = service.context
    context.operations = Operations(context.store, context.wakeups.wake)
    context.recover(resume)
    return context


def test_the_next_daemon_continues(http: httpx.Client, service: Service, queue: ClusterQueue) -> None:
    """Clusters that waited, or were being started when the daemon was killed; not operations that had ended."""
    store = service.context.store
    first, second, third = enter(http, "first"), enter(http, "second"), enter(http, "third")
    killed = service.context.operations.get(second).model_copy(update={"state": OperationState.RUNNING})
    store.put_operation(killed)
    store.put_operation(service.context.operations.get(third).model_copy(update={"state": OperationState.CANCELLED}))
    lost = killed.model_copy(update={"id": "op-lost", "state": OperationState.WAITING})
    store.put_operation(lost)
    context = next_daemon(service)
    assert order(http) == ["first", "second"]
    assert [context.operations.get(id).state for id in (first, second, third, "op-lost")] == [
        OperationState.WAITING, OperationState.WAITING, OperationState.CANCELLED, OperationState.FAILED,
    ]  # fmt: skip
    run(service, ClusterQueue(context), 3)
    assert (state(http, first), state(http, second)) == ("done", "done") and up(http) == ["first", "second"]


def test_a_daemon_that_is_stopped_leaves_the_queue_to_the_next(
    http: httpx.Client, service: Service, queue: ClusterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, clusters = enter(http, "hello"), service.context.require_managers().clusters
    operations = service.context.operations

    def stopped(*_: object) -> None:
        operations._closing.set()
        raise Failed(Code.CANCELLED, "hello is up in part", "", "")

    with monkeypatch.context() as patch:
        patch.setattr(clusters, "apply", stopped)
        run(service, queue)
    operations.close(1)
    assert service.context.store.operation(id).state is OperationState.WAITING  # type: ignore[union-attr]
    run(service, ClusterQueue(next_daemon(service)))
    assert state(http, id) == "done"


@pytest.fixture
def accounts(service: Service) -> Accounts:
    found = Accounts(service)
    found.allow()
    return found


def test_quotas_count_at_the_entry_and_at_the_start(accounts: Accounts, queue: ClusterQueue) -> None:
    accounts.add("ann", quota=UNLIMITED.model_copy(update={"nodes": 1}))
    accounts.add("bob")

    def ask(who: str, name: str, nodes: int = 1, **more: Any) -> httpx.Response:
        spec = {**CLUSTER, "name": name, "nodes": nodes}
        return accounts.ask(who, "POST", "/v1/clusters", {"spec": spec, "wait": True, **more})

    assert ask("ann", "large", 2).json()["code"] == "QUOTA_EXCEEDED"
    assert ask("ann", "urgent", priority=1).json()["code"] == "PERMISSION"
    for who, name in (("ann", "ann1"), ("ann", "ann2"), ("bob", "bob1")):
        assert ask(who, name).status_code == 202
    run(accounts.service, queue, 3)
    assert [cluster.name for cluster in accounts.service.context.store.clusters()] == ["ann1", "bob1"]
    (entry,) = accounts.ask("ann", "GET", "/v1/queue").json()
    assert entry["cluster"] == "ann2" and "the quota of ann: it would have 2 nodes of 1" in entry["why"]
    assert accounts.ask("bob", "GET", "/v1/queue").json() == []
    accounts.done("ann", "DELETE", "/v1/clusters/ann1")
    run(accounts.service, queue)
    assert accounts.ask("ann", "GET", "/v1/queue").json() == []


def test_turns_are_fair_between_accounts(accounts: Accounts, queue: ClusterQueue) -> None:
    for name in ("ann", "bob"):
        accounts.add(name)
    accounts.done("root", "POST", "/v1/clusters", {"spec": LARGE})
    for who, name in (("ann", "a1"), ("ann", "a2"), ("ann", "a3"), ("bob", "b1")):
        spec = {**SMALL, "name": name}
        assert accounts.ask(who, "POST", "/v1/clusters", {"spec": spec, "wait": True}).status_code == 202
    assert [entry["cluster"] for entry in accounts.ask("root", "GET", "/v1/queue").json()] == ["a1", "b1", "a2", "a3"]


def test_fifty_clients_at_once_start_in_order_and_fit(accounts: Accounts, queue: ClusterQueue) -> None:
    names = [f"c{number}" for number in range(50)]
    for who in ("ann", "bob"):
        accounts.add(who, Role.ADMIN)

    async def client(number: int) -> httpx.Response:
        body = {"spec": {**SMALL, "name": names[number], "cpus": 1}, "wait": True}
        return await accounts.asked(("ann", "bob")[number % 2], "POST", "/v1/clusters", body)

    async def all_at_once() -> list[httpx.Response]:
        return await asyncio.gather(*map(client, range(50)))

    answers = asyncio.run(all_at_once())
    assert {answer.status_code for answer in answers} == {202}
    store = accounts.service.context.store
    entered = [one.spec.name for one in store.queue.all()]
    assert sorted(entered) == sorted(names)
    expected = [entry["cluster"] for entry in accounts.ask("root", "GET", "/v1/queue").json()]
    run(accounts.service, queue, 8)
    begun = {cluster.name for cluster in store.clusters()}
    assert begun == set(expected[:6]), "two cores on each of three hosts"


def test_most_clusters_of_a_user_that_wait(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.service.operations._MAX_RUNNING", 2)
    accounts.add("ann")
    codes: list[Callable[[], int] | int] = []
    for number in range(3):
        spec = {**SMALL, "name": f"c{number}"}
        codes.append(accounts.ask("ann", "POST", "/v1/clusters", {"spec": spec, "wait": True}).status_code)
    assert codes == [202, 202, 429]
