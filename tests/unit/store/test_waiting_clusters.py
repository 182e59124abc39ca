"""The queue in the database: its order, also when fifty clients enter at once, and that it lasts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from wherry.model.owner import Owner
from wherry.model.queue import WaitingCluster
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.parse import parse
from wherry.store import Store
from wherry.store.address import Address


def waiting(number: int, name: str) -> WaitingCluster:
    spec = parse(ClusterSpec, {"name": name, "nodes": 2, "memory": "1GiB", "lease": "8h"}, "test")
    owner = Owner(uid=1, gid=1, home="/", cwd="/")
    return WaitingCluster(operation=f"op-{number}", spec=spec, owner=owner, priority=number % 3, entered=1.5)


def test_fifty_clients_enter_at_once(address: Address) -> None:
    """Two each have one name: one of them is refused. The order is the same for every reader, and lasts."""
    store = Store(address)
    with ThreadPoolExecutor(50) as pool:
        added = list(pool.map(lambda number: store.queue.add(waiting(number, f"c{number % 25}")), range(50)))
    found = store.queue.all()
    assert sum(added) == len(found) == 25 and {one.spec.name for one in found} == {f"c{n}" for n in range(25)}
    assert all(added[int(one.operation.removeprefix("op-"))] for one in found)
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda one: store.queue.drop(one.operation), found[:10] + found[:10]))
    assert store.queue.add(waiting(99, found[0].spec.name))
    store.close()
    store = Store(address)
    assert store.queue.all() == [*found[10:], waiting(99, found[0].spec.name)]
    store.close()
