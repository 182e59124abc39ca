"""Leases of clusters, and node-hours, in the database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from wherry.base.clock import now
from wherry.cluster.owners_quota import usage
from wherry.model.accounts import Quota, Role
from wherry.model.records import Cluster, ClusterLease, ClusterState, Node
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.parse import parse
from wherry.store import Store
from wherry.store.address import Address


def test_leases_last_and_are_replaced_by_who_knows_them(address: Address) -> None:
    first, second = ClusterLease(ends=9.5, length=5.0), ClusterLease(ends=5.0, length=1.0)
    store = Store(address)
    store.leases.put("hello", first)
    store.leases.put("more", second)
    store.close()
    store = Store(address)
    assert list(store.leases.all().items()) == [("more", second), ("hello", first)]
    warned = first.model_copy(update={"warned": 7.25})
    assert store.leases.replace("hello", first, warned) and not store.leases.replace("hello", first, second)
    assert store.leases.of("hello") == warned
    store.leases.put("hello", None)
    assert store.leases.of("hello") is None
    store.drop_cluster("more")
    assert store.leases.all() == {}
    store.close()


def test_each_node_is_counted_once(address: Address) -> None:
    """Fifty clients remove the nodes of an account at once, some of them the same; then its cluster."""
    store = Store(address)
    ann = store.accounts.add_user("ann", Role.USER, Quota(), "", lambda _: True)
    cluster = Cluster(
        name="hello", spec=parse(ClusterSpec, {"name": "hello", "nodes": 30}, "test"), state=ClusterState.RUNNING,
        network=1, subnet="10.0.0.0/24", head_host="a1", owner_uid=ann.uid, owner_gid=ann.uid, created=now() - 7200,
    )  # fmt: skip
    store.put_cluster(cluster)
    for index in range(30):
        since = None if index == 0 else now() - 3600
        store.put_node(
            Node(
                name=f"hello-{index}", cluster="hello", index=index, host="a1", address="10.0.0.1", mac="m",
                cpus=1, memory=1, since=since,
            )
        )  # fmt: skip
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda number: store.drop_node(f"hello-{number % 25}"), range(50)))
    store.close()
    store = Store(address)
    assert store.node_hours.seconds(ann.uid) == pytest.approx(7200 + 24 * 3600, rel=0.05)
    assert usage(store, ann.uid, now()).hours == pytest.approx(31, rel=0.05)
    store.drop_cluster("hello")
    assert store.node_hours.seconds(ann.uid) == pytest.approx(31 * 3600, rel=0.05)
    store.accounts.drop_user("ann")
    assert store.node_hours.seconds(ann.uid) == 0
    store.close()
