"""Ends clusters whose lease has ended, or whose owner's node-hours are used up, after a warning.

Invariants: the rows decide, so a daemon that was killed, or was away over the end, continues when it is back; nothing
is ended while a move of the cluster is undecided, nor after the lease was extended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.moments import moment
from wherry.cluster.owners_quota import usage, usage_among
from wherry.model.accounts import Account, Project, is_account
from wherry.model.records import Cluster, ClusterLease, Node
from wherry.schedule.leases import ends_at, warns_at
from wherry.schedule.quota import seconds_left
from wherry.service.cluster_ends import ClusterEnds
from wherry.service.context import ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
_HOUR = 3600.0
"""Seconds for which the notice of node-hours is that of a lease."""


class ClusterLeases(PeriodicTask):
    """Looks once a second, by a clock of seconds since the epoch."""

    def __init__(self, context: ServiceContext, clock: Callable[[], float] = now) -> None:
        super().__init__("cluster-leases", _EVERY)
        self._context, self._clock = context, clock
        self._ends = ClusterEnds(context)
        self._warned: dict[int, float] = {}
        """When owners were warned of their node-hours; the next daemon warns them again."""

    def run_once(self) -> None:
        """Warns, and ends the clusters whose time has come."""
        if self._context.managers is None:
            return
        nodes = cache(self._context.store.nodes)  # read once for all, if at all
        clusters, ending = self._context.store.clusters(), set[str]()
        leases = self._context.store.leases.all()
        for cluster in clusters:
            if (lease := leases.get(cluster.name)) and self._keep_lease(cluster, lease):
                ending.add(cluster.name)
        for uid in sorted({cluster.owner_uid for cluster in clusters if is_account(cluster.owner_uid)}):
            own = [cluster for cluster in clusters if cluster.owner_uid == uid]
            owner = self._context.store.accounts.of_uid(uid)
            if owner and owner.quota.hours is not None and self._keep_hours(owner, own, nodes):
                ending |= {cluster.name for cluster in own}
        self._ends.forget(ending)

    def _keep_lease(self, cluster: Cluster, lease: ClusterLease) -> bool:
        """Whether the lease has ended."""
        store, name = self._context.store, cluster.name
        if lease.warned is None and self._clock() >= warns_at(lease):
            lease = self._warn(cluster, lease)
        if self._clock() < ends_at(lease, self._clock()):
            return False

        def still() -> None:
            if store.leases.of(name) != lease:
                raise Refused(Code.WRONG_STATE, f"{name} stays", "its lease was changed", "wherry lease list")

        self._ends.end(cluster, f"its lease ended at {moment(lease.ends)}", still)
        return True

    def _warn(self, cluster: Cluster, lease: ClusterLease) -> ClusterLease:
        """The lease, with the time of the warning unless it was changed meanwhile."""
        warned = lease.model_copy(update={"warned": self._clock()})
        if not self._context.store.leases.replace(cluster.name, lease, warned):
            return lease
        ends, name = ends_at(warned, self._clock()), cluster.name
        text = f"{name} is removed at {moment(ends)}, when its lease ends: wherry lease extend {name} --by 4h"
        self._context.store.add_event("cluster.lease-warning", name, text, cluster.owner_uid, ends=ends)
        return warned

    def _keep_hours(self, owner: Account | Project, own: list[Cluster], nodes: Callable[[], list[Node]]) -> bool:
        """Whether the node-hours of an owner of clusters are used up."""
        store, present = self._context.store, self._clock()
        gone = store.node_hours.seconds(owner.uid)
        seconds = seconds_left(owner.quota, usage_among(own, nodes(), owner.uid, present, gone))
        if seconds is None:
            return False
        lease = ClusterLease(ends=present + seconds, length=_HOUR, warned=self._warned.get(owner.uid))
        if present < warns_at(lease):
            self._warned.pop(owner.uid, None)
            return False
        if lease.warned is None:
            self._warned[owner.uid] = present
            lease = lease.model_copy(update={"warned": present})
            why = f"at {moment(ends_at(lease, present))}, when the node-hours of {owner.name} are used up: ask an admin"
            for cluster in own:
                text = f"{cluster.name} is removed {why}"
                store.add_event("cluster.lease-warning", cluster.name, text, owner.uid)
        if present < ends_at(lease, present):
            return False

        def still() -> None:
            found = store.accounts.of_uid(owner.uid)
            if found and seconds_left(found.quota, usage(store, owner.uid, self._clock())) != 0.0:
                raise Refused(Code.WRONG_STATE, f"clusters of {owner.name} stay", "it has node-hours", "wherry user me")

        for cluster in own:
            self._ends.end(cluster, f"the node-hours of {owner.name} are used up", still)
        return True
