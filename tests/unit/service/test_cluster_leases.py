"""Leases of clusters: limits, warning, end, extension, the next daemon, undecided moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from accounts_world import UNLIMITED, Accounts
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_service import CLUSTER, Service, ended

from properties import examples
from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.cluster.owners_quota import usage
from wherry.model.accounts import LeaseLimits, Quota, Role
from wherry.model.records import ClusterLease, Move, Phase
from wherry.schedule.leases import ends_at, lease_for, limits_of, warns_at
from wherry.service import cluster_ends
from wherry.service.cluster_leases import ClusterLeases

HOUR = 3600.0


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = now()

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def hand() -> Hand:
    return Hand()


def up(http: httpx.Client, **keys: Any) -> dict[str, Any]:
    found = ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, **keys}}))
    assert found["state"] == "done", found["error"]
    lease: dict[str, Any] = found["result"]["cluster"]["lease"]
    return lease


def events(http: httpx.Client) -> dict[str, dict[str, Any]]:
    return {event["kind"]: event for event in http.get("/v1/events").json()}


def settle(service: Service) -> None:
    """Waits for the operations under way."""
    for operation in service.context.operations.all(running=True):
        service.context.operations.wait(operation.id, 60)


def names(http: httpx.Client) -> list[str]:
    return [cluster["name"] for cluster in http.get("/v1/clusters").json()]


def test_files_give_a_lease_and_root_has_none_otherwise(http: httpx.Client, service: Service) -> None:
    service.context.store.put_setting("leases.limits", LeaseLimits(usual=60.0, longest=60.0).model_dump_json())
    assert up(http, name="without") is None
    lease = up(http, name="with", lease="8h")
    assert lease["length"] == 8 * HOUR and lease["ends"] == pytest.approx(now() + 8 * HOUR, abs=100)
    assert up(http, name="with", lease="8h") == lease == up(http, name="with"), "the same file changes nothing"
    assert up(http, name="with", lease="9h")["length"] == 9 * HOUR
    assert up(http, name="with", lease="none") is None
    plan = http.post("/v1/clusters", json={"spec": {**CLUSTER, "lease": "90m"}, "dry_run": True}).json()
    assert "remove the cluster 1.5h later" in plan["text"]


@pytest.mark.parametrize("lease", ["1s", "400d", 5, "soon", True, "8h none"])
def test_leases_that_are_none_are_refused(http: httpx.Client, lease: object) -> None:
    answer = http.post("/v1/clusters", json={"spec": {**CLUSTER, "lease": lease}})
    assert answer.json()["code"] == "INVALID_FILE" and "lease" in answer.json()["why"]


def test_a_cluster_is_warned_of_and_ends_with_its_jobs(http: httpx.Client, service: Service, hand: Hand) -> None:
    up(http, lease="8h")
    ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 2}))
    cancel = service.jobs.cancel = Mock(side_effect=service.jobs.cancel)  # type: ignore[method-assign]
    leases = ClusterLeases(service.context, hand)
    leases.run_once()
    assert "cluster.lease-warning" not in events(http)
    hand.time += 8 * HOUR - 800
    leases.run_once()
    leases.run_once()
    told = [event for event in http.get("/v1/events").json() if event["kind"] == "cluster.lease-warning"]
    assert len(told) == 1 and "wherry lease extend hello" in told[0]["text"]
    assert http.get("/v1/clusters").json()[0]["lease"]["warned"] and names(http) == ["hello"]
    hand.time += 2000
    leases.run_once()
    settle(service)
    assert names(http) == [] and service.context.store.leases.all() == {}
    assert "as its lease ended at" in cancel.call_args.args[1]
    operation = http.get("/v1/operations").json()[-1]
    assert operation["kind"] == "down" and operation["state"] == "done"
    assert "its lease ended" in "".join(service.context.operations.lines(operation["id"], 0))
    assert operation["id"] in events(http)["cluster.lease-ended"]["text"]


def test_a_daemon_that_was_away_warns_first(http: httpx.Client, service: Service, hand: Hand) -> None:
    up(http, lease="8h")
    hand.time += 20 * HOUR
    ClusterLeases(service.context, hand).run_once()
    settle(service)
    assert "cluster.lease-warning" in events(http) and names(http) == ["hello"]
    hand.time += 61
    ClusterLeases(service.context, hand).run_once()  # the next daemon's
    settle(service)
    assert names(http) == []


def test_an_extension_counts_until_the_end(http: httpx.Client, service: Service, hand: Hand) -> None:
    before = up(http, lease="8h")
    lease = http.put("/v1/clusters/hello/lease", json={"more": 4 * HOUR}).json()["lease"]
    assert lease["ends"] == pytest.approx(before["ends"] + 4 * HOUR) and lease["warned"] is None
    hand.time += 9 * HOUR
    leases = ClusterLeases(service.context, hand)
    leases.run_once()
    assert names(http) == ["hello"] and "cluster.lease" in events(http)
    hand.time += 4 * HOUR
    found: list[Callable[[], None]] = []
    commands = Mock(end=lambda _name, _reason, still: found.append(still) or Mock(id="op-1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_ends, "Commands", lambda *_: commands)
        leases.run_once()
        hand.time += 61
        leases.run_once()
    assert http.put("/v1/clusters/hello/lease", json={"seconds": HOUR}).status_code == 200
    with pytest.raises(Refused, match="hello stays"):
        found[0]()
    assert http.put("/v1/clusters/hello/lease", json={"seconds": None}).json() == {"lease": None}
    answer = http.put("/v1/clusters/hello/lease", json={"more": HOUR})
    assert answer.json()["code"] == "WRONG_STATE" and "has no lease" in answer.json()["what"]
    for body in ({}, {"more": None}, {"seconds": 5, "more": 5}, {"seconds": 1}, {"seconds": 1e300}):
        assert http.put("/v1/clusters/hello/lease", json=body).status_code == 422, body
    assert http.put("/v1/clusters/helo/lease", json={"seconds": HOUR}).json()["code"] == "NOT_FOUND"


def test_nothing_begins_after_the_end(http: httpx.Client, service: Service) -> None:
    up(http, lease="8h")
    service.context.store.leases.put("hello", ClusterLease(ends=now() - 1, length=HOUR))
    for method, path, body in (
        ("POST", "/v1/jobs", {"cluster": "hello", "argv": ["sleep"], "ranks": 2}),
        ("POST", "/v1/moves", {"node": "hello-0", "host": "a2"}),
        ("POST", "/v1/nodes/hello-0/exec", {"argv": ["true"]}),
        ("POST", "/v1/swaps", {"node": "hello-0", "other": "hello-1"}),
        ("POST", "/v1/clusters", {"spec": CLUSTER}),
    ):
        answer = http.request(method, path, json=body)
        assert answer.json()["code"] == "WRONG_STATE" and "has ended" in answer.json()["what"], (path, answer.json())
    assert http.put("/v1/clusters/hello/lease", json={"more": HOUR}).status_code == 200
    assert ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": "b1"}))["error"] is None


def test_an_undecided_move_is_waited_for(
    http: httpx.Client, service: Service, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(http, lease="10s")
    store, leases = service.context.store, ClusterLeases(service.context, hand)
    move = Move(
        id="m1", node="hello-0", cluster="hello", source="a1", destination="a2", phase=Phase.TRANSFER, created=1.0
    )
    store.put_move(move)
    hand.time += 100
    leases.run_once()
    hand.time += 100
    leases.run_once()
    leases.run_once()
    told = [event for event in http.get("/v1/events").json() if event["kind"] == "cluster.lease-delayed"]
    assert len(told) == 1 and "hello-0" in told[0]["text"] and names(http) == ["hello"]
    store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK}))
    leases.run_once()
    settle(service)
    assert names(http) == []


def test_a_removal_that_failed_is_tried_again(
    http: httpx.Client, service: Service, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(http, lease="10s")
    leases, managers = ClusterLeases(service.context, hand), service.context.require_managers()
    with monkeypatch.context() as patch:
        patch.setattr(managers.clusters, "_remove", Mock(side_effect=Refused(Code.HOST_DOWN, "a1 is down", "", "")))
        for _ in range(2):
            hand.time += 100
            leases.run_once()
        settle(service)
        leases.run_once()
        settle(service)
    downs = [operation for operation in http.get("/v1/operations").json() if operation["kind"] == "down"]
    assert [one["state"] for one in downs] == ["failed"] and names(http) == ["hello"]
    monkeypatch.setattr(cluster_ends, "_AGAIN", 0.0)
    leases.run_once()
    settle(service)
    assert names(http) == []


@pytest.fixture
def accounts(service: Service) -> Accounts:
    found = Accounts(service)
    found.allow()
    return found


def test_accounts_have_the_limits_that_admins_set(accounts: Accounts) -> None:
    accounts.add("ann", quota=UNLIMITED.model_copy(update={"longest_lease": 2 * HOUR}))
    accounts.add("carol", Role.ADMIN)
    assert accounts.ask("ann", "PUT", "/v1/leases/limits", {"usual": 60}).status_code == 403
    assert accounts.ask("carol", "PUT", "/v1/leases/limits", {"usual": HOUR, "longest": 4 * HOUR}).status_code == 200
    assert accounts.ask("ann", "GET", "/v1/me").json()["share"]["leases"] == {"usual": HOUR, "longest": 2 * HOUR}
    one = {**CLUSTER, "nodes": 1, "cpus": 0.1}
    made = accounts.done("ann", "POST", "/v1/clusters", {"spec": one})
    assert made["cluster"]["lease"]["length"] == HOUR, "the usual lease"
    for lease in ("3h", "none"):
        answer = accounts.ask("ann", "POST", "/v1/clusters", {"spec": {**one, "name": "more", "lease": lease}})
        assert answer.json()["code"] == "QUOTA_EXCEEDED" and "longest lease is 2h" in answer.json()["why"]
    assert accounts.ask("ann", "PUT", "/v1/clusters/hello/lease", {"more": 0.9 * HOUR}).status_code == 200
    for body in ({"more": HOUR}, {"seconds": 2.1 * HOUR}, {"seconds": None}):
        answer = accounts.ask("ann", "PUT", "/v1/clusters/hello/lease", body)
        assert answer.json()["code"] == "QUOTA_EXCEEDED", answer.json()
    accounts.add("bob")
    assert accounts.ask("bob", "PUT", "/v1/clusters/hello/lease", {"more": 5}).json()["code"] == "NOT_FOUND"
    assert accounts.ask("carol", "PUT", "/v1/clusters/hello/lease", {"seconds": None}).json() == {"lease": None}
    project = accounts.project("team", "ann")
    assert project.quota.lease == "instance"
    made = accounts.done("ann", "POST", "/v1/clusters", {"spec": {**one, "name": "more"}, "project": "team"})
    assert made["cluster"]["lease"]["length"] == HOUR


def test_the_end_is_nobodys_command(accounts: Accounts, hand: Hand) -> None:
    """A cluster of an account is ended by the daemon; the account sees why."""
    accounts.add("ann", quota=UNLIMITED.model_copy(update={"lease": 10.0}))
    accounts.done("ann", "POST", "/v1/clusters", {"spec": {**CLUSTER, "nodes": 1}})
    leases = ClusterLeases(accounts.service.context, hand)
    for _ in range(2):
        hand.time += 100
        leases.run_once()
    settle(accounts.service)
    told = {event["kind"] for event in accounts.ask("ann", "GET", "/v1/events").json()}
    assert {"cluster.lease-warning", "cluster.lease-ended", "cluster.down"} <= told
    down = accounts.ask("ann", "GET", "/v1/operations").json()[-1]
    assert (down["kind"], down["by"]) == ("down", "")


def test_node_hours_are_used_and_run_out(accounts: Accounts, hand: Hand) -> None:
    """Hours of nodes that are gone count, too. Clusters end when none is left, after a warning."""
    ann, store = accounts.add("ann", quota=UNLIMITED.model_copy(update={"hours": 10.0})), accounts.service.context.store
    spec = {**CLUSTER, "nodes": 2, "cpus": 0.1}
    accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    for node in store.nodes():
        assert node.since == pytest.approx(now(), abs=300)
        store.put_node(node.model_copy(update={"since": now() - 3 * HOUR}))
    accounts.done("ann", "POST", "/v1/clusters", {"spec": {**spec, "nodes": 1}})
    share = accounts.ask("ann", "GET", "/v1/me").json()["share"]
    assert share["used"]["hours"] == pytest.approx(6, abs=0.2) and share["quota"]["hours"] == 10
    leases = ClusterLeases(accounts.service.context, hand)
    leases.run_once()
    assert usage(store, ann.uid, now()).hours == pytest.approx(6, abs=0.2)
    hand.time += 3.9 * HOUR
    leases.run_once()
    assert "cluster.lease-warning" in {event.kind for event in store.events()}
    hand.time += 0.5 * HOUR
    ClusterLeases(accounts.service.context, hand).run_once()  # the next daemon's, which warns again
    settle(accounts.service)
    assert store.clusters()
    leases.run_once()
    settle(accounts.service)
    assert store.clusters() == []
    (told,) = [event for event in store.events() if event.kind == "cluster.lease-ended"]
    assert "the node-hours of ann are used up" in told.text


def test_nothing_is_made_without_node_hours(accounts: Accounts, hand: Hand) -> None:
    accounts.add("ann", quota=UNLIMITED.model_copy(update={"hours": 1.0}))
    accounts.add("carol", Role.ADMIN)
    store, spec = accounts.service.context.store, {**CLUSTER, "nodes": 1, "cpus": 0.1}
    accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    (node,) = store.nodes()
    store.put_node(node.model_copy(update={"since": now() - 2 * HOUR}))
    answer = accounts.ask("ann", "POST", "/v1/clusters", {"spec": {**spec, "name": "more"}})
    assert answer.json()["code"] == "QUOTA_EXCEEDED" and "node-hours of 1" in answer.json()["why"]
    leases = ClusterLeases(accounts.service.context, hand)
    leases.run_once()
    more = {"quota": {**UNLIMITED.model_dump(mode="json"), "hours": 50}}
    assert accounts.ask("carol", "PATCH", "/v1/users/ann", more).status_code == 200
    hand.time += 61
    leases.run_once()
    settle(accounts.service)
    assert [cluster.name for cluster in store.clusters()] == ["hello"], "an admin gave more in time"


def test_a_lease_is_not_changed_under_an_operation(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(http, lease="8h")
    monkeypatch.setattr(service.context.operations, "if_unclaimed", lambda *_: False)
    assert http.put("/v1/clusters/hello/lease", json={"more": HOUR}).json()["code"] == "WRONG_STATE"


_SECONDS = st.floats(5, 1e7)
_LIMIT = st.none() | _SECONDS


@given(_LIMIT | st.just("none"), _LIMIT, _LIMIT)
@settings(max_examples=examples(200))
def test_no_new_lease_is_longer_than_the_longest(asked: Any, usual: float | None, longest: float | None) -> None:
    try:
        found = lease_for(asked, LeaseLimits(usual=usual, longest=longest))
    except ValueError:
        assert longest is not None and (asked == "none" or asked > longest)
        return
    assert longest is None or found is not None and found <= longest


@given(_SECONDS, st.floats(0, 2e9), st.floats(0, 2e9))
@settings(max_examples=examples(200))
def test_a_warning_always_comes_first(length: float, began: float, present: float) -> None:
    lease = ClusterLease(ends=began + length, length=length)
    assert began <= warns_at(lease) <= lease.ends
    warned = lease.model_copy(update={"warned": present})
    assert ends_at(warned, present + 1e9) >= max(lease.ends, present + min(60.0, length / 4)) - 1e-6
    assert ends_at(lease, present) > present


def test_limits_of_an_account_are_its_own_or_the_instances() -> None:
    instance = LeaseLimits(usual=60.0, longest=120.0)
    assert limits_of(Quota(), instance) == instance
    assert limits_of(Quota(lease=None, longest_lease=None), instance) == LeaseLimits()
    assert limits_of(Quota(lease=30.0), instance) == LeaseLimits(usual=30.0, longest=120.0)
