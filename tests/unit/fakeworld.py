"""A world in memory for unit tests: a fake fabric of four hosts at two sites, fake nodes, and a real store."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from databases import Migrated

from wherry.cluster.clusters import Clusters
from wherry.cluster.placements import Placements
from wherry.fabric.fake import FakeFabric
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.move.moves import Moves
from wherry.node.fake import Copy, FakeDriver
from wherry.store.store import Store

OWNER = Owner(uid=1000, gid=1000, home="/home/user", cwd="/home/user/work")
OTHER = Owner(uid=1001, gid=1001, home="/home/other", cwd="/home/other")


class Killed(BaseException):
    """A test raises it for `kill -9` of the daemon: no `except Exception` catches it."""


class WatchedStore(Store):
    """A store whose writes a test can see, fail and kill, before and after they are done."""

    on_write: Callable[[str], None] | None = None

    def put_move(self, move: Any) -> None:
        self._around(f"put_move {move.phase}", lambda: super(WatchedStore, self).put_move(move))

    def put_node(self, node: Any) -> None:
        self._around(f"put_node {node.state}", lambda: super(WatchedStore, self).put_node(node))

    def _around(self, name: str, write: Callable[[], None]) -> None:
        if self.on_write:
            self.on_write(name)
        write()
        if self.on_write:
            self.on_write(f"{name} done")


def fabric_spec(memory: str = "4GiB", cores: float = 4, **facts: dict[str, Any]) -> FabricSpec:
    """Hosts a1, a2 at site a and b1, b2 at site b; `facts` by host."""
    return FabricSpec.model_validate(
        {
            "kind": "fabric",
            "version": 1,
            "name": "two-sites",
            "driver": "fake",
            "sites": [{"name": "a"}, {"name": "b"}],
            "hosts": [
                {"name": name, "site": name[0], "cores": cores, "memory": memory, "facts": facts.get(name, {})}
                for name in ("a1", "a2", "b1", "b2")
            ],
            "links": [{"between": ["a", "b"]}],
        }
    )


class World:
    """The domain and everything that it uses; `reborn` is the next daemon over the same world."""

    def __init__(
        self,
        directory: Path,
        fabric: FabricSpec | None = None,
        rounds: bool = False,
        switches: bool = False,
        fetches: bool = False,
    ) -> None:
        self._path = directory / "state.db"
        self.store = WatchedStore(Migrated(self._path))
        self.fabric = FakeFabric(fabric or fabric_spec())
        self.fabric.up()
        self.driver = FakeDriver(rounds=rounds, switches=switches, fetches=fetches)
        self.reborn()

    def reborn(self) -> None:
        """The daemon was killed and another starts: holds are gone, the hooks of the test too."""
        self.fabric.forget()
        self.watch(None)
        placements = Placements(self.store, self.fabric)
        self.clusters = Clusters(self.store, self.fabric, {"container": self.driver})
        self.moves = Moves(self.store, self.fabric, {"container": self.driver}, placements)

    def keep(self) -> Callable[[], None]:
        """A function that restores the world as it is now, in the same store, whatever happens."""
        path, things = self._path, (self.fabric, self.driver)
        self.watch(None)
        self.store.close()
        rows, state = path.read_bytes(), [copy.deepcopy(vars(thing)) for thing in things]

        def bring_back() -> None:
            self.store.close()
            path.write_bytes(rows)
            for thing, was in zip(things, state, strict=True):
                vars(thing).clear()
                vars(thing).update(copy.deepcopy(was))
            self.reborn()

        return bring_back

    def watch(self, hook: Callable[[str], None] | None) -> None:
        """Calls `hook` with the name of each call of a driver and of each write of the store."""
        self.fabric.on_call = self.driver.on_call = self.store.on_write = hook

    def make(self, name: str = "hello", nodes: int = 4, owner: Owner = OWNER, **keys: Any) -> Cluster:
        """A running cluster."""
        return self.clusters.apply(self.clusters.plan(ClusterSpec(name=name, nodes=nodes, **keys), owner))

    def assert_one_copy(self, node: str, host: str) -> None:
        """The node runs at the host, plugged there, and nothing of it is anywhere else."""
        assert self.driver.copies(node) == {host: Copy.RUNNING}
        assert {h: plugged for (owner, h), plugged in self.fabric.ports.items() if owner == node} == {host: True}
        assert not self.fabric.holds
        row = self.store.node(node)
        assert row is not None and (row.host, row.state) == (host, "running")
