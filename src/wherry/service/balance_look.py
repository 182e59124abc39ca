"""From what runs to a plan: samples of the machine, and the cases that `wherry.schedule.balance` decides on.

Invariant: it looks and changes nothing (but that frames are counted from the first sample on).
"""

from __future__ import annotations

import time
from collections.abc import Collection

from wherry.base.clock import now
from wherry.base.errors import Code, LostContact, Refused
from wherry.job.profile import Sample, Sampler, foreign, profile
from wherry.model.balance import BalancePlan, Kind, Verdict
from wherry.model.objects import Cluster, Host, Move, Node, NodeState, Phase, Prediction
from wherry.model.profile import Profile
from wherry.move.predict import estimate
from wherry.schedule.balance import Case, Rule, plan
from wherry.schedule.roads import Roads
from wherry.schedule.score import World
from wherry.service.cell import UNDER_WAY, Cell, Domain


class Look:
    """Looks at the nodes on one fabric. Samples of one object belong together."""

    def __init__(self, cell: Cell, domain: Domain) -> None:
        self.domain = domain
        self._cell = cell
        self._sampler = Sampler(domain.fabric, domain.places)

    def sample(self) -> Sample:
        """The counters of all nodes that run."""
        busy = {job.cluster for job in self._cell.store.jobs() if job.state in UNDER_WAY}
        nodes = [node for node in self._cell.store.nodes() if node.state == NodeState.RUNNING]
        return self._sampler.take(nodes, busy)

    def over(self, seconds: float) -> tuple[Sample, Sample]:
        """Two samples so far apart."""
        before = self.sample()
        time.sleep(seconds)
        return before, self.sample()

    def profile(self, before: Sample, after: Sample, cluster: str, remaining: float | None = None) -> Profile:
        """What the cluster's jobs did between two samples. LostContact when its ranks could not be looked at."""
        for node in self._cell.store.nodes(cluster):
            if blind := _blind(before, after, node):
                what = f"the ranks in {node.name} could not be looked at"
                raise LostContact(Code.UNREACHABLE, what, blind, f"wherry logs --node {node.name}")
        jobs = [job for job in self._cell.store.jobs(cluster) if job.state in UNDER_WAY]
        return profile(before, after, cluster, jobs, self._cell.store.nodes(cluster), remaining)

    def plan(
        self, before: Sample, after: Sample, clusters: Collection[str], remaining: float | None = None
    ) -> BalancePlan:
        """The verdicts on these clusters, from what was seen between two samples."""
        store, hosts = self._cell.store, self._cell.hosts()
        cases, aside = list[Case](), list[Verdict]()
        moves = store.moves()
        for name in clusters:
            cluster, nodes = store.cluster(name), store.nodes(name)
            if cluster is None:
                continue
            if why := _unsteady(before, after, nodes):
                aside.append(Verdict(cluster=name, kind=Kind.UNKNOWN, text=why))
                continue
            seen = self.profile(before, after, name, remaining)
            cases.append(self._case(cluster, nodes, seen, hosts, [move for move in moves if move.cluster == name]))
        names = [host.name for host in hosts]
        roads = Roads(self.domain.fabric.spec.joins())
        world = World({host.name: host for host in hosts}, roads, foreign(before, after, names), {})
        found = plan(cases, world, store.nodes(), store.moves(unfinished=True), now(), Rule())
        verdicts = {verdict.cluster: verdict for verdict in (*found.verdicts, *aside)}
        return BalancePlan(verdicts=tuple(verdicts[name] for name in clusters if name in verdicts))

    def _case(self, cluster: Cluster, nodes: list[Node], seen: Profile, hosts: list[Host], moves: list[Move]) -> Case:
        ended = [move for move in moves if move.ended and move.created >= cluster.created]  # not of its namesake
        left = {(move.node, move.source): move.ended or 0.0 for move in ended if move.phase == Phase.DONE}
        left |= {(move.node, move.destination): move.ended or 0.0 for move in ended if move.phase != Phase.DONE}
        return Case(
            profile=seen,
            nodes=tuple(nodes),
            allowed=frozenset(host.name for host in hosts if self._may_take(cluster, nodes, host, hosts)),
            costs={node.name: self._price(cluster, node) for node in nodes} if seen.jobs else {},
            pinned=frozenset(node.name for node in nodes if cluster.spec.is_pinned(node.index)),
            most=cluster.spec.placement.max_per_host,
            moved={move.node: move.ended or 0.0 for move in ended},
            left=left,
        )

    def _may_take(self, cluster: Cluster, nodes: list[Node], host: Host, hosts: list[Host]) -> bool:
        """What a move checks too (`wherry.move.check`), and where the cluster's file allows its nodes."""
        spec = cluster.spec
        if host.down or host.drained or (spec.sites and host.site not in spec.sites):
            return False
        if spec.hosts and host.name not in spec.hosts:
            return False
        here = {node.host for node in nodes}
        facts = [other.facts for other in hosts if other.name in here and other.facts]
        if host.facts and any(
            known.kernel != host.facts.kernel or not known.cpu_features <= host.facts.cpu_features for known in facts
        ):
            return False
        return not self.domain.fabric.missing_files(host.name, [*spec.files, *cluster.binds])

    def _price(self, cluster: Cluster, node: Node) -> Prediction:
        """What moving the node within its site would cost."""
        place = self.domain.places.place(node)
        mover = self.domain.drivers[node.kind].mover(place, place)
        site = {host.name: host.site for host in self.domain.fabric.spec.hosts}
        near = [move for move in self._cell.store.moves() if site.get(move.source) == site.get(move.destination)]
        return estimate(*mover.predict(), mover.can_round(), near)


def look(cell: Cell) -> Look:
    """A look at the fabric that is up. WRONG_STATE when none is."""
    return Look(cell, cell.need_domain())


def _unsteady(before: Sample, after: Sample, nodes: list[Node]) -> str:
    """Why the cluster cannot be judged now: a node that moved or began meanwhile was not measured where it is, and what
    ranks do that could not be looked at is not known."""
    for node in nodes:
        if node.state != NodeState.RUNNING:
            return f"{node.name} is {node.state}"
        if before.where.get(node.name) != node.host:
            return f"{node.name} came to {node.host} while it was measured"
        if blind := _blind(before, after, node):
            return f"what the ranks in {node.name} do could not be looked at: {blind}"
    return "" if nodes else "it has no nodes"


def _blind(before: Sample, after: Sample, node: Node) -> str:
    return before.unseen.get(node.name) or after.unseen.get(node.name) or ""


def check_seconds(seconds: float, longest: float) -> None:
    """USAGE for a time that nothing can be measured in."""
    if not 0 < seconds <= longest:
        raise Refused(Code.USAGE, f"{seconds:g} s cannot be measured over", f"more than 0, at most {longest:g}", "3s")
