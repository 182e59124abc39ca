"""Whether a node can be moved, and the objects that would prolong it, checked at every host before a move begins.

Invariant: reads only, and refuses for the reasons for which `validation` refuses a move.
"""

from __future__ import annotations

from wherry.base.errors import WherryError
from wherry.cluster.lookup import find_cluster, find_host, find_node, known_hosts
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.move_check import HostCheck, NodeCheck
from wherry.model.records import Cluster, Host, Node
from wherry.move.validation import check_host, check_rows
from wherry.node.protocol import NodeDriver
from wherry.store.store import Store


class MoveChecks:
    """Checks of nodes on one fabric. The hosts are asked once."""

    def __init__(self, store: Store, fabric: Fabric, drivers: dict[str, NodeDriver], placements: Placements) -> None:
        self._store, self._fabric, self._drivers, self._placements = store, fabric, drivers, placements
        self._hosts = known_hosts(store, fabric)

    def node(self, name: str) -> NodeCheck:
        """Objects that would prevent or prolong a move of a node to each other host."""
        node = find_node(self._store, name)
        cluster, source = find_cluster(self._store, node.cluster), find_host(self._hosts, node.host)
        hindrances = self._drivers[node.kind].inspect(self._placements.placement(node, cluster=cluster))
        own = {hindrance.text for hindrance in hindrances if hindrance.prevents}
        others = [host for host in self._hosts if host.name != node.host]
        hosts = [
            HostCheck(host=host.name, obstacle=self._obstacle(cluster, node, source, host, own)) for host in others
        ]
        return NodeCheck(node=name, host=node.host, hindrances=hindrances, hosts=tuple(hosts))

    def _obstacle(self, cluster: Cluster, node: Node, source: Host, host: Host, own: set[str]) -> str:
        """Why a node cannot go to a host; empty when that does not depend on the host, but on the node's `own`."""
        try:
            here, there = (self._placements.placement(node, end.name, cluster) for end in (source, host))
            check_host(self._fabric, self._drivers[node.kind], cluster, (source, host), (here, there))
        except WherryError as error:
            if error.why not in own:
                return str(error)
        try:
            check_rows(self._store, node, cluster, host)
        except WherryError as error:
            return str(error)
        return ""
