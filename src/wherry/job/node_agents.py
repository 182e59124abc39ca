"""Where the agents of a cluster's nodes listen: the first process of each node."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.records import Cluster, Node


class NodeAgents:
    """The agents of all clusters of an instance."""

    def __init__(self, fabric: Fabric, placements: Placements) -> None:
        self._fabric, self._placements = fabric, placements

    def head_netns(self, cluster: Cluster) -> str:
        """The network namespace from which the cluster's nodes are reached."""
        return self._fabric.port_netns(self._placements.head_port(cluster))

    def endpoints(self, cluster: Cluster, nodes: Sequence[Node]) -> list[tuple[str, AgentEndpoint]]:
        """The names of these nodes, each with its agent's endpoint."""
        netns, key = self.head_netns(cluster), self._placements.key
        return [(node.name, AgentEndpoint(netns, node.address, key(node).get_secret_value())) for node in nodes]
