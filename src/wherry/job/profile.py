"""Profile of a running job from outside: the difference of two samples of kernel counters.

A waiting rank polls: `_SPINNING` of its CPU time is system time, of which a computing rank has hardly any. So the time
that a rank waits follows from its share of system time, and from the time in which it was not runnable. Invariants:
nothing in a node is stopped or changed; a rank that started, ended or moved between the samples is omitted; a node
whose ranks could not be read is listed, never taken for idle.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from wherry.base.clock import now
from wherry.base.errors import WherryError
from wherry.cluster.placements import Placements
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.fabric.traffic_matrix import Count, Pair, TrafficMatrix
from wherry.job import mpi_profile, ranks
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.job.inside_loads import as_seen_inside
from wherry.job.mpi_profile import Reading
from wherry.job.ranks import Process, RankId, Times
from wherry.model.profile import Flow, NodeLoad, Profile, RankLoad
from wherry.model.records import Job, Node
from wherry.schedule.routes import Routes

_SPINNING = 0.75
"""Share of system time of a polling rank: 0.80 with Open MPI 4.1 over TCP, 0.71 with MPICH 4.0 over UCX."""
_FAR = 0.0005
"""Seconds of latency above which turns are counted: a pair then has at most 2000 per second."""
_ANSWER = 3.0
"""Seconds that a virtual machine's agent may take to report its ranks."""
_PARALLEL = 16


@dataclass(frozen=True)
class Sample:
    """All counters at one time (seconds of the monotonic clock)."""

    time: float
    where: dict[str, str]
    ranks: dict[Process, Times] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    """`throttled` and `cpu` by node, and by host for its whole cgroup."""
    pairs: dict[Pair, Count] | None = None
    uncounted: str = ""
    far: dict[str, frozenset[str]] = field(default_factory=dict)
    """By host, the MACs of the nodes that are so far away that turns with them are counted."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Nodes whose ranks could not be read, with the reason."""
    inside: dict[str, Reading] = field(default_factory=dict)
    """By job, what its ranks count of their calls of MPI."""


class Sampler:
    """Takes samples of the nodes on a fabric. Each rank is identified once."""

    def __init__(self, fabric: Fabric, placements: Placements) -> None:
        self._fabric, self._placements = fabric, placements
        self._pairs = TrafficMatrix(fabric.take_bridges)
        self._known: dict[Process, RankId] = {}

    def take(self, nodes: Sequence[Node], jobs: Sequence[Job]) -> Sample:
        """The counters of these nodes, of all hosts, and of the ranks of these jobs, which are all."""
        busy = {job.cluster for job in jobs}
        machines = [node for node in nodes if node.cluster in busy and self._placements.port(node).tap]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            seen = list(pool.map(self._inside, machines))
        # taken after the agents answered, however long that took
        sample = Sample(time.monotonic(), {node.name: node.host for node in nodes}, far=self._far(nodes))
        for node, found in zip(machines, seen, strict=True):
            if isinstance(found, str):
                sample.unseen[node.name] = found
            else:
                sample.ranks.update(found)
        for node in nodes:
            group = Cgroup(self._placements.placement(node).cgroup)
            sample.throttled[node.name] = group.throttled()
            sample.cpu[node.name] = group.cpu_seconds()
            sample.ranks.update(ranks.here(node.name, group.pids(), self._known))
        self._known = {process: (times.job, times.rank) for process, times in sample.ranks.items()}
        for job in jobs:
            own = [node for node in nodes if node.cluster == job.cluster]
            sample.inside[job.id] = mpi_profile.take(job, own, self._placements, self._known)
        if self._fabric.uncounted:
            return replace(sample, uncounted=self._fabric.uncounted)
        for host in self._fabric.spec.hosts:
            group = Cgroup(self._fabric.cgroup(host.name))
            sample.throttled[host.name], sample.cpu[host.name] = group.throttled(), group.cpu_seconds()
        try:
            spaces = {self._fabric.host_netns(host): macs for host, macs in sample.far.items()}
            return replace(sample, pairs=self._pairs.read(spaces))
        except WherryError as error:
            return replace(sample, uncounted=str(error))

    def close(self) -> None:
        """Stops the counting of frames; the next sample restarts it."""
        self._pairs.close()

    def _inside(self, node: Node) -> dict[Process, Times] | str:
        """The ranks in a virtual machine, or why they could not be read."""
        placement = self._placements.placement(node)
        endpoint = AgentEndpoint(placement.netns, node.address, placement.key.get_secret_value())
        try:
            return ranks.inside(node.name, endpoint, placement.owner, _ANSWER)
        except AgentError as error:
            return str(error)

    def _far(self, nodes: Sequence[Node]) -> dict[str, frozenset[str]]:
        routes, hosts = Routes(self._fabric.spec.effective_links()), self._fabric.spec.hosts
        site, at = {host.name: host.site for host in hosts}, dict[str, set[str]]()
        for node in nodes:
            at.setdefault(site[node.host], set()).add(node.mac)
        beyond = {
            here: frozenset().union(*(macs for there, macs in at.items() if routes.route(here, there).latency >= _FAR))
            for here in set(site.values())
        }
        return {host.name: beyond[host.site] for host in hosts}


def profile(
    before: Sample,
    after: Sample,
    cluster: str,
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    remaining: float | None,
    ran: Mapping[str, float],
) -> Profile:
    """The activity of the cluster's jobs between two samples. `remaining`: the user's estimate in seconds, if any;
    `ran`: by job, the seconds since it started."""
    seconds = max(after.time - before.time, 1e-3)
    loads = _ranks(before, after, seconds, {node.name for node in nodes})
    left, basis = _left(jobs, ran, remaining)
    counted = before.pairs is not None and after.pairs is not None
    found = Profile(
        cluster=cluster,
        jobs=tuple(job.id for job in jobs),
        time=now(),
        seconds=seconds,
        ran=max(ran.values(), default=0.0),
        remaining=left,
        basis=basis,
        nodes=tuple(_node(before, after, node, loads, seconds) for node in nodes),
        ranks=tuple(loads),
        flows=_flows(before, after, nodes, seconds) if counted else None,
        uncounted=after.uncounted or before.uncounted,
    )
    seen = [
        mpi_profile.profile(job, before.inside[job.id], after.inside[job.id], recent=True)
        for job in jobs
        if job.id in before.inside and job.id in after.inside
    ]
    return as_seen_inside(found, jobs, seen)


def _left(jobs: Sequence[Job], ran: Mapping[str, float], told: float | None) -> tuple[float, str]:
    """Estimated remaining seconds, and the basis. A job past its estimate is assumed to need as long again (Lindy)."""
    if told is not None:
        return told, "as told"
    ends = [job.expected - ran[job.id] for job in jobs if job.expected]
    if ends and max(ends) > 0:
        told = any(job.hints and job.hints.told for job in jobs)
        return max(ends), "as its program announced" if told else "as expected when it began"
    return max(ran.values(), default=0.0), "as long again as it has run"


def foreign(before: Sample, after: Sample, hosts: Sequence[str]) -> dict[str, float]:
    """CPUs used by other processes than nodes between two samples, for each host with counters."""
    seconds, found = max(after.time - before.time, 1e-3), dict[str, float]()
    for host in (host for host in hosts if host in before.cpu and host in after.cpu):
        nodes = [name for name, where in after.where.items() if where == host and name in before.cpu]
        used = _grown(before, after, host) - sum(_grown(before, after, name) for name in nodes)
        found[host] = max(0.0, used / seconds)
    return found


def _grown(before: Sample, after: Sample, name: str) -> float:
    return max(0.0, after.cpu.get(name, 0.0) - before.cpu.get(name, 0.0))


def _ranks(before: Sample, after: Sample, seconds: float, nodes: set[str]) -> list[RankLoad]:
    """The ranks in both samples. Of several processes of one rank (a script and its program) the busiest counts."""
    found = dict[tuple[str, int], RankLoad]()
    for pid, times in after.ranks.items():
        old, key = before.ranks.get(pid), (times.job, times.rank)
        if old is None or (old.job, old.rank, old.node) != (*key, times.node) or times.node not in nodes:
            continue
        load = _rank(old, times, _held_back(before, after, times.node, seconds), seconds)
        if key not in found or load.cpu > found[key].cpu:
            found[key] = load
    return [found[key] for key in sorted(found)]


def _rank(old: Times, new: Times, held: float, seconds: float) -> RankLoad:
    user, system = new.user - old.user, new.system - old.system
    asleep = min(1.0, max(0.0, 1 - (new.ran - old.ran + new.ready - old.ready) / seconds - held))
    spun = min(1.0, system / (user + system) / _SPINNING) if user + system > 0 else 1.0
    waiting = asleep + (1 - asleep) * spun
    used = (user + system) / seconds
    return RankLoad(rank=new.rank, node=new.node, cpu=used, computing=1 - waiting, waiting=waiting)


def _held_back(before: Sample, after: Sample, node: str, seconds: float) -> float:
    """Share of the time in which the CPU limit of the node or of its host, whichever more, throttled it; counted per
    CPU, so limited to 1."""
    limits = (node, after.where.get(node, ""))
    held = (after.throttled.get(name, 0.0) - before.throttled.get(name, 0.0) for name in limits)
    return min(1.0, max(0.0, *held) / seconds)


def _node(before: Sample, after: Sample, node: Node, loads: Sequence[RankLoad], seconds: float) -> NodeLoad:
    here = [load for load in loads if load.node == node.name]
    count = max(1, len(here))
    return NodeLoad(
        node=node.name,
        host=node.host,
        ranks=len(here),
        cpu=_grown(before, after, node.name) / seconds,
        computing=sum(load.computing for load in here) / count,
        waiting=sum(load.waiting for load in here) / count,
        throttled=_held_back(before, after, node.name, seconds),
    )


def _flows(before: Sample, after: Sample, nodes: Sequence[Node], seconds: float) -> tuple[Flow, ...]:
    """Flows between the nodes. Where turns are not counted, every frame counts as one."""
    by_mac, found = {node.mac: node for node in nodes}, []
    for (one, other), new in sorted((after.pairs or {}).items()):
        old = (before.pairs or {}).get((one, other), Count(0, 0, 0))
        if one not in by_mac or other not in by_mac or new.frames <= old.frames:
            continue
        counted = all(one in sample.far.get(by_mac[other].host, ()) for sample in (before, after))
        found.append(
            Flow(
                source=by_mac[one].name,
                target=by_mac[other].name,
                messages=(new.frames - old.frames) / seconds,
                bytes=(new.bytes - old.bytes) / seconds,
                turns=(new.turns - old.turns if counted else new.frames - old.frames) / seconds,
            )
        )
    return tuple(found)
