"""The lease of a cluster: its limits, and whether it has ended.

Invariant: root's clusters have no limits; those of accounts and projects have their quota's, those of other users of
the machine the instance's.
"""

from __future__ import annotations

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.moments import moment
from wherry.model.accounts import LeaseLimits, is_account
from wherry.model.records import Cluster, ClusterLease
from wherry.model.spec.cluster import ClusterSpec
from wherry.schedule.leases import lease_for, limits_of
from wherry.store.store import Store

_LIMITS = "leases.limits"
"""Setting: the limits of the instance."""


def limits_of_instance(store: Store) -> LeaseLimits:
    """The limits for everybody for whom an admin set no others."""
    text = store.setting(_LIMITS)
    return LeaseLimits.model_validate_json(text) if text else LeaseLimits()


def set_limits_of_instance(store: Store, limits: LeaseLimits) -> None:
    """Changes them. Leases that are longer already stay."""
    store.put_setting(_LIMITS, limits.model_dump_json())


def limits_for(store: Store, uid: int) -> LeaseLimits:
    """The limits of an owner."""
    if uid == 0:
        return LeaseLimits()
    found = store.accounts.of_uid(uid) if is_account(uid) else None
    return limits_of(found.quota, limits_of_instance(store)) if found else limits_of_instance(store)


def planned_lease(store: Store, spec: ClusterSpec, uid: int, old: Cluster | None) -> dict[str, object]:
    """`lease` and `keeps_lease` of a plan: the file's, else the owner's usual one; that of a cluster that there is
    stays, unless the file has another one than before. QUOTA_EXCEEDED when it is too long."""
    if old:
        require_lease(store, old.name)
        if spec.lease is None or spec.lease == old.spec.lease:
            return {"keeps_lease": True}
    try:
        return {"lease": lease_for(spec.lease, limits_for(store, uid))}
    except ValueError as error:
        what = f"the lease of {spec.name} is longer than its owner may have"
        remedy = "ask for a shorter lease, and extend it later: wherry lease extend NAME --by 4h"
        raise Refused(Code.QUOTA_EXCEEDED, what, str(error), remedy) from None


def new_lease(length: float | None) -> ClusterLease | None:
    """A lease that begins now."""
    return None if length is None else ClusterLease(ends=now() + length, length=length)


def require_lease(store: Store, cluster: str) -> None:
    """WRONG_STATE when a cluster's lease has ended: it is about to be removed."""
    lease = store.leases.of(cluster)
    if lease and lease.ends <= now():
        what, why = f"the lease of {cluster} has ended", f"at {moment(lease.ends)}; it is about to be removed"
        raise Refused(Code.WRONG_STATE, what, why, f"wherry lease extend {cluster} --by 1h")
