"""A tentative placement of one cluster: its nodes' hosts, and the room that is left on hosts.

Invariant: a node counts on both its old and its new host, so a placement that fits can be reached move by move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from wherry.model.records import Node
from wherry.schedule.placement import NodeNeed, Used, shortage
from wherry.schedule.step_model import World


class TentativePlacement:
    """The nodes of one cluster. `used` is the room that all clusters take now; `barred` are forbidden (node, host)
    pairs; `most` is the largest number of the nodes per host."""

    def __init__(
        self,
        nodes: Iterable[Node],
        world: World,
        used: Mapping[str, Used],
        barred: Collection[tuple[str, str]] = (),
        most: int | None = None,
    ) -> None:
        self.where: dict[str, str] = {}
        self._world, self._used, self._barred, self._most = world, used, barred, most
        self._extra: dict[str, Used] = {}
        self._cpus: defaultdict[str, float] = defaultdict(float)
        self._held: defaultdict[str, int] = defaultdict(int)
        for node in nodes:
            self.where[node.name] = node.host
            self._cpus[node.host] += node.cpus
            self._held[node.host] += 1

    def copy(self) -> TentativePlacement:
        """An independent copy."""
        other = TentativePlacement((), self._world, self._used, self._barred, self._most)
        other.where, other._extra = dict(self.where), dict(self._extra)
        other._cpus, other._held = self._cpus.copy(), self._held.copy()
        return other

    def with_nodes(self, nodes: Iterable[Node], where: Mapping[str, str]) -> TentativePlacement:
        """A copy with the nodes moved to the hosts in `where`."""
        other = self.copy()
        for node in nodes:
            if where[node.name] != other.where[node.name]:
                other.move(node, where[node.name])
        return other

    def fits(self, node: Node, host: str) -> bool:
        """True when the host has room for the node and may have it."""
        if (node.name, host) in self._barred or self._most is not None and self._held[host] >= self._most:
            return False
        used = self._extra.get(host) or self._used.get(host, Used())
        return not shortage(self._world.hosts[host], used, NodeNeed.of(node))

    def cpu_share(self, node: Node, host: str) -> float:
        """The node's CPU share on the host (see `World`), if it were there."""
        own = self._cpus[host] + (0.0 if self.where[node.name] == host else node.cpus)
        return self._world.cpu_share(host, own)

    def move(self, node: Node, host: str) -> None:
        """Puts the node on the host."""
        self._cpus[self.where[node.name]] -= node.cpus
        self._cpus[host] += node.cpus
        self._held[host] += 1
        used = self._extra.get(host) or self._used.get(host, Used())
        self._extra[host] = used.plus(NodeNeed.of(node))
        self.where[node.name] = host
