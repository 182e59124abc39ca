"""Ends clusters whose lease has ended, after a warning.

Invariants: the rows decide, so a daemon that was killed, or was away over the end, continues when it is back; nothing
is ended while a move of the cluster is undecided, nor after the lease was extended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wherry.base.clock import now
from wherry.base.errors import Code, Refused, WherryError
from wherry.base.moments import moment
from wherry.model.records import Cluster, ClusterLease, OperationState
from wherry.schedule.leases import ends_at, warns_at
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
_AGAIN = 30.0
"""Seconds until a removal that failed is tried again."""
_DAEMON = PeerCredentials(0, 0, frozenset())


class ClusterLeases(PeriodicTask):
    """Looks once a second, by a clock of seconds since the epoch."""

    def __init__(self, context: ServiceContext, clock: Callable[[], float] = now) -> None:
        super().__init__("cluster-leases", _EVERY)
        self._context, self._clock = context, clock
        self._ending: dict[str, tuple[str, float]] = {}
        """The operation that removes a cluster, and when it began, by the cluster."""
        self._told: set[tuple[str, float]] = set()
        """Clusters with the end of their lease whose delay was reported."""

    def run_once(self) -> None:
        """Warns, and ends the clusters whose time has come."""
        if self._context.managers is None:
            return
        clusters = {cluster.name: cluster for cluster in self._context.store.clusters()}
        leases = {name: lease for name, lease in self._context.store.leases.all().items() if name in clusters}
        for name, lease in leases.items():
            if lease.warned is None and self._clock() >= warns_at(lease):
                lease = self._warn(clusters[name], lease)
            if self._clock() >= ends_at(lease, self._clock()):
                self._end(clusters[name], lease)
        self._told &= {(name, lease.ends) for name, lease in leases.items()}
        self._ending = {name: ending for name, ending in self._ending.items() if name in leases}

    def _warn(self, cluster: Cluster, lease: ClusterLease) -> ClusterLease:
        """The lease, with the time of the warning unless it was changed meanwhile."""
        warned = lease.model_copy(update={"warned": self._clock()})
        if not self._context.store.leases.replace(cluster.name, lease, warned):
            return lease
        ends, name = ends_at(warned, self._clock()), cluster.name
        text = f"{name} is removed at {moment(ends)}, when its lease ends: wherry lease extend {name} --by 4h"
        self._context.store.add_event("cluster.lease-warning", name, text, cluster.owner_uid, ends=ends)
        return warned

    def _end(self, cluster: Cluster, lease: ClusterLease) -> None:
        name, store = cluster.name, self._context.store
        if self._waits(name):
            return

        def still() -> None:
            if store.leases.of(name) != lease:
                raise Refused(Code.WRONG_STATE, f"{name} stays", "its lease was changed", "wherry lease list")

        commands = Commands(self._context, _DAEMON)
        reason = f"its cluster {name} was taken down, as its lease ended at {moment(lease.ends)}"
        try:
            operation = commands.end(name, reason, still)
        except WherryError as error:  # a move is undecided, or another operation has the cluster
            if (name, lease.ends) not in self._told:
                self._told.add((name, lease.ends))
                text = f"the lease of {name} has ended, and it cannot be removed yet: {error}"
                store.add_event("cluster.lease-delayed", name, text, cluster.owner_uid)
            return
        self._ending[name] = operation.id, time.monotonic()
        text = f"the lease of {name} ended at {moment(lease.ends)}: it is removed by {operation.id}"
        store.add_event("cluster.lease-ended", name, text, cluster.owner_uid, operation=operation.id)

    def _waits(self, name: str) -> bool:
        """Whether the cluster is being removed, or that failed a moment ago."""
        id, began = self._ending.get(name, ("", -_AGAIN))
        if id and self._context.operations.get(id).state is OperationState.RUNNING:
            return True
        return time.monotonic() - began < _AGAIN
