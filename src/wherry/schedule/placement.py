"""Placement of new nodes on hosts.

Of hosts that the file treats alike the faster and less loaded one is chosen (`host_speed`), then the one with fewer
nodes. A file without a word on placement leaves all of it to that.

Invariants: pure and deterministic; no host gets more memory or CPUs than it has, none that is down or drained gets a
node, and none gets a pinned node whose CPUs or NUMA node it has not. CPUs are limits, not reservations, so a host can
be full and idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.model.records import Host, Move, Node
from wherry.model.spec.cluster import PlacementSpec
from wherry.schedule.host_speed import Loads, Place, class_of, described, speed_left
from wherry.schedule.pinning import PinWish, lacks_cpus, taken_by_host, wish_of_move

_ROUNDING = 1e-9
"""CPUs are sums of floats: ten nodes of 0.1 fit on one core."""


@dataclass(frozen=True)
class NodeNeed:
    """The room that one node takes."""

    cpus: float
    memory: int
    pinned: int = 0
    """CPUs that it has to itself."""
    pin: PinWish | None = None
    """Which ones."""

    @classmethod
    def of(cls, node: Node) -> NodeNeed:
        """The need of a node where it moves."""
        return cls(node.cpus, node.memory, len(node.pin.cpus) if node.pin else 0, wish_of_move(node))


@dataclass(frozen=True)
class Used:
    """The room that is taken on a host. `held` are the CPUs that are pins, and whose; `wishes` those of nodes that are
    to come, whose CPUs are not chosen yet. `pinned` counts both."""

    cpus: float = 0.0
    memory: int = 0
    nodes: int = 0
    pinned: int = 0
    held: Mapping[int, str] = field(default_factory=dict)
    wishes: tuple[PinWish, ...] = ()

    def plus(self, need: NodeNeed) -> Used:
        """The sum with one more node that is to come."""
        wishes = (*self.wishes, need.pin) if need.pin else self.wishes
        pinned = self.pinned + need.pinned
        return Used(
            self.cpus + need.cpus, self.memory + need.memory, self.nodes + 1, pinned, self.held, wishes
        )  # fmt: skip


def used_by(nodes: Iterable[Node], moves: Iterable[Move] = ()) -> dict[str, Used]:
    """The room that nodes take, by host. A moving node counts on both hosts, which both have a copy for a while."""
    used: dict[str, Used] = {}
    known, moves = {node.name: node for node in nodes}, list(moves)
    places = [(node.name, node.host) for node in known.values()]
    for move in moves:
        ends = {move.source, move.destination}
        places += [(move.node, end) for end in sorted(ends) if move.node in known and end != known[move.node].host]
    for name, host in places:
        need = replace(NodeNeed.of(known[name]), pin=None)
        used[host] = used.get(host, Used()).plus(need)
    held = taken_by_host(known.values(), (move for move in moves if move.node in known))
    return used | {host: replace(used.get(host, Used()), held=cpus) for host, cpus in held.items()}


def shortage(host: Host, used: Used, need: NodeNeed) -> str:
    """Why the host cannot take one more node; empty when it can."""
    if host.absent:
        return f"host {host.name} is not allocated"
    if host.down:
        return f"host {host.name} is down"
    if host.drained:
        return f"host {host.name} is drained"
    if used.memory + need.memory > host.memory:
        left = format_size(max(host.memory - used.memory, 0))
        return f"host {host.name} has {left} of memory left, the node needs {format_size(need.memory)}"
    if used.cpus + need.cpus > host.cores + _ROUNDING:
        return f"host {host.name} has {max(host.cores - used.cpus, 0):g} CPUs left, the node needs {need.cpus:g}"
    whole = len(host.facts.cpus) if host.facts else 0
    if need.pinned and whole and used.pinned + need.pinned > whole:
        free = max(whole - used.pinned, 0)
        return f"host {host.name} has {free} of its {whole} CPUs left to pin nodes to, the node needs {need.pinned}"
    return lacks_cpus(host, used.held, (*used.wishes, need.pin)) if need.pin else ""


def choose_places(
    nodes_wanted: list[NodeNeed],
    hosts: list[Host],
    used: Mapping[str, Used],
    placement: PlacementSpec,
    sites: Collection[str] = (),
    only_hosts: Collection[str] = (),
    own: Mapping[str, int] | None = None,
    loads: Loads | None = None,
) -> list[Place]:
    """A host for each wanted node, and why. `own` is the number of nodes that the cluster has already, by host, `loads`
    the CPUs measured to be in use.

    Refused NO_CAPACITY, with the number of nodes that fit, when not all do.
    """
    allowed = [h for h in hosts if (not sites or h.site in sites) and (not only_hosts or h.name in only_hosts)]
    taken, mine, chosen, loads = dict(used), dict(own or {}), list[Place](), loads or {}
    asked = dict.fromkeys([host.name for host in allowed], 0.0)
    if placement.spread == "pack":
        allowed = sorted(allowed, key=lambda host: -class_of(speed_left(host, loads, 1.0)))
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
        left = {host.name: class_of(speed_left(host, loads, asked[host.name] + need.cpus)) for host in fitting}
        host = min(fitting, key=lambda h: _rank(h, allowed, taken, mine, placement, left))
        before = taken.get(host.name, Used())
        asked[host.name] += need.cpus
        chosen.append(Place(host.name, described(host, loads, asked[host.name], before.nodes)))
        taken[host.name] = before.plus(need)
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
        here, taken = [host for host in hosts if host.site == site], dict(used)
        count = dict(own)
        for need in wanted:
            name = next(
                (
                    host.name
                    for host in here
                    if (placement.max_per_host is None or count.get(host.name, 0) < placement.max_per_host)
                    and not shortage(host, taken.get(host.name, Used()), need)
                ),
                None,
            )
            if name is not None:
                taken[name], count[name] = taken.get(name, Used()).plus(need), count.get(name, 0) + 1
                fit[site] += 1
    return sorted(hosts, key=lambda host: (-mine[host.site], -fit[host.site], sites.index(host.site)))


def _by_site(chosen: list[Place], hosts: list[Host]) -> list[Place]:
    """The hosts grouped by site: ranks fill nodes in order, and neighbouring ranks exchange most messages."""
    site = {host.name: host.site for host in hosts}
    order = list(dict.fromkeys(site[place.host] for place in chosen))
    return sorted(chosen, key=lambda place: order.index(site[place.host]))


def choose_host(node: Node, hosts: list[Host], used: Mapping[str, Used]) -> str:
    """The destination of a node whose host is drained: the host with the fewest nodes."""
    others = [host for host in hosts if host.name != node.host]
    try:
        return choose_places([NodeNeed.of(node)], others, used, PlacementSpec(spread="host"))[0].host
    except Refused as error:
        raise Refused(Code.NO_CAPACITY, f"no host can take {node.name}", error.why, "wherry status") from None


def _rank(
    host: Host,
    hosts: list[Host],
    used: Mapping[str, Used],
    mine: Mapping[str, int],
    placement: PlacementSpec,
    left: Mapping[str, int],
) -> tuple[int, ...]:
    """Sort key of a host: the smallest is chosen, and the first declared of equal ones, since `min` is stable."""
    nodes, slowness = used.get(host.name, Used()).nodes, -left[host.name]
    if placement.spread == "pack":
        return (0,)
    if placement.spread == "site":
        return (sum(mine.get(other.name, 0) for other in hosts if other.site == host.site), slowness, nodes)
    if "spread" in placement.model_fields_set:  # the user wants them apart, not only quick
        return (nodes, slowness)
    return (slowness, nodes)


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
