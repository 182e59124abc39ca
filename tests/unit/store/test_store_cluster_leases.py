"""Leases of clusters in the database."""

from __future__ import annotations

from wherry.model.records import ClusterLease
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
