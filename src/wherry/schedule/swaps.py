"""Swaps of nodes in plans of balancing: for clusters that a move alone cannot help, as every host is full.

Pure and deterministic. Invariants: a plan without swaps stays as it is; no host gets more than it has once both nodes
of a pair are where they go; the jobs of a partner's cluster do not get slower by it; no pinned node moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.records import Move, Node, Prediction
from wherry.schedule import cost
from wherry.schedule.balance import Case, Rule
from wherry.schedule.placement import NodeNeed, Used, shortage, used_by
from wherry.schedule.step_model import StepModel, World

_SLOWER = 1.02
"""Largest step of a partner's jobs afterwards, relative to now: beyond noise they are not to pay."""
_FASTER = 1.05
"""Least ratio of the CPU share that a swap for a faster host gives."""
_CANDIDATES = 400
"""Exchanges that are looked at for each cluster, at most."""
_NODES = 512
"""Nodes of all clusters up to which they are swapped with those of others: each is compared with each."""

Pair = tuple[Node, Node]


@dataclass(frozen=True)
class _Job:
    """A cluster with a running job: its case, model, and busy nodes."""

    case: Case
    model: StepModel
    busy: frozenset[str]
    verdict: Verdict

    def step(self, where: Mapping[str, str]) -> float:
        return self.model.step({node.name: where.get(node.name, node.host) for node in self.case.nodes}).total


def with_swaps(
    plan: BalancePlan,
    cases: Sequence[Case],
    world: World,
    nodes: Sequence[Node],
    moves: Sequence[Move],
    now: float,
    rule: Rule,
) -> BalancePlan:
    """The plan, with swaps for clusters that it does not move though they would gain. `nodes` and `moves` are those of
    all clusters."""
    used = used_by(nodes, moves)
    for move in plan.moves:
        node = next(node for node in nodes if node.name == move.node)
        used[move.destination] = used.get(move.destination, Used()).plus(NodeNeed.of(node))
    verdicts, few = {verdict.cluster: verdict for verdict in plan.verdicts}, len(nodes) <= _NODES
    jobs = {
        case.profile.cluster: found
        for case in cases
        if (found := _job(case, cases, world, verdicts.get(case.profile.cluster))) is not None
    }
    free = {name for name, job in jobs.items() if not job.verdict.moves and _rested(job.case, now, rule)}
    for name in sorted(free, key=lambda one: (-jobs[one].case.profile.remaining, one)):
        if name not in free:
            continue
        others = {other: jobs[other] for other in (free if few else {name})}
        best = _best(jobs[name], others, world, used, now, rule)
        if best is not None:
            verdict, partners, pairs = best
            verdicts[name] = verdict
            used = _with_pairs(used, pairs)
            for partner, text in partners.items():
                told = verdicts[partner]
                verdicts[partner] = told.model_copy(update={"text": f"{told.text}; {text}"})
            free -= {name, *partners}
    return BalancePlan(verdicts=tuple(verdicts.values()))


def _job(case: Case, cases: Sequence[Case], world: World, verdict: Verdict | None) -> _Job | None:
    busy = frozenset(load.node for load in case.profile.nodes if load.ranks)
    if verdict is None or verdict.kind in (Kind.IDLE, Kind.UNKNOWN) or not busy or case.profile.flows is None:
        return None
    taken = defaultdict[str, float](float)
    for other in cases:
        ranks = {load.node for load in other.profile.nodes if load.ranks}
        for node in other.nodes if other is not case else ():
            taken[node.host] += node.cpus if node.name in ranks else 0.0
    seen = replace(world, busy=taken)
    return _Job(case, StepModel(case.profile, [n for n in case.nodes if n.name in busy], seen), busy, verdict)


def _best(
    job: _Job, others: Mapping[str, _Job], world: World, used: Mapping[str, Used], now: float, rule: Rule
) -> tuple[Verdict, dict[str, str], list[Pair]] | None:
    """The verdict with the pairs that gain most, what to say of each partner's cluster, and the pairs; None without
    any."""
    best: tuple[float, Verdict, dict[str, str], list[Pair]] | None = None
    for looks, (pairs, reason) in enumerate(_exchanges(job, others, world, used, now, rule)):
        if looks >= _CANDIDATES:
            break
        judged = _judged(job, others, pairs, reason, world, rule)
        if judged is not None and (best is None or judged[0] > best[0] + 1e-9):
            best = (*judged, pairs)
    return None if best is None else best[1:]


def _exchanges(
    job: _Job, others: Mapping[str, _Job], world: World, used: Mapping[str, Used], now: float, rule: Rule
) -> Iterator[tuple[list[Pair], str]]:
    """Sets of pairs that may change places, with the reason."""
    busy = [node for node in job.case.nodes if node.name in job.busy]
    known = [(node, other) for other in others.values() for node in other.case.nodes]

    def may(node: Node, partner: Node, of: _Job, room: Mapping[str, Used], where: Mapping[str, str]) -> bool:
        return (
            _may(job, node, partner, where, now, rule)
            and _may(of, partner, node, where, now, rule)
            and _fit(node, partner, world, room)
        )

    sites = Counter(world.hosts[node.host].site for node in busy) if job.verdict.link >= rule.gain else Counter()
    for site in sorted(sites, key=lambda one: (-sites[one], one)) if len(sites) > 1 else ():
        pairs, room, gone = list[Pair](), dict(used), dict[str, str]()
        for node in (node for node in busy if world.hosts[node.host].site != site):
            partners = [
                (partner, of)
                for partner, of in known
                if world.hosts[partner.host].site == site and partner.name not in gone
                and not (of is job and partner.name in job.busy) and may(node, partner, of, room, gone)
            ]  # fmt: skip
            home = world.hosts[node.host].site
            found = min(partners, key=lambda one: (_harm(one[0], one[1], home, world), one[0].name), default=None)
            if found is None:
                break
            pairs.append((node, found[0]))
            room |= _swapped(room, *pairs[-1])
            gone |= {node.name: found[0].host, found[0].name: node.host}
        else:
            yield pairs, f"together at {site}, where no host has room"
    where = {node.name: node.host for node in job.case.nodes}
    loaded = job.model.most_loaded(where, job.case.pinned)
    for node in (node for node in busy if node.name == loaded):
        slow = world.cpu_share(node.host, node.cpus)
        for partner, of in known:
            if world.cpu_share(partner.host, node.cpus) >= _FASTER * slow and may(node, partner, of, used, {}):
                yield [(node, partner)], f"it computes {job.model.computing(loaded):.0%} of its time, on a slower host"


def _harm(partner: Node, of: _Job, home: str, world: World) -> int:
    """Rank of a partner for a swap to site `home`: first a node without ranks, then one with few others of its cluster
    at its own site and many there."""
    if partner.name not in of.busy:
        return -10_000
    sites = Counter(world.hosts[node.host].site for node in of.case.nodes if node.name in of.busy)
    return sites[world.hosts[partner.host].site] - sites[home]


def _may(job: _Job, node: Node, partner: Node, where: Mapping[str, str], now: float, rule: Rule) -> bool:
    """True when the node may go to its partner's host, whatever room there is. `where` has the hosts of nodes that
    changed places before."""
    case, target = job.case, (node.name, partner.host)
    left = case.left.get(target)
    held = left is not None and 0 <= now - left < rule.hold
    apart = node.host != partner.host and partner.host in case.allowed
    if held or not apart or node.name in case.pinned or target in case.refused:
        return False
    if case.most is None:
        return True
    there = sum(where.get(other.name, other.host) == partner.host for other in case.nodes)
    return there - (partner.cluster == node.cluster) < case.most


def _fit(node: Node, partner: Node, world: World, used: Mapping[str, Used]) -> bool:
    """True when both hosts have room for the node that they get, once both are there. The pins of the leaving node
    still count, as each node gets its CPUs before the other has left."""
    for comes, goes in ((node, partner), (partner, node)):
        there = used.get(goes.host, Used())
        rest = replace(there, cpus=there.cpus - goes.cpus, memory=there.memory - goes.memory, nodes=there.nodes - 1)
        if shortage(world.hosts[goes.host], rest, NodeNeed.of(comes)):
            return False
    return True


def _swapped(used: Mapping[str, Used], node: Node, partner: Node) -> dict[str, Used]:
    """The room that is taken on the hosts of both nodes once they have changed places."""
    found = dict[str, Used]()
    for comes, goes in ((node, partner), (partner, node)):
        there, less = used.get(goes.host, Used()), NodeNeed.of(goes)
        rest = Used(
            there.cpus - less.cpus,
            there.memory - less.memory,
            there.nodes - 1,
            there.pinned - less.pinned,
            {cpu: name for cpu, name in there.held.items() if name != goes.name},
            there.wishes,
        )
        found[goes.host] = rest.plus(NodeNeed.of(comes))
    return found


def _with_pairs(used: Mapping[str, Used], pairs: Sequence[Pair]) -> dict[str, Used]:
    """The room that is taken for the next plan: before the pairs change places or after, whichever is more, as
    verdicts may be carried out in another order."""
    after = dict(used)
    for pair in pairs:
        after |= _swapped(after, *pair)
    return {host: _larger(used.get(host, Used()), there) for host, there in after.items()}


def _larger(one: Used, other: Used) -> Used:
    return Used(
        max(one.cpus, other.cpus), max(one.memory, other.memory), max(one.nodes, other.nodes),
        max(one.pinned, other.pinned), {**one.held, **other.held}, max(one.wishes, other.wishes, key=len),
    )  # fmt: skip


def _judged(
    job: _Job, others: Mapping[str, _Job], pairs: Sequence[Pair], reason: str, world: World, rule: Rule
) -> tuple[float, Verdict, dict[str, str]] | None:
    """The gain of the pairs, in seconds of all jobs, and the verdicts; None when they do not pay."""
    where, costs = dict[str, str](), dict(job.case.costs)
    for node, partner in pairs:
        where |= {node.name: partner.host, partner.name: node.host}
        costs |= others[partner.cluster].case.costs
    if not where.keys() <= costs.keys():
        return None
    profile, partners = job.case.profile, {partner.cluster for _, partner in pairs} - {job.case.profile.cluster}
    step = job.step(where)
    paid = {name: others[name].step(where) for name in partners}
    if 1.0 - step < rule.gain or any(there > _SLOWER for there in paid.values()):
        return None
    old = {node.name: node.host for pair in pairs for node in pair}
    price = cost.cost([(name, old[name], there) for name, there in where.items()], costs, world.hosts, world.routes)
    gained = (1.0 - step) * profile.remaining + sum(
        (1.0 - there) * others[name].case.profile.remaining for name, there in paid.items()
    )
    if rule.trust * gained < rule.margin * price:
        return None
    moves = [
        _proposed(one, other, reason if one is node else f"so that {node.name} has its place", costs, world)
        for node, partner in pairs
        for one, other in ((node, partner), (partner, node))
    ]
    count = f"{len(pairs)} swap{'' if len(pairs) == 1 else 's'}"
    figures = f"a step would take {step:.2f} of the time, all jobs {gained:.1f} s less; {count} cost {price:.1f} s"
    verdict = job.verdict.model_copy(
        update={
            "text": f"{job.verdict.text.split(';')[0]}; no host has room: {figures}",
            "step": step,
            "after": profile.remaining * step + price,
            "cost": price,
            "moves": tuple(moves),
        }
    )
    told = {
        name: ", ".join(
            f"its {other.name} is swapped with {node.name}" for node, other in pairs if other.cluster == name
        )
        for name in partners
    }
    return gained - price, verdict, told


def _proposed(node: Node, partner: Node, reason: str, costs: Mapping[str, Prediction], world: World) -> ProposedMove:
    predicted, here, there = costs[node.name], world.hosts[node.host], world.hosts[partner.host]
    hops = world.routes.route(here.site, there.site).hops
    wire = world.routes.seconds_for_moves(dict.fromkeys(hops, predicted.bytes))
    return ProposedMove(
        node=node.name, source=node.host, destination=partner.host, swap=partner.name,
        reason=f"changes places with {partner.name}, {reason}", bytes=predicted.bytes,
        seconds=max(predicted.seconds, wire), downtime=cost.downtime(predicted, here, there, world.routes),
    )  # fmt: skip


def _rested(case: Case, now: float, rule: Rule) -> bool:
    """True when none of its nodes moved a short time ago."""
    return not any(0 <= now - case.moved.get(node.name, -rule.cooldown) < rule.cooldown for node in case.nodes)
