"""Profile of a running job from outside: the difference of two samples of kernel counters.

A waiting rank polls: `_SPINNING` of its CPU time is system time, of which a computing rank has hardly any. So the time
that a rank waits follows from its share of system time, and from the time in which it was not runnable. Invariants:
nothing in a node is stopped or changed; a rank that started, ended or moved between the samples is omitted; a node
whose ranks could not be read is listed, never taken for idle.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from wherry.base.clock import now
from wherry.base.errors import Refused, WherryError
from wherry.cluster.placements import Placements
from wherry.fabric.ask_hosts import ask_hosts
from wherry.fabric.host_counters import FrameCounter, FrameCounts, HostCounters, NodeCounters
from wherry.fabric.protocol import Fabric
from wherry.fabric.traffic_matrix import Count, Pair
from wherry.job import mpi_profile, ranks
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.job.inside_loads import as_seen_inside
from wherry.job.mpi_profile import Reading
from wherry.job.ranks import Process
from wherry.model.profile import Flow, NodeLoad, Profile, RankLoad
from wherry.model.records import Job, Node
from wherry.node.rank_host import RankHosts, RankProcess
from wherry.node.ranks import Times
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
    """`throttled` and `cpu` by node, and by host for its whole cgroup, as far as hosts reported."""
    pairs: dict[Pair, Count] | None = None
    uncounted: str = ""
    far: dict[str, frozenset[str]] = field(default_factory=dict)
    """By host, the MACs of the nodes that are so far away that turns with them are counted."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Nodes whose ranks could not be read, with the reason."""
    hosts: dict[str, HostCounters] = field(default_factory=dict)
    """The reports of hosts on themselves."""
    readers: dict[str, str] = field(default_factory=dict)
    """By host, the reader that counted its frames."""
    blind: dict[str, str] = field(default_factory=dict)
    """Hosts that did not count frames, with the reason."""
    inside: dict[str, Reading] = field(default_factory=dict)
    """By job, what its ranks count of their calls of MPI."""


@dataclass(frozen=True)
class _Report:
    """The report of one host; without counters, where it has none."""

    counters: HostCounters | None
    ranks: tuple[RankProcess, ...]
    frames: FrameCounts | None
    blind: str
    inside: dict[str, Reading]


class Sampler:
    """Takes samples of the nodes on a fabric, from their hosts. Must be closed."""

    def __init__(self, fabric: Fabric, placements: Placements, ranks: RankHosts) -> None:
        self._fabric, self._placements, self._ranks = fabric, placements, ranks
        self._frames: dict[str, FrameCounter] = {}

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
        if self._fabric.uncounted:
            return replace(sample, uncounted=self._fabric.uncounted)
        at = {host.name: [node for node in nodes if node.host == host.name] for host in self._fabric.spec.hosts}
        counters = self._frames
        reports, errors = ask_hosts(at, lambda host: self._ask(host, at[host], jobs, sample.far[host], counters))
        pairs = dict[Pair, Count]()
        for host, report in reports.items():
            _add(sample, host, report, pairs)
        for host, error in errors.items():
            sample.blind[host] = str(error)
            sample.unseen.update({node.name: str(error) for node in at[host]})
        return replace(sample, pairs=pairs)

    def close(self) -> None:
        """Stops the counting of frames; the next sample restarts it."""
        counters, self._frames = self._frames, {}
        ask_hosts(counters, lambda host: counters[host].close())  # a host that is silent now keeps its rules

    def _ask(
        self,
        host: str,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        far: frozenset[str],
        counters: dict[str, FrameCounter],
    ) -> _Report:
        names = tuple(node.name for node in nodes)
        ranks, figures, frames, blind = self._ranks(host).ranks(names) if names else (), None, None, ""
        with contextlib.suppress(Refused):
            figures = self._fabric.counters(host, names)
        try:
            if host not in counters:
                counters[host] = self._fabric.frame_counter(host)
            frames = counters[host].read(far)
            if counters is not self._frames:  # nobody waited for this answer: the counting was stopped meanwhile
                counters[host].close()
        except WherryError as error:
            blind = str(error)
        here = [job for job in jobs if not set(names).isdisjoint(job.nodes)]
        inside = {job.id: mpi_profile.take(job, nodes, self._placements, self._ranks, ranks) for job in here}
        return _Report(figures, ranks, frames, blind, inside)

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


def _add(sample: Sample, host: str, report: _Report, pairs: dict[Pair, Count]) -> None:
    """Adds the report of a host to a sample that is being made, and to its frames."""
    if report.counters is not None:
        sample.hosts[host] = report.counters
        groups: dict[str, HostCounters | NodeCounters] = {host: report.counters, **report.counters.nodes}
        for name, found in groups.items():
            sample.cpu[name], sample.throttled[name] = found.cpu, found.throttled
    sample.ranks.update({(f"@{host}", rank.pid): rank.times for rank in report.ranks})
    for job, reading in report.inside.items():
        sample.inside.setdefault(job, Reading()).add(reading)
    if report.frames is None:
        sample.blind[host] = report.blind
        return
    sample.readers[host] = report.frames.reader
    for one, other, *count in report.frames.pairs:
        had = pairs.get((one, other), Count(0, 0, 0))  # a node that moved sent from several hosts
        pairs[one, other] = Count(*map(operator.add, had, count))


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
    loads = _ranks(before, after, {node.name for node in nodes})
    left, basis = _left(jobs, ran, remaining)
    uncounted = _uncounted(before, after, {node.host for node in nodes})
    found = Profile(
        cluster=cluster,
        jobs=tuple(job.id for job in jobs),
        time=now(),
        seconds=seconds,
        ran=max(ran.values(), default=0.0),
        remaining=left,
        basis=basis,
        nodes=tuple(_node(before, after, node, loads) for node in nodes),
        ranks=tuple(loads),
        flows=None if uncounted else _flows(before, after, nodes, seconds),
        uncounted=uncounted,
    )
    seen = [
        mpi_profile.profile(job, before.inside[job.id], after.inside[job.id], recent=True)
        for job in jobs
        if job.id in before.inside and job.id in after.inside
    ]
    return as_seen_inside(found, jobs, seen)


def _uncounted(before: Sample, after: Sample, hosts: Collection[str]) -> str:
    """Why the frames of these hosts were not counted from one sample to the other; empty when they were."""
    for sample in (after, before):
        if sample.pairs is None:
            return sample.uncounted
        if why := next((sample.blind[host] for host in sorted(hosts) if host in sample.blind), ""):
            return why
    anew = (host for host in sorted(hosts) if before.readers.get(host) != after.readers.get(host))
    return next((f"host {host} began to count anew meanwhile" for host in anew), "")


def _seconds(before: Sample, after: Sample, host: str) -> float:
    """Between the two reports of a host by its own clock; between the samples where it has none."""
    if host in before.hosts and host in after.hosts:
        return max(after.hosts[host].at - before.hosts[host].at, 1e-3)
    return max(after.time - before.time, 1e-3)


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
    """CPUs used by other processes than nodes between two samples, for each host that reported."""
    found = dict[str, float]()
    for host in (host for host in hosts if host in before.hosts and host in after.hosts):
        used = after.hosts[host].used_since(before.hosts[host])
        if used is None:  # it was booted meanwhile
            continue
        nodes = [name for name, where in after.where.items() if where == host and name in before.cpu]
        own = sum(_grown(before, after, name) for name in nodes)
        found[host] = max(0.0, used - own / _seconds(before, after, host))
    return found


def _grown(before: Sample, after: Sample, name: str) -> float:
    return max(0.0, after.cpu.get(name, 0.0) - before.cpu.get(name, 0.0))


def _ranks(before: Sample, after: Sample, nodes: set[str]) -> list[RankLoad]:
    """The ranks in both samples. Of several processes of one rank (a script and its program) the busiest counts."""
    found = dict[tuple[str, int], RankLoad]()
    for pid, times in after.ranks.items():
        old, key = before.ranks.get(pid), (times.job, times.rank)
        if old is None or (old.job, old.rank, old.node) != (*key, times.node) or times.node not in nodes:
            continue
        seconds = _seconds(before, after, after.where.get(times.node, ""))
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


def _node(before: Sample, after: Sample, node: Node, loads: Sequence[RankLoad]) -> NodeLoad:
    seconds = _seconds(before, after, node.host)
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
