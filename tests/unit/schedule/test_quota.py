"""Quotas: counted exactly, also when fifty clients ask at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import rest_service
from accounts_world import Accounts
from rest_service import CLUSTER

from wherry.model.accounts import Quota, Usage
from wherry.schedule.placement import NodeNeed
from wherry.schedule.quota import excess

CLIENTS = 50


def test_what_is_too_much() -> None:
    used, need = Usage(nodes=2, cores=0.3, memory=200), NodeNeed(0.1, 100)
    assert not excess(Quota(nodes=None, cores=None, memory=None), used, [need] * 1000)
    assert not excess(Quota(nodes=5, cores=0.6, memory=500), used, [need] * 3), "floats are sums"
    assert excess(Quota(nodes=4, cores=None, memory=None), used, [need] * 3) == "it would have 5 nodes of 4"
    assert "cores" in excess(Quota(nodes=None, cores=0.5, memory=None), used, [need] * 3)
    assert "memory" in excess(Quota(nodes=None, cores=None, memory=499), used, [need] * 3)
    assert not excess(Quota(nodes=0, cores=0, memory=0), used, []), "present nodes stay, and may be repaired"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Hosts with room for all."""
    hosts = [{**host, "cores": 64, "memory": "64GiB"} for host in rest_service.FABRIC["hosts"]]  # type: ignore[attr-defined]
    monkeypatch.setitem(rest_service.FABRIC, "hosts", hosts)
    with rest_service.running(tmp_path) as service:
        world = Accounts(service)
        world.allow()
        yield world


def test_fifty_clients_at_once_get_what_the_quota_has(world: Accounts) -> None:
    uids = {name: world.add(name, quota=Quota(nodes=7, cores=None, memory=None)).uid for name in ("ann", "bob")}
    codes: Counter[str] = Counter()

    async def client(number: int) -> None:
        who = "ann" if number % 2 else "bob"
        spec = {**CLUSTER, "name": f"c{number}", "nodes": 1 + number % 3, "cpus": 0.1, "memory": "64MiB"}
        answer = await world.asked(who, "POST", "/v1/clusters", {"spec": spec})
        if answer.status_code != 202:
            codes[answer.json()["code"]] += 1
            return
        while True:
            told = await world.asked(who, "GET", answer.headers["Location"] + "?wait=5")
            if (found := told.json()["operation"])["state"] != "running":
                codes[(found["error"] or {}).get("code", "done")] += 1
                return

    async def all_at_once() -> None:
        await asyncio.gather(*map(client, range(CLIENTS)))

    asyncio.run(all_at_once())
    assert sum(codes.values()) == CLIENTS and set(codes) <= {"done", "QUOTA_EXCEEDED", "WRONG_STATE"}, codes
    store = world.service.context.store
    for uid in uids.values():
        names = {cluster.name for cluster in store.clusters() if cluster.owner_uid == uid}
        assert 5 <= len([node for node in store.nodes() if node.cluster in names]) <= 7, codes


def test_a_cluster_that_grows_counts_what_is_new(world: Accounts) -> None:
    world.add("ann", quota=Quota(nodes=3, cores=None, memory=None))
    small = {**CLUSTER, "nodes": 2, "cpus": 0.1}
    world.done("ann", "POST", "/v1/clusters", {"spec": small})
    world.done("ann", "POST", "/v1/clusters", {"spec": small})
    world.done("ann", "POST", "/v1/clusters", {"spec": {**small, "nodes": 3}})
    answer = world.ask("ann", "POST", "/v1/clusters", {"spec": {**small, "nodes": 4}})
    assert answer.json()["code"] == "QUOTA_EXCEEDED" and "4 nodes of 3" in answer.json()["why"]
    world.done("ann", "POST", "/v1/clusters", {"spec": {**small, "nodes": 1}})
    world.done("ann", "POST", "/v1/clusters", {"spec": {**small, "name": "more", "nodes": 2}})
    share = world.ask("ann", "GET", "/v1/me").json()["share"]
    used = {"nodes": 3, "cores": pytest.approx(0.3), "memory": 3 * 256 * 2**20}
    assert share["used"] == used | {"hours": pytest.approx(0, abs=0.5)}


def test_a_project_has_a_quota_of_its_own(world: Accounts) -> None:
    world.add("ann", quota=Quota(nodes=1, cores=None, memory=None))
    world.root.add_project("team", "ann", Quota(nodes=2, cores=None, memory=None))
    spec = {**CLUSTER, "nodes": 1, "cpus": 0.1}
    world.done("ann", "POST", "/v1/clusters", {"spec": spec})
    world.done("ann", "POST", "/v1/clusters", {"spec": {**spec, "name": "both", "nodes": 2}, "project": "team"})
    answer = world.ask("ann", "POST", "/v1/clusters", {"spec": {**spec, "name": "more"}, "project": "team"})
    assert answer.json()["code"] == "QUOTA_EXCEEDED" and "team" in answer.json()["what"]


def test_users_of_the_machine_have_none(world: Accounts) -> None:
    world.done("root", "POST", "/v1/clusters", {"spec": {**CLUSTER, "nodes": 30, "cpus": 0.1}})


@pytest.mark.parametrize(
    "quota", [{"nodes": -1}, {"cores": float("1e99")}, {"memory": 2**60}, {"disks": 1}, {"nodes": "x"}]
)
def test_quotas_are_bounded(world: Accounts, quota: dict[str, object]) -> None:
    assert world.ask("root", "POST", "/v1/users", {"name": "ann", "quota": quota}).status_code == 422
