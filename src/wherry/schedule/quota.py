"""Quotas: bounds on all clusters of one account or project together.

Pure functions. Only nodes that are to be added count against a quota: nodes over a reduced quota stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from wherry.base.units import format_size
from wherry.model.accounts import Quota, Usage
from wherry.model.records import Node
from wherry.schedule.placement import NodeNeed

_ROUNDING = 1e-9
"""CPUs are sums of floats."""


def usage_of(nodes: Iterable[Node]) -> Usage:
    """What nodes have."""
    found = list(nodes)
    cores, memory = sum(node.cpus for node in found), sum(node.memory for node in found)
    return Usage(nodes=len(found), cores=cores, memory=memory)


def seconds_left(quota: Quota, used: Usage) -> float | None:
    """For how long the nodes of an account can stay, as many as they are; None: for ever."""
    if quota.hours is None or not used.nodes:
        return None
    return max(0.0, quota.hours - used.hours) * 3600.0 / used.nodes


def excess(quota: Quota, used: Usage, needs: Iterable[NodeNeed]) -> str:
    """Why nodes that are to be added are too many; empty when they are not, or when there are none."""
    added = list(needs)
    if not added:
        return ""
    if quota.hours is not None and used.hours >= quota.hours:
        return f"it has used {used.hours:.1f} node-hours of {quota.hours:g}"
    nodes = used.nodes + len(added)
    cores = used.cores + sum(need.cpus for need in added)
    memory = used.memory + sum(need.memory for need in added)
    if quota.nodes is not None and nodes > quota.nodes:
        return f"it would have {nodes} nodes of {quota.nodes}"
    if quota.cores is not None and cores > quota.cores + _ROUNDING:
        return f"it would have {cores:g} cores of {quota.cores:g}"
    if quota.memory is not None and memory > quota.memory:
        return f"it would have {format_size(memory)} of memory of {format_size(quota.memory)}"
    return ""
