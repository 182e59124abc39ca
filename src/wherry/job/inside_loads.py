"""Puts the counts of ranks' calls of MPI into the profile by which jobs are balanced.

Pure. Invariant: the figures of one profile have one source: those of a cluster whose ranks do not all count stay as
they were measured from outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from wherry.model.mpi_profile import MpiProfile, RankActivity
from wherry.model.profile import INSIDE, Flow, NodeLoad, Profile, RankLoad
from wherry.model.records import Job

_BETWEEN_TWO = {
    "Send", "Bsend", "Ssend", "Rsend", "Isend", "Ibsend", "Issend", "Irsend", "Start", "Startall", "Sendrecv",
    "Sendrecv_replace", "Recv", "Irecv", "Mrecv", "Imrecv",
}  # fmt: skip
"""The operations whose bytes are counted by their peer. Of others the MPI library decides who sends them to whom."""
_FEW = 0.01
"""Share of a job's bytes in other operations, up to which the bytes between nodes are those of its messages."""


def as_seen_inside(profile: Profile, jobs: Sequence[Job], seen: Sequence[MpiProfile]) -> Profile:
    """The profile with the ranks' own figures in place of estimates, if all ranks of all jobs have some.

    A rank that does not compute waits: for others, or for its messages while they are under way.
    """
    activity = {(one.job, rank.rank): rank for one in seen for rank in one.ranks}
    complete = jobs and len(activity) == sum(job.ranks for job in jobs) == len(profile.ranks)
    if not complete or any(one.unseen for one in seen):
        return profile
    cpu = {(load.node, load.rank): load.cpu for load in profile.ranks}
    ranks = tuple(
        RankLoad(
            rank=rank.rank, node=rank.node, cpu=cpu.get((rank.node, rank.rank), 0.0), computing=rank.computing,
            waiting=1.0 - rank.computing, transferring=rank.transferring,
        )
        for _, rank in sorted(activity.items())
    )  # fmt: skip
    period, steps = _iteration(seen[0].ranks) if len(seen) == 1 else (None, 0)
    changed = {
        "ranks": ranks,
        "nodes": tuple(_node(load, ranks) for load in profile.nodes),
        "flows": _flows(profile, seen, {key: rank.node for key, rank in activity.items()}),
        "source": INSIDE,
        "period": period,
        "steps": steps,
    }
    return profile.model_copy(update=changed)


def _iteration(ranks: Sequence[RankActivity]) -> tuple[float | None, int]:
    """Seconds and calls of an iteration, as most of the ranks have it that see one; their median time."""
    counts = Counter(rank.steps for rank in ranks if rank.period)
    if not counts:
        return None, 0
    steps = max(counts, key=lambda steps: (counts[steps], -steps))
    times = sorted(rank.period for rank in ranks if rank.period and rank.steps == steps)
    return times[len(times) // 2], steps


def _node(load: NodeLoad, ranks: Sequence[RankLoad]) -> NodeLoad:
    here = [rank for rank in ranks if rank.node == load.node]
    count = max(1, len(here))
    shares = {
        "ranks": len(here),
        "computing": sum(rank.computing for rank in here) / count,
        "waiting": sum(rank.waiting for rank in here) / count,
    }
    return load.model_copy(update=shares)


def _flows(profile: Profile, seen: Sequence[MpiProfile], where: dict[tuple[str, int], str]) -> tuple[Flow, ...] | None:
    """Flows between nodes with the exact bytes of the messages between ranks, where these are nearly all; else as they
    were. Without counted frames each message may be a turn."""
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in seen:
        for flow in one.flows:
            source, target = where.get((one.job, flow.source)), where.get((one.job, flow.target))
            if source and target and source != target:
                sums[source, target][0] += flow.messages
                sums[source, target][1] += flow.bytes
    other = sum(use.bytes for one in seen for use in one.operations if use.operation not in _BETWEEN_TWO)
    if any(one.outside for one in seen) or other > _FEW * sum(flow.bytes for one in seen for flow in one.flows):
        return profile.flows
    if profile.flows is None:
        found = sorted(sums.items())
        return tuple(
            Flow(source=source, target=target, messages=messages, bytes=size, turns=messages)
            for (source, target), (messages, size) in found
        )
    return tuple(
        flow.model_copy(update={"bytes": sums[flow.source, flow.target][1]})
        if (flow.source, flow.target) in sums
        else flow
        for flow in profile.flows
    )
