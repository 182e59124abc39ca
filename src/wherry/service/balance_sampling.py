"""From what runs to a plan: samples of the machine, and the cases that `wherry.schedule.balance` decides on.

Invariant: it looks and changes nothing (but that frames are counted from the first sample on until it is closed).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self

from wherry.base.clock import now
from wherry.base.errors import Code, LostContact, WherryError
from wherry.cluster.lookup import find_cluster
from wherry.job.profile import Sample, Sampler, foreign, profile
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.objects import Cluster, Host, Move, Node, NodeState, Phase, Prediction
from wherry.model.profile import Profile
from wherry.move.forecast import forecast
from wherry.move.validation import check_host
from wherry.schedule.balance import Case, Rule, plan
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import World
from wherry.service.context import Managers, ServiceContext

Where = tuple[str, str]
"""A node, and a host for it."""


class BalanceSampling:
    """Looks at the nodes on one fabric. Samples of one object belong together."""

    def __init__(self, context: ServiceContext, managers: Managers) -> None:
        self.managers = managers
        self._context = context
        self._sampler = Sampler(managers.fabric, managers.places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the counting of frames."""
        self._sampler.close()

    def sample(self) -> Sample:
        """The counters of all nodes that run."""
        busy = {job.cluster for job in self._context.store.jobs() if job.state.under_way}
        nodes = [node for node in self._context.store.nodes() if node.state == NodeState.RUNNING]
        return self._sampler.take(nodes, busy)

    def over(self, seconds: float) -> tuple[Sample, Sample]:
        """Two samples so far apart."""
        before = self.sample()
        time.sleep(seconds)
        return before, self.sample()

    def profile(self, before: Sample, after: Sample, cluster: str, remaining: float | None = None) -> Profile:
        """What the cluster's jobs did between two samples. LostContact when its ranks could not be looked at."""
        for node in self._context.store.nodes(cluster):
            if blind := _blind(before, after, node):
                what = f"the ranks in {node.name} could not be looked at"
                raise LostContact(Code.UNREACHABLE, what, blind, f"wherry logs --node {node.name}")
        jobs = [job for job in self._context.store.jobs(cluster) if job.state.under_way]
        return profile(before, after, cluster, jobs, self._context.store.nodes(cluster), remaining)

    def plan(
        self,
        before: Sample,
        after: Sample,
        clusters: Collection[str],
        remaining: float | None = None,
        refused: Mapping[Where, float] | None = None,
    ) -> BalancePlan:
        """The verdicts on these clusters, from what was seen between two samples. `refused` is when a host refused a
        node that it should have had."""
        store, hosts = self._context.store, {host.name: host for host in self._context.hosts()}
        cases, aside = list[Case](), list[Verdict]()
        moves, nodes = store.moves(), store.nodes()
        for name in clusters:
            cluster, own = store.cluster(name), [node for node in nodes if node.cluster == name]
            if cluster is None:
                continue
            why = _unsteady(before, after, own)
            try:
                if not why:
                    seen = self.profile(before, after, name, remaining)
                    cases.append(self._case(cluster, own, seen, hosts, _Past(moves, nodes, hosts), refused or {}))
            except WherryError as error:  # a node that is just ending, say: the other clusters are planned all the same
                why = str(error)
            if why:
                aside.append(Verdict(cluster=name, kind=Kind.UNKNOWN, text=why))
        routes = Routes(self.managers.fabric.spec.effective_links())
        world = World(hosts, routes, foreign(before, after, list(hosts)), {})
        under_way = [move for move in moves if not move.ended]
        found = plan(cases, world, nodes, under_way, now(), Rule())
        while others := self._refused(found.moves, nodes, hosts):
            cases = [replace(case, refused={**case.refused, **others}) for case in cases]
            found = plan(cases, world, nodes, under_way, now(), Rule())
        verdicts = {verdict.cluster: verdict for verdict in (*found.verdicts, *aside)}
        return BalancePlan(verdicts=tuple(verdicts[name] for name in clusters if name in verdicts))

    def _case(
        self,
        cluster: Cluster,
        nodes: list[Node],
        seen: Profile,
        hosts: Mapping[str, Host],
        past: _Past,
        refused: Mapping[Where, float],
    ) -> Case:
        spec, ended = cluster.spec, past.of(cluster)
        left = dict(refused)
        for move in ended:
            where = move.node, move.source if move.phase == Phase.DONE else move.destination
            left[where] = max(left.get(where, 0.0), move.ended or 0.0)
        allowed = [
            host
            for host in hosts.values()
            if (not spec.sites or host.site in spec.sites) and (not spec.hosts or host.name in spec.hosts)
        ]
        return Case(
            profile=seen,
            nodes=tuple(nodes),
            allowed=frozenset(host.name for host in allowed),
            costs={node.name: self._price(node, past) for node in nodes} if seen.jobs else {},
            pinned=frozenset(node.name for node in nodes if spec.is_pinned(node.index)),
            most=spec.placement.max_per_host,
            moved={move.node: move.ended or 0.0 for move in ended},
            left=left,
        )

    def _refused(
        self, proposed: Sequence[ProposedMove], nodes: Sequence[Node], hosts: Mapping[str, Host]
    ) -> dict[Where, str]:
        """Why moves of a plan would be refused, for each that would. Every host for every node would take seconds."""
        managers, found = self.managers, dict[Where, str]()
        known = {node.name: node for node in nodes}
        for move in proposed:
            node = known[move.node]
            ends = hosts[node.host], hosts[move.destination]
            try:
                cluster = find_cluster(self._context.store, node.cluster)
                check_host(managers.fabric, managers.drivers, managers.places, cluster, node, *ends)
                managers.moves.link_path(node, move.destination)
                managers.moves.check_standing(move.node, move.downtime)
            except WherryError as error:
                found[node.name, move.destination] = str(error)
        return found

    def _price(self, node: Node, past: _Past) -> Prediction:
        """What moving the node within its site would cost."""
        place = self.managers.places.place(node)
        mover = self.managers.drivers[node.kind].mover(place, place)
        return forecast(*mover.predict(), mover.can_round(), past.near(node.kind))


class _Past:
    """The moves that were made, oldest first, and what can be learnt of them."""

    def __init__(self, moves: Sequence[Move], nodes: Sequence[Node], hosts: Mapping[str, Host]) -> None:
        self._moves = moves
        self._kinds = {node.name: node.kind for node in nodes}
        self._sites = {name: host.site for name, host in hosts.items()}

    def of(self, cluster: Cluster) -> list[Move]:
        """Those of a cluster, and not of its namesake, that are over."""
        return [m for m in self._moves if m.cluster == cluster.name and m.ended and m.created >= cluster.created]

    def near(self, kind: str) -> list[Move]:
        """Those of nodes of this kind between two hosts of one site."""
        return [
            move
            for move in self._moves
            if self._kinds.get(move.node) == kind
            and move.source in self._sites
            and self._sites[move.source] == self._sites.get(move.destination)
        ]


def sampling(context: ServiceContext) -> BalanceSampling:
    """A look at the fabric that is up. WRONG_STATE when none is."""
    return BalanceSampling(context, context.require_managers())


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
