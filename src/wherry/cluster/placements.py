"""A node's port in its cluster's network, and its placement on a host.

Invariant: both follow from rows alone, so a restarted daemon finds everything of a node. The hosts file names every
node that the cluster can ever have, so it stays correct in running nodes when the cluster grows.
"""

from __future__ import annotations

import hmac
import secrets
from functools import lru_cache

from pydantic import SecretStr

from wherry.base.errors import WherryError
from wherry.cluster.lookup import find_cluster
from wherry.fabric.protocol import Fabric
from wherry.model.network import HEAD_INDEX, MOST_NODES, ClusterNetwork, Port, address_of, mac_of
from wherry.model.records import Cluster, Node, Pin
from wherry.node.protocol import Placement
from wherry.store.store import Store


class Placements:
    """Ports and placements of the store's nodes."""

    def __init__(self, store: Store, fabric: Fabric) -> None:
        self._store = store
        self._fabric = fabric

    def port(self, node: Node, host: str | None = None, cluster: Cluster | None = None) -> Port:
        """The node's port at its host, or at `host` while it moves there. `cluster` is its row, if that was read."""
        cluster = cluster or find_cluster(self._store, node.cluster)
        return Port(
            owner=node.name,
            index=node.index,
            host=host or node.host,
            network=network_of_cluster(cluster),
            address=node.address,
            mac=node.mac,
            tap=node.kind == "vm",
            queues=cluster.spec.flavor(node.index).nic.queues,
        )

    def head_port(self, cluster: Cluster) -> Port:
        """The port of the cluster's head, where launchers run."""
        network = network_of_cluster(cluster)
        return Port(
            owner=head_name(cluster.name),
            index=HEAD_INDEX,
            host=cluster.head_host,
            network=network,
            address=address_of(network, HEAD_INDEX),
            mac=mac_of(network, HEAD_INDEX),
        )

    def key(self, node: Node) -> SecretStr:
        """The node's own key, derived from its cluster's secret: root in a node, who can read it, learns no other."""
        secret = self._store.secret(secret_name(node.cluster))
        return SecretStr(hmac.new(secret.encode(), node.name.encode(), "sha256").hexdigest())

    def placement(self, node: Node, host: str | None = None, cluster: Cluster | None = None) -> Placement:
        """The node at its host, or at `host` while it moves there. `cluster` is its row, if that was read."""
        cluster = cluster or find_cluster(self._store, node.cluster)
        port = self.port(node, host, cluster)
        pin = node.pin if port.host == node.host else self._pin_there(node, port.host)
        flavor = cluster.spec.flavor(node.index)
        return Placement(
            node=node,
            host=port.host,
            netns=self._fabric.port_netns(self.head_port(cluster) if port.tap else port),
            cgroup=f"{self._fabric.cgroup(port.host)}/{node.name}",
            key=self.key(node),
            hosts_file=hosts_file(cluster),
            user=f"{cluster.owner_uid}:{cluster.owner_gid}:{','.join(map(str, cluster.owner_groups))}",
            binds=cluster.binds,
            device=self._fabric.port_device(port),
            image=flavor.image,
            nic=flavor.nic,
            guest=flavor.guest,
            speed=next((known.speed for known in self._fabric.spec.hosts if known.name == port.host), 1.0),
            pin=pin,
            served=cluster.served if node.kind == "vm" else (),
            server=cluster.head_address,
        )

    def processes(self, node: Node) -> int | None:
        """Processes of the node at its host; None when that does not count them. Processes in a virtual machine are not
        seen."""
        try:
            found = self._fabric.use(node.host, (node.name,)).nodes.get(node.name)
        except WherryError:
            return None
        return found.processes if found else None

    def _pin_there(self, node: Node, host: str) -> Pin | None:
        """The pin of a node that is being moved to a host; None when it is not, or is not pinned."""
        if node.pin is None:
            return None
        moves = self._store.moves(unfinished=True)
        return next((move.pin for move in moves if (move.node, move.destination) == (node.name, host)), None)


def network_of_cluster(cluster: Cluster) -> ClusterNetwork:
    """The cluster's network as the fabric sees it."""
    return ClusterNetwork(number=cluster.network, subnet=cluster.subnet)


def head_name(cluster: str) -> str:
    """Name of the head in the cluster's network."""
    return f"{cluster}-head"


def secret_name(cluster: str) -> str:
    """Name in the store of the cluster's secret, from which the keys of its nodes are derived."""
    return f"cluster:{cluster}"


def new_secret() -> str:
    """A secret for a cluster."""
    return secrets.token_hex(32)


def hosts_file(cluster: Cluster) -> str:
    """The text of /etc/hosts inside the nodes and the head."""
    return _hosts_file(network_of_cluster(cluster), cluster.name)


@lru_cache(maxsize=64)
def _hosts_file(network: ClusterNetwork, cluster: str) -> str:
    """It has a line for each node that there may be, and every placement has the text."""
    lines = ["127.0.0.1 localhost", f"{address_of(network, HEAD_INDEX)} {head_name(cluster)}"]
    lines += [f"{address_of(network, index)} {cluster}-{index}" for index in range(MOST_NODES)]
    return "\n".join(lines) + "\n"
