"""Leases of clusters: how long, when their owners are warned, when a cluster is to be removed. Pure functions.

Invariant: no cluster is to be removed before its owner was warned a while ago, however the clock was set and however
long the daemon was away.
"""

from __future__ import annotations

from typing import Literal

from wherry.base.units import format_span
from wherry.model.accounts import LeaseLimits, Quota
from wherry.model.records import ClusterLease

_WARNING, _NOTICE, _SHARE = 900.0, 60.0, 0.25
"""Seconds before its end at which a cluster's owner is warned, and the fewest from a warning to the end; for a short
lease this share of it."""


def limits_of(quota: Quota, instance: LeaseLimits) -> LeaseLimits:
    """The limits of an account or project."""
    usual = instance.usual if quota.lease == "instance" else quota.lease
    longest = instance.longest if quota.longest_lease == "instance" else quota.longest_lease
    return LeaseLimits(usual=usual, longest=longest)


def lease_for(asked: float | Literal["none"] | None, limits: LeaseLimits) -> float | None:
    """Seconds of a new lease, or None for a cluster without an end. ValueError with the reason when it is longer than
    the longest."""
    if asked is None:
        known = [seconds for seconds in (limits.usual, limits.longest) if seconds is not None]
        return min(known, default=None)
    seconds = None if asked == "none" else asked
    if why := excess(seconds, limits):
        raise ValueError(why)
    return seconds


def excess(seconds: float | None, limits: LeaseLimits) -> str:
    """Why a lease of so many seconds from now is too long; empty when it is not."""
    if limits.longest is None or seconds is not None and seconds <= limits.longest:
        return ""
    asked = "no end" if seconds is None else format_span(seconds)
    return f"the longest lease is {format_span(limits.longest)}, and it would have {asked}"


def warns_at(lease: ClusterLease) -> float:
    """When the owner is warned."""
    return lease.ends - min(_WARNING, _SHARE * lease.length)


def ends_at(lease: ClusterLease, present: float) -> float:
    """When the cluster is removed, if its owner is warned at the `present` time unless that was done before."""
    warned = present if lease.warned is None else lease.warned
    return max(lease.ends, warned + min(_NOTICE, _SHARE * lease.length))
