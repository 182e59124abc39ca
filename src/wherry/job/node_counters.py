"""The kernel's counters of the nodes of a job, at its start and at its end.

Invariant: nothing here fails because a host does not answer, or a node has ended: then that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wherry.base.errors import WherryError
from wherry.cluster.placements import Placements
from wherry.job import outcome
from wherry.model.records import Job, Node, NodeState
from wherry.node.protocol import NodeDriver, Usage
from wherry.store.store import Store


class NodeCounters:
    """The counters of an instance's nodes."""

    def __init__(self, store: Store, placements: Placements, drivers: Mapping[str, NodeDriver]) -> None:
        self._store = store
        self._placements = placements
        self._drivers = drivers

    def begin(self, nodes: Iterable[Node]) -> str:
        """The counters now, as a text for `outcome.read_counted`."""
        return outcome.counted({node.name: (node.host, usage) for node in nodes if (usage := self._usage(node))})

    def ends(self, job: Job) -> list[outcome.End]:
        """The state of the nodes with ranks. A node counts as ended only where no move can have taken it."""
        found = []
        for node in self._store.nodes(job.cluster):
            if node.name in job.nodes:
                usage, alive = self._usage(node), self._alive(node)
                found.append(outcome.End(node, alive or self._store.node(node.name) != node, usage))
        return found

    def _alive(self, node: Node) -> bool:
        """False when the node's first process has ended."""
        if node.state != NodeState.RUNNING:
            return node.state != NodeState.LOST
        try:
            return self._drivers[node.kind].alive(self._placements.placement(node))
        except (WherryError, OSError):  # a host that does not answer
            return True

    def _usage(self, node: Node) -> Usage | None:
        try:
            return self._drivers[node.kind].usage(self._placements.placement(node))
        except (WherryError, OSError):
            return None
