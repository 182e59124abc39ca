"""Measures running jobs and plans from the measurement: samples, and the cases that `wherry.schedule.balance` decides.

Invariant: sampling changes nothing but the counting of frames, which is on from the first sample until `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self

from wherry.base.clock import now, steady
from wherry.base.errors import Code, LostContact, WherryError
from wherry.cluster.lookup import find_cluster
from wherry.job.inside import amid_critical_phase
from wherry.job.profile import Sample, Sampler, foreign, profile
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.profile import Profile
from wherry.model.records import Cluster, Host, Move, Node, NodeState, Phase, Prediction
from wherry.move.forecast import forecast
from wherry.move.ledger import trust
from wherry.move.validation import check_host
from wherry.schedule.balance import Case, Rule, plan
from wherry.schedule.cost import PARALLEL_MOVES
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import World
from wherry.schedule.swaps import with_swaps
from wherry.service.context import Managers, ServiceContext
from wherry.service.swap_commands import swaps
from wherry.store import Store

NodeAtHost = tuple[str, str]
"""A node, and a host for it."""


_WRITES = 0.5
"""Seconds for which a node's writes are sampled when it is about to be moved."""
_ROUNDS = 8
"""Plans with a move that would be refused, after which swaps are left out: they compare many pairs."""
_MIN_MOVES, _HOLD_FACTOR = 200, 2.0
"""Earlier moves that a plan reads at least, as a forecast does; and for how many times as long as a node has to stay,
as moves take their time."""
_POLL_INTERVAL, _YOUNG = 0.1, 10.0
"""Seconds between two looks at a job that is being started, and the age to which it may be."""


class BalanceSampling:
    """Samples of the nodes on one fabric. Only samples of one object can be compared."""

    def __init__(self, context: ServiceContext, managers: Managers) -> None:
        self.managers = managers
        self._context = context
        self._sampler = Sampler(managers.fabric, managers.placements, managers.ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the counting of frames."""
        self._sampler.close()

    def sample(self) -> Sample:
        """The counters of all nodes that run."""
        jobs = [job for job in self._context.store.jobs_under_way() if job.computes]
        nodes = [node for node in self._context.store.nodes() if node.state == NodeState.RUNNING]
        return self._sampler.take(nodes, jobs)

    def measure(self, seconds: float, pause: Callable[[float], object] = time.sleep) -> tuple[Sample, Sample]:
        """Two samples, `seconds` apart; sooner when `pause`, which waits for so long, returns sooner. Ranks that are
        being started are waited for first, for as long again at most: else they would not be in both samples."""
        before, deadline = self.sample(), time.monotonic() + seconds
        while self._starting(before) and time.monotonic() < deadline:
            pause(min(_POLL_INTERVAL, seconds))
            before = self.sample()
        pause(seconds)
        return before, self.sample()

    def _starting(self, sample: Sample) -> bool:
        """True when a job that was started just now has none of its ranks in the sample."""
        jobs = [job for job in self._context.store.jobs_under_way() if job.computes]
        seen = {times.job for times in sample.ranks.values()}
        return any(job.id not in seen and now() - (job.started or job.created) < _YOUNG for job in jobs)

    def profile(self, before: Sample, after: Sample, cluster: str, remaining: float | None = None) -> Profile:
        """The profile of the cluster's jobs between two samples. LostContact when ranks of a node were not measured."""
        for node in self._context.store.nodes(cluster):
            if why := _unmeasured(before, after, node):
                what = f"the ranks in {node.name} could not be measured"
                remedy = f"wherry logs --node {node.name}" if node.kind == "vm" else "wherry host list"
                raise LostContact(Code.UNREACHABLE, what, why, remedy)
        jobs = [job for job in self._context.store.jobs(cluster) if job.computes]
        ran = {job.id: self.managers.jobs.ran(job) for job in jobs}
        return profile(before, after, cluster, jobs, self._context.store.nodes(cluster), remaining, ran)

    def plan(
        self,
        before: Sample,
        after: Sample,
        clusters: Collection[str],
        remaining: float | None = None,
        refused: Mapping[NodeAtHost, float] | None = None,
    ) -> BalancePlan:
        """The verdicts on these clusters, from the measurement between two samples. `refused` has the `steady` times at
        which planned moves were refused."""
        store, hosts = self._context.store, {host.name: host for host in self._context.hosts()}
        cases, undecided = list[Case](), list[Verdict]()
        moves, nodes = recent_moves(store), store.nodes()
        ends = self._context.move_ends.by_id(moves)
        history = _MoveHistory(moves, nodes, hosts, ends)
        for name in clusters:
            cluster, own = store.cluster(name), [node for node in nodes if node.cluster == name]
            if cluster is None:
                continue
            why = amid_critical_phase(store.jobs(name)) or unmeasurable(before, after, own)
            try:
                if not why:
                    measured = self.profile(before, after, name, remaining)
                    cases.append(self._case(cluster, own, measured, hosts, history, refused or {}))
            except WherryError as error:  # a node is ending, perhaps: the other clusters are planned all the same
                why = str(error)
            if why:
                undecided.append(Verdict(cluster=name, kind=Kind.UNKNOWN, text=why))
        routes = Routes(self.managers.fabric.spec.effective_links())
        world = World(hosts, routes, foreign(before, after, list(hosts)), {})
        under_way = [move for move in moves if not move.ended]
        rule = Rule(trust=trust(moves, store.jobs()))
        looked_at, rounds = set[str](), 0

        def planned() -> BalancePlan:
            found = plan(cases, world, nodes, under_way, steady(), rule)
            return with_swaps(found, cases, world, nodes, under_way, steady(), rule) if rounds < _ROUNDS else found

        proposed = planned()
        while True:
            sampled, impossible = dict[str, Prediction](), self._impossible(proposed.moves, nodes, hosts)
            if not impossible:
                names = {move.node for move in proposed.moves} - looked_at
                sampled = self._sampled_costs([node for node in nodes if node.name in names], history)
                looked_at |= names
            if not impossible and not sampled:
                break
            rounds += bool(impossible)
            cases = [
                replace(case, refused={**case.refused, **impossible}, costs={**case.costs, **sampled}) for case in cases
            ]
            proposed = planned()
        verdicts = {verdict.cluster: verdict for verdict in (*proposed.verdicts, *undecided)}
        return BalancePlan(verdicts=tuple(verdicts[name] for name in clusters if name in verdicts))

    def _case(
        self,
        cluster: Cluster,
        nodes: list[Node],
        measured: Profile,
        hosts: Mapping[str, Host],
        history: _MoveHistory,
        refused: Mapping[NodeAtHost, float],
    ) -> Case:
        spec, ended = cluster.spec, history.of(cluster)
        left = dict(refused)  # when each node last left, or failed to reach, a host
        for move in ended:
            key = move.node, move.source if move.phase == Phase.DONE else move.destination
            left[key] = max(left.get(key, 0.0), history.ends[move.id])
        allowed = [
            host
            for host in hosts.values()
            if (not spec.sites or host.site in spec.sites) and (not spec.hosts or host.name in spec.hosts)
        ]
        return Case(
            profile=measured,
            nodes=tuple(nodes),
            allowed=frozenset(host.name for host in allowed),
            costs={node.name: self._cost(node, history) for node in nodes} if measured.jobs else {},
            pinned=frozenset(node.name for node in nodes if spec.is_pinned(node.index)),
            most=spec.placement.max_per_host,
            moved={move.node: history.ends[move.id] for move in ended},
            left=left,
        )

    def _impossible(
        self, proposed: Sequence[ProposedMove], nodes: Sequence[Node], hosts: Mapping[str, Host]
    ) -> dict[NodeAtHost, str]:
        """The proposed moves that would be refused, and why. Only these are checked: all hosts for all nodes would take
        seconds."""
        managers, reasons = self.managers, dict[NodeAtHost, str]()
        known = {node.name: node for node in nodes}
        for move in proposed:
            node = known[move.node]
            ends = hosts[node.host], hosts[move.destination]
            try:
                cluster = find_cluster(self._context.store, node.cluster)
                here, there = (managers.placements.placement(node, host.name, cluster) for host in ends)
                check_host(managers.fabric, managers.drivers[node.kind], cluster, ends, (here, there))
                managers.moves.link_path(node, move.destination)
                managers.moves.check_standing(move.node, move.downtime)
                if move.swap:
                    swaps(self._context, managers).check_room(node, known[move.swap])
            except WherryError as error:
                reasons[node.name, move.destination] = str(error)
        return reasons

    def _sampled_costs(self, nodes: Sequence[Node], history: _MoveHistory) -> dict[str, Prediction]:
        """The costs of those nodes whose writes can be sampled. Only nodes that are about to be moved are
        sampled, as each page that one writes then costs it a fault."""

        def cost(node: Node) -> Prediction | None:
            try:
                return self._cost(node, history, _WRITES)
            except WherryError:  # it is ending, perhaps; its move will be refused
                return None

        with ThreadPoolExecutor(PARALLEL_MOVES, thread_name_prefix="write-sample") as pool:
            costs = pool.map(cost, nodes)
        return {node.name: found for node, found in zip(nodes, costs, strict=True) if found and found.written}

    def _cost(self, node: Node, history: _MoveHistory, sample: float = 0.0) -> Prediction:
        """The predicted cost of moving the node within its site; its writes are sampled for so many seconds."""
        placement = self.managers.placements.placement(node)
        mover = self.managers.drivers[node.kind].mover(placement, placement)
        return forecast(mover.predict(sample), mover.can_round(), history.within_site(node.kind))


class _MoveHistory:
    """The moves made so far, oldest first: forecasts and cool-downs are computed from them."""

    def __init__(
        self, moves: Sequence[Move], nodes: Sequence[Node], hosts: Mapping[str, Host], ends: Mapping[str, float]
    ) -> None:
        self._moves = moves
        self.ends = ends
        self._kinds = {node.name: node.kind for node in nodes}
        self._sites = {name: host.site for name, host in hosts.items()}

    def of(self, cluster: Cluster) -> list[Move]:
        """Ended moves of a cluster, without those of an earlier cluster of the same name."""
        ids = [move.id for move in self._moves]
        first = ids.index(cluster.after_move) + 1 if cluster.after_move in ids else 0
        return [move for move in self._moves[first:] if move.cluster == cluster.name and move.id in self.ends]

    def within_site(self, kind: str) -> list[Move]:
        """Moves of nodes of this kind between two hosts of one site; those by another engine tell nothing."""
        return [
            move
            for move in self._moves
            if (self._kinds.get(move.node) == kind or move.engine)
            and move.source in self._sites
            and self._sites[move.source] == self._sites.get(move.destination)
        ]


def recent_moves(store: Store) -> list[Move]:
    """The earlier moves that a plan needs, oldest first: those under way and the newest ones; all moves, where the
    newest ones may lack some after which a node may not come back to the host that it left."""
    newest = store.newest_moves(_MIN_MOVES)
    if len(newest) < _MIN_MOVES:
        return newest
    if newest[0].created > now() - _HOLD_FACTOR * Rule().hold:
        return store.moves()
    known = {move.id for move in newest}
    return [move for move in store.moves(unfinished=True) if move.id not in known] + newest


def sampling(context: ServiceContext) -> BalanceSampling:
    """Sampling on the fabric that is up. WRONG_STATE when none is."""
    return BalanceSampling(context, context.require_managers())


def unmeasurable(before: Sample, after: Sample, nodes: list[Node]) -> str:
    """Why the cluster cannot be planned from these samples: a node moved or started between them, or its ranks could
    not be measured. Empty when it can."""
    for node in nodes:
        if node.state != NodeState.RUNNING:
            return f"{node.name} is {node.state}"
        if before.where.get(node.name) != node.host:
            return f"{node.name} came to {node.host} while it was measured"
        if why := _unmeasured(before, after, node):
            return f"the ranks in {node.name} could not be measured: {why}"
    return "" if nodes else "it has no nodes"


def _unmeasured(before: Sample, after: Sample, node: Node) -> str:
    return before.unseen.get(node.name) or after.unseen.get(node.name) or ""
