"""The commands that ask what would prevent or prolong moves. They change nothing."""

from __future__ import annotations

from wherry.cluster.lookup import find_cluster, find_job, find_node
from wherry.model.move_check import JobCheck, NodeCheck
from wherry.move.check import MoveChecks
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen


class CheckCommands:
    """The checks of one peer on one instance. Only their owner and root see the objects that programs hold."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._seen = context, peer, seen(context.store, peer)

    def node(self, name: str) -> NodeCheck:
        """One node. NOT_FOUND."""
        store = self._seen
        cluster = find_cluster(store, find_node(store, name).cluster)
        self._peer.require(cluster.owner_uid, f"cluster {cluster.name}")
        return self._checks().node(name)

    def job(self, id: str) -> JobCheck:
        """The nodes of a job: those with its ranks. NOT_FOUND."""
        store = self._seen
        job = find_job(store, id)
        self._peer.require(job.uid, f"job {id}")
        names = job.nodes or tuple(node.name for node in store.nodes(job.cluster))
        checks = self._checks()
        return JobCheck(job=id, nodes=tuple(checks.node(name) for name in names))

    def _checks(self) -> MoveChecks:
        managers = self._context.require_managers()
        return MoveChecks(self._context.store, managers.fabric, managers.drivers, managers.placements)
