"""The commands on leases of clusters.

Invariant: a lease changes only while no operation has the cluster for itself, so an accepted change counts. No
caller other than root and admins has it end later than its owner's longest lease allows.
"""

from __future__ import annotations

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.moments import moment
from wherry.base.units import format_span
from wherry.cluster.leases import limits_for, limits_of_instance, set_limits_of_instance
from wherry.cluster.lookup import find_cluster
from wherry.model.accounts import LeaseLimits
from wherry.model.records import ClusterLease, ClusterState
from wherry.schedule.leases import excess
from wherry.service.account_caller import AccountCaller
from wherry.service.claims import Claims, cluster_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen


class LeaseCommands:
    """The commands of one peer on leases."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._seen = context, peer, seen(context.store, peer)

    def change(self, name: str, seconds: float | None, more: bool) -> ClusterLease | None:
        """Has the lease end so many seconds from now, or with `more` so much later than now; None: never. NOT_FOUND,
        QUOTA_EXCEEDED; WRONG_STATE while the cluster is changed or removed."""
        store, cluster = self._context.store, find_cluster(self._seen, name)
        self._peer.require(cluster.owner_uid, f"cluster {name}")
        if cluster.state is ClusterState.REMOVING:
            raise Refused(Code.WRONG_STATE, f"cluster {name} is being removed", cluster.reason, f"wherry down {name}")
        changed: list[ClusterLease | None] = []

        def write(_: object) -> None:
            lease = self._changed(name, cluster.owner_uid, seconds, more)
            store.leases.put(name, lease)
            changed.append(lease)

        claims = Claims.of(shared=[cluster_claim(name)])
        if not self._context.operations.if_unclaimed(claims, lambda: None, write):
            busy = self._context.operations.conflicting_operation(claims.shared)
            why = f"operation {busy.id} ({busy.kind} {busy.target}) is under way" if busy else "it was being changed"
            remedy = f"wherry op wait {busy.id}" if busy else "repeat the command"
            raise Refused(Code.WRONG_STATE, f"the lease of {name} cannot be changed now", why, remedy)
        lease = changed[0]
        text = f"it ends at {moment(lease.ends)}" if lease else "it has no end"
        store.add_event("cluster.lease", name, f"the lease of {name} was changed: {text}", cluster.owner_uid)
        return lease

    def _changed(self, name: str, uid: int, seconds: float | None, more: bool) -> ClusterLease | None:
        store, present = self._context.store, now()
        if store.cluster(name) is None:
            find_cluster(self._seen, name)
        old = store.leases.of(name)
        if more and old is None:
            what, remedy = f"cluster {name} has no lease", f"wherry lease set {name} 8h"
            raise Refused(Code.WRONG_STATE, what, "it has no end", remedy)
        until = max(old.ends, present) - present + (seconds or 0.0) if more and old else seconds
        free = self._peer.is_admin if isinstance(self._peer, AccountCaller) else self._peer.uid == 0
        if not free and (why := excess(until, limits_for(store, uid))):
            what, remedy = f"{name} cannot have a lease that ends so late", "extend it again later, or ask an admin"
            raise Refused(Code.QUOTA_EXCEEDED, what, why, remedy)
        return None if until is None else ClusterLease(ends=present + until, length=until)

    def limits(self) -> LeaseLimits:
        """The limits of the instance."""
        return limits_of_instance(self._context.store)

    def set_limits(self, limits: LeaseLimits) -> LeaseLimits:
        """Changes them, for root and admins. Leases of running clusters stay."""
        self._peer.require(0, "the limits of leases")
        set_limits_of_instance(self._context.store, limits)
        usual, longest = ("none" if one is None else format_span(one) for one in (limits.usual, limits.longest))
        text = f"clusters have a lease of {usual}, at most {longest}, unless an account has limits of its own"
        self._context.store.add_event("daemon.lease-limits", self._context.instance.name, text)
        return limits
