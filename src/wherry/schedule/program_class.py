"""The kind of a program (what limits it), from a profile of one of its runs; and that profile as one of its ranks.

Pure. Unlike the kind of a placed job (`balance`), that of a program is for its nodes at different sites, wherever they
were.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from wherry.model.balance import Kind
from wherry.model.profile import Profile
from wherry.model.program import GroupFlow, ProgramProfile, RankProfile
from wherry.model.records import Node, ProgramKey
from wherry.schedule.step_model import StepModel, World

_NETWORK, _CPU = 0.2, 0.5
"""Shares of time from which on a program is network-bound, or CPU-bound."""
_SILENT = 1.0
"""Messages per second of a node below which its ranks are independent."""
_FLOWS = 4000
"""Flows that a profile has at most: those with most turns, which decide."""


def program_profile(
    key: ProgramKey, job: str, profile: Profile, nodes: Sequence[Node], world: World, before: ProgramProfile | None
) -> ProgramProfile | None:
    """The profile of a program whose job alone was measured on its cluster; None when not all its ranks were.

    `before` is the profile that it replaces.
    """
    if {load.rank for load in profile.ranks} != set(range(key.ranks)):
        return None
    names = sorted({load.node for load in profile.ranks}, key=lambda name: min(_ranks_on(profile, name)))
    group, host = {name: index for index, name in enumerate(names)}, {node.name: node.host for node in nodes}
    speeds = _speeds(nodes, names, world)
    ranks = [
        RankProfile(
            rank=load.rank, group=group[load.node], cpu=load.cpu, computing=load.computing, waiting=load.waiting,
            work=load.computing * speeds[host[load.node]],
        )
        for load in profile.ranks
    ]  # fmt: skip
    flows = None
    if profile.flows is not None:
        found = [
            GroupFlow(
                source=group[flow.source], target=group[flow.target], messages=flow.messages, bytes=flow.bytes,
                turns=flow.turns,
            )
            for flow in profile.flows
            if flow.source in group and flow.target in group
        ]  # fmt: skip
        flows = tuple(heapq.nlargest(_FLOWS, found, key=lambda flow: flow.turns))
    kind, reason = classify(profile, nodes, world)
    mean = sum(rank.computing for rank in ranks) / len(ranks)
    runs = before.runs + (before.job != job) if before else 1
    return ProgramProfile(
        key=key.key, program=key, kind=kind, reason=reason, time=profile.time, ran=max(0.0, profile.ran
        - profile.seconds), seconds=profile.seconds, runs=runs, job=job, ranks=tuple(ranks), flows=flows,
        imbalance=max(rank.computing for rank in ranks) / mean if mean > 0 else 1.0,
    )  # fmt: skip


def classify(profile: Profile, nodes: Sequence[Node], world: World) -> tuple[Kind, str]:
    """The kind of the profile's program, and why."""
    busy = [node for node in nodes if any(load.node == node.name and load.ranks for load in profile.nodes)]
    computing = max(load.computing for load in profile.ranks)
    least = min(load.computing for load in profile.ranks)
    computes = f"its ranks compute {least:.0%} to {computing:.0%} of their time"
    kind = Kind.CPU if computing >= _CPU else Kind.WAITING
    if profile.flows is None:
        return kind, f"{computes}; messages were not counted"
    now = StepModel(profile, busy, world).step({node.name: node.host for node in busy})
    received = defaultdict[str, float](float)
    for flow in profile.flows:
        received[flow.target] += flow.turns
    turns = max(received.values(), default=0.0)
    if turns < _SILENT:
        return kind, f"{computes} and exchange hardly anything ({turns:.1f} messages/s)"
    farthest = _farthest(world)
    apart = turns * farthest / (1 + turns * farthest)
    if now.link >= _NETWORK:
        return Kind.NETWORK, f"{computes}; links took up to {now.link:.0%} of it"
    if apart >= _NETWORK:
        what = f"up to {turns:.0f} messages/s to a node would take {apart:.0%} of the time"
        return Kind.NETWORK, f"{computes}; {what} at sites {farthest * 1000:g} ms apart"
    return kind, f"{computes}; up to {turns:.0f} messages/s to a node are few"


def _farthest(world: World) -> float:
    sites = sorted({host.site for host in world.hosts.values()})
    return max((world.routes.route(one, other).latency for one in sites for other in sites if one < other), default=0.0)


def _ranks_on(profile: Profile, node: str) -> list[int]:
    return [load.rank for load in profile.ranks if load.node == node]


def _speeds(nodes: Sequence[Node], busy: Sequence[str], world: World) -> Mapping[str, float]:
    cpus = defaultdict[str, float](float)
    for node in nodes:
        if node.name in busy:
            cpus[node.host] += node.cpus
    return {host: world.cpu_share(host, own) for host, own in cpus.items()}
