"""Placement of new nodes on hosts.

Invariants: pure and deterministic; no host gets more memory or CPUs than it has, and none that is down or drained gets
a node. CPUs are limits, not reservations, so a host can be full and idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.model.records import Host, Move, Node
from wherry.model.spec.cluster import PlacementSpec

_ROUNDING = 1e-9
"""CPUs are sums of floats: ten nodes of 0.1 fit on one core."""


@dataclass(frozen=True)
class NodeNeed:
    """The room that one node takes."""

    cpus: float
    memory: int


@dataclass(frozen=True)
class Used:
    """The room that is taken on a host."""

    cpus: float = 0.0
    memory: int = 0
    nodes: int = 0

    def plus(self, need: NodeNeed) -> Used:
        """The sum with one more node."""
        return Used(self.cpus + need.cpus, self.memory + need.memory, self.nodes + 1)


def used_by(nodes: Iterable[Node], moves: Iterable[Move] = ()) -> dict[str, Used]:
    """The room that nodes take, by host. A moving node counts on both hosts, which both have a copy for a while."""
    used: dict[str, Used] = {}
    known = {node.name: node for node in nodes}
    places = [(node.name, node.host) for node in known.values()]
    for move in moves:
        ends = {move.source, move.destination}
        places += [(move.node, end) for end in sorted(ends) if move.node in known and end != known[move.node].host]
    for name, host in places:
        need = NodeNeed(known[name].cpus, known[name].memory)
        used[host] = used.get(host, Used()).plus(need)
    return used


def shortage(host: Host, used: Used, need: NodeNeed) -> str:
    """Why the host cannot take one more node; empty when it can."""
    if host.down:
        return f"host {host.name} is down"
    if host.drained:
        return f"host {host.name} is drained"
    if used.memory + need.memory > host.memory:
        left = format_size(max(host.memory - used.memory, 0))
        return f"host {host.name} has {left} of memory left, the node needs {format_size(need.memory)}"
    if used.cpus + need.cpus > host.cores + _ROUNDING:
        return f"host {host.name} has {max(host.cores - used.cpus, 0):g} CPUs left, the node needs {need.cpus:g}"
    return ""


def place_nodes(
    nodes_wanted: list[NodeNeed],
    hosts: list[Host],
    used: Mapping[str, Used],
    placement: PlacementSpec,
    sites: Collection[str] = (),
    only_hosts: Collection[str] = (),
    own: Mapping[str, int] | None = None,
) -> list[str]:
    """A host for each wanted node. `own` is the number of nodes that the cluster has already, by host.

    Refused NO_CAPACITY, with the number of nodes that fit, when not all do.
    """
    allowed = [h for h in hosts if (not sites or h.site in sites) and (not only_hosts or h.name in only_hosts)]
    taken, mine, chosen = dict(used), dict(own or {}), list[str]()
    if placement.spread == "pack":
        allowed = _nearest(allowed, nodes_wanted, taken, mine, placement)
    for need in nodes_wanted:
        fitting = [
            host
            for host in allowed
            if not shortage(host, taken.get(host.name, Used()), need)
            and (placement.max_per_host is None or mine.get(host.name, 0) < placement.max_per_host)
        ]
        if not fitting:
            raise _too_many(nodes_wanted, len(chosen), need, allowed, taken, placement)
        host = min(fitting, key=lambda h: _rank(h, allowed, taken, mine, placement))
        chosen.append(host.name)
        taken[host.name] = taken.get(host.name, Used()).plus(need)
        mine[host.name] = mine.get(host.name, 0) + 1
    return _by_site(chosen, allowed) if placement.spread == "site" and len(set(nodes_wanted)) == 1 else chosen


def _nearest(
    hosts: list[Host],
    wanted: list[NodeNeed],
    used: Mapping[str, Used],
    own: Mapping[str, int],
    placement: PlacementSpec,
) -> list[Host]:
    """The hosts sorted by site: first the site with most nodes of the cluster, then the one where most wanted ones
    fit."""
    sites = list(dict.fromkeys(host.site for host in hosts))
    fit, mine = dict.fromkeys(sites, 0), dict.fromkeys(sites, 0)
    for host in hosts:
        mine[host.site] += own.get(host.name, 0)
    for site in sites:
        left, taken = [host for host in hosts if host.site == site], dict(used)
        count = dict(own)
        for need in wanted:
            while left and (
                shortage(left[0], taken.get(left[0].name, Used()), need)
                or (placement.max_per_host is not None and count.get(left[0].name, 0) >= placement.max_per_host)
            ):
                left.pop(0)
            if not left:
                break
            name = left[0].name
            taken[name], count[name] = taken.get(name, Used()).plus(need), count.get(name, 0) + 1
            fit[site] += 1
    return sorted(hosts, key=lambda host: (-mine[host.site], -fit[host.site], sites.index(host.site)))


def _by_site(chosen: list[str], hosts: list[Host]) -> list[str]:
    """The hosts grouped by site: ranks fill nodes in order, and neighbouring ranks exchange most messages."""
    site = {host.name: host.site for host in hosts}
    order = list(dict.fromkeys(site[name] for name in chosen))
    return sorted(chosen, key=lambda name: order.index(site[name]))


def choose_host(node: Node, hosts: list[Host], used: Mapping[str, Used]) -> str:
    """The destination of a node whose host is drained: the host with the fewest nodes."""
    others = [host for host in hosts if host.name != node.host]
    try:
        return place_nodes([NodeNeed(node.cpus, node.memory)], others, used, PlacementSpec())[0]
    except Refused as error:
        raise Refused(Code.NO_CAPACITY, f"no host can take {node.name}", error.why, "wherry status") from None


def _rank(
    host: Host, hosts: list[Host], used: Mapping[str, Used], mine: Mapping[str, int], placement: PlacementSpec
) -> tuple[int, ...]:
    """Sort key of a host: the smallest is chosen, and the first declared of equal ones, since `min` is stable."""
    nodes = used.get(host.name, Used()).nodes
    if placement.spread == "pack":
        return (0,)
    if placement.spread == "site":
        return (sum(mine.get(other.name, 0) for other in hosts if other.site == host.site), nodes)
    return (nodes,)


def _too_many(
    wanted: list[NodeNeed],
    fit: int,
    need: NodeNeed,
    hosts: list[Host],
    used: Mapping[str, Used],
    placement: PlacementSpec,
) -> Refused:
    reasons = [
        shortage(host, used.get(host.name, Used()), need)
        or f"host {host.name} has {placement.max_per_host} nodes already (placement.max_per_host)"
        for host in hosts
    ]
    shown = "; ".join(reasons[:4]) + (f"; and {len(reasons) - 4} more hosts" if len(reasons) > 4 else "")
    return Refused(
        Code.NO_CAPACITY,
        f"{len(wanted)} nodes are wanted and {fit} fit",
        shown or "no host is allowed by the file's sites and hosts",
        "ask for fewer or smaller nodes, or see what is taken: wherry status",
    )
