"""Predicts the duration of a job's step for another placement, relative to the present one, from the job's profile.

    step = C + L + rest,  divided by the same sum for the present placement

C is the largest computing share of a node, scaled by its CPU share; L the largest share that a node spends on messages,
mostly over links; rest is other waiting, which is assumed constant. A node waits for at most the measured part of the
time that its messages take in transit; the same part is assumed for other placements.

If nodes never waited in the time measured, it is open which of them is behind: equal work is assumed, so the one with
the smallest CPU share is.

Pure. Invariant: the step of the present placement is 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from wherry.model.profile import Profile
from wherry.model.records import Host, Node
from wherry.schedule.routes import Hop, Routes

SITE_LATENCY = 0.0001
"""Assumed latency in seconds of a message within a site."""
_MIN_SHARE = 0.02
"""Share of a host that is assumed to be left for nodes, whatever other processes use."""

_TIE = 0.999
"""Nodes that compute at least this part of the maximum count as tied."""

_NEVER_WAITS = 0.97
"""Nodes that all compute at least this share of the time have not waited for each other."""

Where = Mapping[str, str]
"""Node -> host."""


@dataclass(frozen=True)
class World:
    """Hosts by name, the routes between sites, and by host the CPUs that `foreign` processes use and that `busy` nodes
    of other clusters may use."""

    hosts: Mapping[str, Host]
    routes: Routes
    foreign: Mapping[str, float]
    busy: Mapping[str, float]

    def cpu_share(self, host: str, own: float) -> float:
        """The speed of each CPU of the nodes on a host, where this cluster's busy nodes have `own` CPUs: 1 is an
        unshared core of the fastest host."""
        found = self.hosts[host]
        asked = found.speed * (own + self.busy.get(host, 0.0))
        left = max(found.cores * found.speed - self.foreign.get(host, 0.0), _MIN_SHARE * found.cores)
        return found.speed * min(1.0, left / asked) if asked > 0 else found.speed


@dataclass(frozen=True)
class Step:
    """A step in units of the present step: its total, the computing share of the `busiest` node, the largest link
    share, and the bytes and turns per second that cross links."""

    total: float
    computing: float
    link: float
    busiest: str
    crossing: float
    turns: float


class StepModel:
    """The step model of one cluster's jobs; `nodes` are those with ranks."""

    def __init__(self, profile: Profile, nodes: Sequence[Node], world: World) -> None:
        self._world = world
        names = {node.name for node in nodes}
        self._loads = {load.node: load for load in profile.nodes if load.node in names}
        self._flows = [f for f in profile.flows or () if f.source in self._loads and f.target in self._loads]
        self._cpus = {node.name: node.cpus for node in nodes}
        self.now: dict[str, str] = {node.name: node.host for node in nodes}
        self._rates = self._cpu_shares(self.now)
        self._work = self._work_per_second()
        self._waited_part = dict[str, float]()
        for name, wire in self._wire(self.now)[0].items():
            waited = self._loads[name].waiting
            self._waited_part[name] = min(1.0, waited / sum(wire)) if sum(wire) > 0 else 1.0
        computing, messages, *_ = self._parts(self.now)
        self._rest = max(0.0, 1.0 - computing - messages)
        self._unit = computing + messages + self._rest

    def step(self, where: Where) -> Step:
        """The step of this placement."""
        computing, messages, link, busiest, crossing, count = self._parts(where)
        total = (computing + messages + self._rest) / self._unit
        return Step(total, computing / self._unit, link / self._unit, busiest, crossing, count)

    def computing(self, node: str) -> float:
        """The node's present computing share."""
        return self._loads[node].computing if node in self._loads else 0.0

    def most_loaded(self, where: Where, besides: Collection[str]) -> str:
        """The node with the largest computing share, or tied with it, that is not in `besides`; empty when none is
        left."""
        shares = self._computing(where)
        least = _TIE * max(shares.values(), default=0.0)
        return max(((share, name) for name, share in shares.items() if share >= least and name not in besides),
                   default=(0.0, ""))[1]  # fmt: skip

    def _parts(self, where: Where) -> tuple[float, float, float, str, float, float]:
        shares = self._computing(where)
        busiest = max(shares, key=lambda name: (shares[name], name), default="")
        wire, crossing, count = self._wire(where)
        messages = link = 0.0
        for name, (far, near) in wire.items():
            paid = self._waited_part.get(name, 1.0)
            messages, link = max(messages, paid * (far + near)), max(link, paid * far)
        return shares.get(busiest, 0.0), messages, link, busiest, crossing, count

    def _computing(self, where: Where) -> dict[str, float]:
        rates = self._cpu_shares(where)
        return {name: work / rates[name] for name, work in self._work.items() if name in rates}

    def _work_per_second(self) -> dict[str, float]:
        """The work between two waits of each node, in seconds of an unshared core of the fastest host."""
        loads = {name: load.computing for name, load in self._loads.items() if name in self._rates}
        if min(loads.values(), default=0.0) >= _NEVER_WAITS:
            return dict.fromkeys(loads, min(self._rates[name] for name in loads))
        return {name: computing * self._rates[name] for name, computing in loads.items()}

    def _cpu_shares(self, where: Where) -> dict[str, float]:
        own = defaultdict[str, float](float)
        for name, cpus in self._cpus.items():
            own[where[name]] += cpus
        given = {host: self._world.cpu_share(host, cpus) for host, cpus in own.items()}
        return {name: given[where[name]] for name in self._cpus}

    def _wire(self, where: Where) -> tuple[dict[str, tuple[float, float]], float, float]:
        """By receiving node, the time in transit of its messages in seconds per second, over links and within the site;
        then the bytes and turns per second that cross links."""
        hosts, routes = self._world.hosts, self._world.routes
        site = {name: hosts[where[name]].site for name in self._loads}
        far, near, load = defaultdict[str, float](float), defaultdict[str, float](float), defaultdict[Hop, float](float)
        across, size, count = set[str](), 0.0, 0.0
        for flow in self._flows:
            one, other = site[flow.source], site[flow.target]
            if one == other:
                near[flow.target] += flow.turns * SITE_LATENCY
                continue
            route = routes.route(one, other)
            far[flow.target] += flow.turns * route.latency
            across |= {flow.source, flow.target}
            size, count = size + flow.bytes, count + flow.turns
            for hop in route.hops:
                load[hop] += flow.bytes
        queue = routes.seconds(load)
        names = across | set(near)
        wire = {name: (far[name] + (queue if name in across else 0.0), near[name]) for name in names}
        return wire, size, count
