"""Balancing: decides which nodes of running jobs should move, by the rule of docs/design/0011-balance.md.

Pure and deterministic: maps profiles and hosts to a plan with, for each cluster, its kind, its moves and the reasons.
Invariants: no host gets more than it has, where a moving node counts at both ends; no pinned node moves; without a gain
nothing moves.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wherry.base.units import format_duration
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.profile import Profile
from wherry.model.records import Host, Move, Node, Prediction
from wherry.schedule import cost
from wherry.schedule.placement import NodeNeed, Used, used_by
from wherry.schedule.step_model import Step, StepModel, Where, World
from wherry.schedule.tentative_placement import TentativePlacement

_MIN_SPEEDUP = 1.05
"""Least ratio of a host's CPU share to the node's present one; hosts below it are not considered."""


@dataclass(frozen=True)
class Rule:
    """Thresholds. A plan must save `gain` of the step time, and `margin` times its cost. After a move the cluster is
    not moved for `cooldown` seconds, and the node does not return for `hold` seconds to the host that it left. A job
    that spends `network` of its time on links is network-bound. `trust` is the share of the promised gains of earlier
    plans that came."""

    gain: float = 0.2
    margin: float = 1.5
    cooldown: float = 60.0
    hold: float = 600.0
    network: float = 0.2
    trust: float = 1.0


@dataclass(frozen=True)
class Case:
    """One cluster: its profile and nodes, the hosts `allowed` by its file, by node the cost of a move within a site,
    the `pinned` nodes, the most nodes per host, when a node last `moved` and `left` a host (seconds since the epoch),
    and by (node, host) why the host `refused` the node."""

    profile: Profile
    nodes: tuple[Node, ...]
    allowed: frozenset[str]
    costs: Mapping[str, Prediction]
    pinned: frozenset[str] = frozenset()
    most: int | None = None
    moved: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[tuple[str, str], float] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A possible placement: each node's host, its step, the cost of the moves to it, and the reason of each move."""

    where: dict[str, str]
    step: Step
    cost: float = 0.0
    reasons: Mapping[str, str] = field(default_factory=dict)


def plan(
    cases: Sequence[Case], world: World, nodes: Sequence[Node], moves: Sequence[Move], now: float, rule: Rule
) -> BalancePlan:
    """The verdicts on all clusters, in the order of the cases. `nodes` and `moves` are those of all clusters.

    The cluster with the largest gain is placed first; the others get the room and the CPUs that it leaves.
    """
    used, full = used_by(nodes, moves), False
    owns = [_cpus_by_host(case) for case in cases]
    total = {host: sum(own[host] for own in owns if host in own) for host in world.hosts}

    def seen(index: int) -> World:
        """The world for one cluster: `busy` has the CPUs of the other clusters' busy nodes."""
        return replace(world, busy={host: total[host] - owns[index].get(host, 0.0) for host in total})

    first = [_verdict(case, seen(index), used, now, rule) for index, case in enumerate(cases)]
    final = list(first)
    for index in sorted(range(len(cases)), key=lambda i: (first[i].after - first[i].before, i)):
        if full and first[index].moves:
            final[index] = _verdict(cases[index], seen(index), used, now, rule)
        needs = {node.name: NodeNeed.of(node) for node in cases[index].nodes}
        busy = {node.name: node.cpus for node in _busy(cases[index])}
        for move in final[index].moves:
            used[move.destination] = used.get(move.destination, Used()).plus(needs[move.node])
            for counts in (total, owns[index]):
                counts[move.source] -= busy.get(move.node, 0.0)
                counts[move.destination] += busy.get(move.node, 0.0)
            full = True
    return BalancePlan(verdicts=tuple(final))


def _cpus_by_host(case: Case) -> defaultdict[str, float]:
    """The CPUs that the cluster's busy nodes may use, by host."""
    own = defaultdict[str, float](float)
    for node in _busy(case):
        own[node.host] += node.cpus
    return own


def confirmed(now: Verdict, before: Verdict | None, site: Mapping[str, str]) -> Verdict:
    """The verdict, if the previous measurement proposed the same nodes to the same sites; else without its moves.

    `site` maps hosts to sites.
    """
    if not now.moves or before is not None and _targets(before, site) == _targets(now, site):
        return now
    text = f"waits for the next measurement to confirm it: {now.text}"
    return now.model_copy(update={"moves": (), "after": now.before, "cost": 0.0, "text": text})


def _targets(verdict: Verdict, site: Mapping[str, str]) -> set[tuple[str, str | None]]:
    return {(move.node, site.get(move.destination)) for move in verdict.moves}


def _verdict(case: Case, world: World, used: Mapping[str, Used], now: float, rule: Rule) -> Verdict:
    profile = case.profile
    if not profile.jobs or not _busy(case):
        return Verdict(cluster=profile.cluster, kind=Kind.IDLE, text="no job runs")
    model = StepModel(profile, _busy(case), world)
    stay = Candidate({node.name: node.host for node in case.nodes}, model.step({n.name: n.host for n in case.nodes}))
    seen = Verdict(
        cluster=profile.cluster, kind=_kind(profile, stay.step, world, case, rule), text="",
        before=profile.remaining, after=profile.remaining, link=stay.step.link, busiest=stay.step.computing,
        jobs=profile.jobs, rate=profile.messages, source=profile.source, period=profile.period, steps=profile.steps,
    )  # fmt: skip
    described = _description(profile, seen, stay.step)
    candidates, hindrances = _candidates(case, model, world, used, now, rule)
    best = min(candidates, key=lambda candidate: (not _moves(candidate, stay), _score(profile, candidate)))
    if _gain(best) <= 0 or not _moves(best, stay):
        why = [*_why_not(seen, hindrances), *_held(case, model, world, used, now, rule)]
        return seen.model_copy(update={"text": "; ".join([described, *why])})
    gained = _gain(best) * profile.remaining
    figures = (
        f"a step would take {best.step.total:.2f} of the time, {gained:.1f} s less in the {profile.remaining:.0f} s "
        f"that are left ({profile.basis}); {len(_moves(best, stay))} moves cost {best.cost:.1f} s"
    )
    proposed = seen.model_copy(update={"step": best.step.total})
    objection = _objection(case, best, gained, now, rule)
    if objection:
        return proposed.model_copy(update={"text": f"{described}; {figures}: {objection}"})
    return proposed.model_copy(
        update={
            "text": f"{described}; {figures}: that pays after {best.cost / _gain(best):.0f} s",
            "after": profile.remaining * best.step.total + best.cost,
            "cost": best.cost,
            "moves": tuple(_proposed(case, best, world, *move) for move in _moves(best, stay)),
        }
    )


def _candidates(
    case: Case, model: StepModel, world: World, used: Mapping[str, Used], now: float, rule: Rule
) -> tuple[list[Candidate], list[str]]:
    """The placements to compare, and why nodes could not be packed at a site."""
    barred = {where for where, time in case.left.items() if _within(rule.hold, time, now)} | set(case.refused)
    start = TentativePlacement(case.nodes, world, used, barred, case.most)
    hosts = sorted((world.hosts[name] for name in case.allowed), key=lambda host: (-host.speed, host.name))
    improved = _improve(case, model, world, hosts, start.copy(), {})
    candidates, hindrances = [improved], []
    firsts = [start]
    if improved.where != start.where:
        firsts.append(start.with_nodes(case.nodes, improved.where))
    for first in firsts if case.profile.flows is not None else ():
        if not _spans_sites(case, world, first.where):
            continue
        for site in sorted({host.site for host in hosts}):
            trial, why = _pack(case, world, [host for host in hosts if host.site == site], first.copy(), site)
            hindrances += [why] if why and first is start else []
            if trial:
                notes = {**improved.reasons, **_packing_reasons(model, start, first, trial, site)}
                candidates.append(_improve(case, model, world, hosts, trial, notes))
    return candidates, hindrances


def _held(case: Case, model: StepModel, world: World, used: Mapping[str, Used], now: float, rule: Rule) -> list[str]:
    """Why nodes do not go back to hosts that they left a short time ago, and for how long, where that would pay."""
    held = {where: time for where, time in case.left.items() if _within(rule.hold, time, now)}
    if not held:
        return []
    candidates, _ = _candidates(replace(case, left={}), model, world, used, now, rule)
    best = min(candidates, key=lambda candidate: _score(case.profile, candidate))
    returns = [(name, host) for name, host in best.where.items() if (name, host) in held and _gain(best) > 0]
    return [
        f"{name} left {host} {now - held[name, host]:.0f} s ago and does not return for another "
        f"{math.ceil(held[name, host] + rule.hold - now)} s"
        for name, host in returns
    ]


def _busy(case: Case) -> list[Node]:
    """The nodes with ranks; the placement of others does not matter."""
    ranks = {load.node for load in case.profile.nodes if load.ranks}
    return [node for node in case.nodes if node.name in ranks]


def _pack(
    case: Case, world: World, hosts: list[Host], trial: TentativePlacement, site: str
) -> tuple[TentativePlacement | None, str]:
    """Packs all busy nodes at one site, or returns why not. Largest first, each to the host of largest CPU share."""
    outside = [node for node in _busy(case) if world.hosts[trial.where[node.name]].site != site]
    if pinned := [node.name for node in outside if node.name in case.pinned]:
        return None, f"{pinned[0]} is pinned and not at {site}"
    if not outside:
        return None, ""
    outside.sort(key=_size, reverse=True)
    best, size = list[tuple[float, str]](), None
    for count, node in enumerate(outside):
        if size != _size(node):  # a host that was too small for larger nodes may fit this one
            size, best = _size(node), [(-trial.cpu_share(node, host.name), host.name) for host in hosts]
            heapq.heapify(best)
        passed = list[tuple[float, str]]()
        while best and not trial.fits(node, best[0][1]):
            passed.append(heapq.heappop(best))
        if not best:
            why = f"site {site} has room for {count} of the {len(outside)} nodes that are elsewhere"
            refused = [case.refused[node.name, host.name] for host in hosts if (node.name, host.name) in case.refused]
            return None, "; ".join([why, *refused[:1]])
        host = best[0][1]
        trial.move(node, host)
        heapq.heapreplace(best, (-trial.cpu_share(node, host), host))
        for one in passed if case.left or case.refused else ():  # barred for this node, perhaps not for the next
            heapq.heappush(best, one)
    return trial, ""


def _size(node: Node) -> tuple[float, int]:
    return node.cpus, node.memory


def _packing_reasons(
    model: StepModel, start: TentativePlacement, first: TentativePlacement, trial: TentativePlacement, site: str
) -> dict[str, str]:
    """The reason of each move to the site: the time that links take now, or would take with the placement `first`."""
    before, then = model.step(first.where), model.step(trial.where)
    text = (
        f"links take {before.link:.0%} of the job's time now ({before.turns:.0f} answers/s, "
        f"{before.crossing / 1e6:.2f} MB/s), {then.link:.0%} afterwards"
        if first is start
        else f"links would take {before.link:.0%} of today's step, {then.link:.0%} together"
    )
    moved = [name for name, host in trial.where.items() if host != first.where[name]]
    return dict.fromkeys(moved, f"together at {site}: {text}")


def _improve(
    case: Case, model: StepModel, world: World, hosts: list[Host], trial: TentativePlacement, reasons: Mapping[str, str]
) -> Candidate:
    """Greedy improvement: repeatedly moves the most loaded node to a faster host; returns the best placement seen."""
    nodes, notes = {node.name: node for node in case.nodes}, dict(reasons)
    best = _candidate(case, model, world, trial, notes)
    tried = set(case.pinned)
    while name := model.most_loaded(trial.where, tried):
        tried.add(name)
        host = _better_host(case, nodes[name], model, world, hosts, trial)
        if host is None:
            break
        ratio = trial.cpu_share(nodes[name], host) / trial.cpu_share(nodes[name], trial.where[name])
        notes[name] = (
            f"it computes {model.computing(name):.0%} of its time, and the others wait for it: "
            f"{host} gives it {ratio:.2g} x the CPU time of {trial.where[name]}"
        )
        trial.move(nodes[name], host)
        candidate = _candidate(case, model, world, trial, notes)
        if _score(case.profile, candidate) < _score(case.profile, best):
            best = candidate
    return best


def _better_host(
    case: Case, node: Node, model: StepModel, world: World, hosts: list[Host], trial: TentativePlacement
) -> str | None:
    """The best of the sites' fastest hosts for the node: shortest step, then largest CPU share, preferring its own
    site.

    While other nodes are as slow as this one, its move alone shortens no step, and the CPU share decides.
    """
    wanted, found = _MIN_SPEEDUP * trial.cpu_share(node, trial.where[node.name]), dict[str, tuple[float, str]]()
    home = world.hosts[trial.where[node.name]].site
    for host in hosts:
        if host.speed < wanted:  # hosts are sorted by speed, the upper bound of a CPU share
            break
        if case.profile.flows is None and host.site != home or not trial.fits(node, host.name):
            continue
        given = trial.cpu_share(node, host.name)
        if given >= wanted and given > found.get(host.site, (0.0, ""))[0]:
            found[host.site] = given, host.name

    def worth(site: str) -> tuple[float, float]:
        given, host = found[site]
        total = model.step({**trial.where, node.name: host}).total
        return total, -given * (_MIN_SPEEDUP if site == home else 1.0)

    best = min(sorted(found, key=lambda site: (site != home, site)), key=worth, default=None)
    return None if best is None else found[best][1]


def _candidate(
    case: Case, model: StepModel, world: World, trial: TentativePlacement, reasons: Mapping[str, str]
) -> Candidate:
    moves = [(node.name, node.host, trial.where[node.name]) for node in case.nodes]
    price = cost.cost([move for move in moves if move[1] != move[2]], case.costs, world.hosts, world.routes)
    return Candidate(dict(trial.where), model.step(trial.where), price, dict(reasons))


def _moves(candidate: Candidate, stay: Candidate) -> list[tuple[str, str, str]]:
    """The moves (node, source, destination), in the order of the nodes."""
    return [(name, old, candidate.where[name]) for name, old in stay.where.items() if candidate.where[name] != old]


def _score(profile: Profile, candidate: Candidate) -> float:
    return profile.remaining * candidate.step.total + candidate.cost


def _gain(candidate: Candidate) -> float:
    return 1.0 - candidate.step.total


def _objection(case: Case, best: Candidate, gained: float, now: float, rule: Rule) -> str:
    """Why the best plan is rejected; empty when it is accepted."""
    times = [case.moved.get(node.name, 0.0) for node in case.nodes]
    if recent := [time for time in times if _within(rule.cooldown, time, now)]:
        ago, stay = now - max(recent), f"after a move they stay for {rule.cooldown:.0f} s"
        return f"its nodes moved {ago:.0f} s ago; {stay}, so ask again in {math.ceil(rule.cooldown - ago)} s"
    if _gain(best) < rule.gain:
        return f"that is less than the {rule.gain:.0%} from which on nodes are moved"
    if rule.trust * gained < rule.margin * best.cost:
        earlier = f", and {rule.trust:.0%} of the predicted gain was reached so far" if rule.trust < 1 else ""
        return f"the gain must be {rule.margin:g} times the cost{earlier}"
    return ""


def _within(seconds: float, time: float, now: float) -> bool:
    """True less than `seconds` after `time`. Never for a future time, which means that the clock was set back."""
    return 0 <= now - time < seconds


def _kind(profile: Profile, step: Step, world: World, case: Case, rule: Rule) -> Kind:
    if profile.flows is None and _spans_sites(case, world, {node.name: node.host for node in case.nodes}):
        return Kind.UNKNOWN
    if step.link >= rule.network:
        return Kind.NETWORK
    return Kind.CPU if step.computing >= 0.5 else Kind.WAITING


def _spans_sites(case: Case, world: World, where: Where) -> bool:
    return len({world.hosts[where[node.name]].site for node in _busy(case)}) > 1


def _description(profile: Profile, verdict: Verdict, step: Step) -> str:
    links = (
        f"links between sites take at most {step.link:.0%} of its time "
        f"({step.turns:.0f} answers/s, {step.crossing / 1e6:.2f} MB/s over them)"
    )
    if profile.flows is None:
        why = f" ({profile.uncounted})" if profile.uncounted else ""
        links = f"the time that links take is unknown{why}, so no node moves over a link"
    turn = f", an iteration takes {format_duration(profile.period)}" if profile.period else ""
    return f"{verdict.kind}: {links}, {step.busiest or 'no node'} computes {step.computing:.0%}{turn}"


def _why_not(verdict: Verdict, hindrances: Collection[str]) -> list[str]:
    if verdict.kind is Kind.NETWORK and hindrances:
        return list(hindrances)
    return ["no host with room would make it faster"]


def _proposed(case: Case, best: Candidate, world: World, name: str, source: str, destination: str) -> ProposedMove:
    predicted, hosts = case.costs[name], world.hosts
    frozen = cost.downtime(predicted, hosts[source], hosts[destination], world.routes)
    hops = world.routes.route(hosts[source].site, hosts[destination].site).hops
    wire = world.routes.seconds_for_moves(dict.fromkeys(hops, predicted.bytes))
    return ProposedMove(
        node=name, source=source, destination=destination, reason=best.reasons.get(name, ""),
        bytes=predicted.bytes, seconds=max(predicted.seconds, wire), downtime=frozen,
    )  # fmt: skip
