"""Jobs that are only imagined, with the profile that they would show wherever their nodes are.

A job is a round of computing on each node and of messages between pairs, in which every node waits for the slowest: the
truth that the rule of `wherry.schedule.balance` estimates from profiles.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from wherry.model.balance import BalancePlan
from wherry.model.profile import Flow, NodeLoad, Profile
from wherry.model.records import Host, Move, Node, NodeState, Prediction
from wherry.model.spec.fabric import LinkSpec
from wherry.schedule.balance import Case, Rule, plan
from wherry.schedule.placement import Used, used_by
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import World

MIB = 2**20
NOW = 1_000_000.0
COST = Prediction(bytes=64 * MIB, rounds=0, seconds=1.0, downtime=0.2, basis="imagined")


def hosts_at(sites: str, each: int, cores: float = 1.0, **more: float) -> list[Host]:
    """`each` hosts at every site: a1, a2, …"""
    return [
        Host(name=f"{site}{number}", site=site, cores=cores, memory=1024 * MIB, **more)  # type: ignore[arg-type]
        for site in sites
        for number in range(1, each + 1)
    ]


def nodes_on(cluster: str, hosts: list[str], cpus: float = 1.0) -> tuple[Node, ...]:
    """A node on each of these hosts, in this order."""
    return tuple(
        Node(
            name=f"{cluster}-{i}", cluster=cluster, index=i, host=host, address="", mac="", cpus=cpus, memory=64 * MIB,
            state=NodeState.RUNNING,
        )
        for i, host in enumerate(hosts)
    )  # fmt: skip


@dataclass
class Imagined:
    """Hosts, the links between their sites in a line, and jobs."""

    hosts: list[Host]
    latency: str = "10ms"
    bandwidth: str = "1Gbit/s"
    foreign: dict[str, float] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    idle: tuple[Node, ...] = ()
    under_way: tuple[Move, ...] = ()
    """Moves of idle nodes that are not over: both their hosts hold the node."""

    def nodes(self) -> list[Node]:
        """All that there are."""
        return [*(node for job in self.jobs for node in job.nodes), *self.idle]

    def world(self, without: str = "") -> World:
        """As the rule sees it."""
        sites = sorted({host.site for host in self.hosts})
        links = [
            LinkSpec.model_validate({"between": pair, "latency": self.latency, "bandwidth": self.bandwidth})
            for pair in zip(sites, sites[1:], strict=False)
        ]
        return World({host.name: host for host in self.hosts}, Routes(links), self.foreign, {})

    def plan(self, rule: Rule | None = None, now: float = NOW, jitter: random.Random | None = None) -> BalancePlan:
        """The rule's plan for all jobs."""
        world = self.world()
        cases = [job.case(world, jitter) for job in self.jobs]
        return plan(cases, world, self.nodes(), self.under_way, now, rule or Rule())

    def apply(self, found: BalancePlan, now: float = NOW) -> None:
        """Does the moves at once: the rest of a job is the same work, done in another time."""
        where, world = {move.node: move.destination for move in found.moves}, self.world()
        for job in self.jobs:
            before = job.round(world)[0]
            for node in job.nodes:
                if node.name in where:
                    job.moved[node.name] = job.left[node.name, node.host] = now
            job.nodes = tuple(n.model_copy(update={"host": where.get(n.name, n.host)}) for n in job.nodes)
            job.remaining *= job.round(world)[0] / before

    def overfull(self) -> list[str]:
        """Hosts with more than they have."""
        used = used_by(self.nodes(), self.under_way)
        taken = {host.name: used.get(host.name, Used()) for host in self.hosts}
        return [
            host.name
            for host in self.hosts
            if taken[host.name].cpus > host.cores + 1e-6 or taken[host.name].memory > host.memory
        ]


@dataclass
class Job:
    """`work` is seconds of computing per round and node at full speed, `messages` and `size` (bytes) per round and
    ordered pair; `flight` is how many messages are on their way at once, 1 when each is waited for by itself."""

    nodes: tuple[Node, ...]
    work: Mapping[str, float] | float = 0.01
    pairs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    size: int = 1000
    flight: float = 1.0
    remaining: float = 600.0
    pinned: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    most: int | None = None
    moved: dict[str, float] = field(default_factory=dict)
    left: dict[tuple[str, str], float] = field(default_factory=dict)

    def round(self, world: World) -> tuple[float, dict[str, float], dict[str, float]]:
        """Seconds of a round, and per node its seconds of computing and of waiting for messages."""
        computing, waiting = dict[str, float](), dict[str, float]()
        for node in self.nodes:
            work = self.work if isinstance(self.work, float | int) else self.work[node.name]
            own = sum(other.cpus for other in self.nodes if other.host == node.host)
            computing[node.name] = work / world.cpu_share(node.host, own)
            waiting[node.name] = sum(
                count
                * (world.routes.route(self._site(world, one), self._site(world, other)).latency or 5e-5)
                / self.flight
                for (one, other), count in self.pairs.items()
                if self.nodes[other].name == node.name
            )
        return max(computing.values()) + max(waiting.values()), computing, waiting

    def case(self, world: World, jitter: random.Random | None = None) -> Case:
        """Its measurements, which `jitter` makes up to 10 % too large or too small."""
        seconds, computing, _ = self.round(world)

        def seen(value: float) -> float:
            return value * (1 + (jitter.uniform(-0.1, 0.1) if jitter else 0.0))

        loads = []
        for node in self.nodes:
            share = min(1.0, seen(computing[node.name] / seconds))
            loads.append(
                NodeLoad(node=node.name, host=node.host, ranks=1, cpu=node.cpus, computing=share, waiting=1 - share)
            )
        flows = [
            Flow(
                source=self.nodes[one].name, target=self.nodes[other].name, messages=seen(count / seconds),
                bytes=seen(count * self.size / seconds), turns=seen(count / self.flight / seconds),
            )
            for (one, other), count in self.pairs.items()
        ]  # fmt: skip
        profile = Profile(
            cluster=self.nodes[0].cluster, jobs=("job",), time=NOW, seconds=5, ran=self.remaining,
            remaining=self.remaining, basis="imagined", nodes=tuple(loads), flows=tuple(flows),
        )  # fmt: skip
        allowed = frozenset(world.hosts) if self.allowed is None else self.allowed
        costs = {node.name: COST for node in self.nodes}
        return Case(profile, self.nodes, allowed, costs, self.pinned, self.most, self.moved, self.left)

    def _site(self, world: World, index: int) -> str:
        return world.hosts[self.nodes[index].host].site


def ring(count: int, messages: int = 4) -> dict[tuple[int, int], int]:
    """Messages between neighbours, both ways."""
    pairs = {}
    for one in range(count):
        pairs[one, (one + 1) % count] = pairs[(one + 1) % count, one] = messages
    return {pair: number for pair, number in pairs.items() if pair[0] != pair[1]}
