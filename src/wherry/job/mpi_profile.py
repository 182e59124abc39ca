"""Profile of a running job from inside MPI: the difference of two readings of its ranks' pages.

Invariants: a rank that is in one of both only, was replaced between them, or whose clock was set meanwhile, is omitted;
a node whose ranks could not be read is named, never taken for idle. A user's processes make no more work than its job's
ranks would.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wherry.base.clock import now
from wherry.base.errors import WherryError
from wherry.cluster.placements import Placements
from wherry.model.mpi_profile import CommunicatorUse, MpiProfile, OperationUse, RankActivity, RankFlow
from wherry.model.records import Job, Node
from wherry.node import mpi_page
from wherry.node.mpi_page import Cell, Page
from wherry.node.rank_host import RankHost, RankHosts, RankProcess

_ALIKE = 0.9
"""Share of calls that are as those one period before."""
_TURNS = 3
"""Periods that must be seen, and the calls in them at least."""
_LEAST_CALLS = 20
_PERIODS = 64
"""Ranks whose period is looked for: it takes some milliseconds for each."""
_PAGES = 2
"""Pages that are read for each rank of a job: its own, and one of a world that it has spawned."""
_COMPUTES, _IMBALANCED, _SMALL = 0.8, 1.2, 4096


@dataclass(frozen=True)
class Reading:
    """The pages of a job's ranks, with their nodes and processes; nodes that could not be read, with the reason; and
    the processes of ranks that have no page (`bare`: host, node, PID), also where others of the rank have one."""

    pages: dict[int, tuple[str, int, Page]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    bare: list[tuple[str, str, int]] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """Adds the reading of further nodes."""
        self.pages.update({rank: page for rank, page in other.pages.items() if rank not in self.pages})
        self.unseen.update(other.unseen)
        self.bare.extend(other.bare)


def take(
    job: Job,
    nodes: Sequence[Node],
    placements: Placements,
    hosts: RankHosts,
    listed: Sequence[RankProcess] | None = None,
) -> Reading:
    """Reads the pages of the job's ranks on these nodes, at their hosts. `listed`: the ranks on these nodes, where they
    are known already."""
    reading, left = Reading(), _PAGES * job.ranks
    for node in nodes:
        if node.name not in job.nodes:
            continue
        if placements.port(node).tap:
            reading.unseen[node.name] = "its ranks are in a virtual machine, whose memory is not read"
            continue
        host, mine, seen, others = hosts(node.host), list[int](), 0, 0
        try:
            found = host.ranks((node.name,)) if listed is None else listed
            mine = [rank.pid for rank in found if (rank.times.job, rank.times.node) == (job.id, node.name)]
            for pid in mine:
                page = _page(host, node, pid, job) if left else None
                if page is None:
                    reading.bare.append((node.host, node.name, pid))
                    continue
                left -= 1
                if page.spawned or page.size > job.ranks or page.rank in reading.pages:
                    others += 1
                else:
                    reading.pages[page.rank] = node.name, pid, page
                    seen += 1
        except WherryError as error:  # a silent host
            reading.unseen[node.name] = str(error)
            continue
        if others or (mine and not left):
            reading.unseen[node.name] = "it has ranks of other worlds (MPI_Comm_spawn), which are left out"
        elif mine and not seen:
            reading.unseen[node.name] = job.uncounted or "its ranks have not called MPI_Init"
    return reading


def _page(host: RankHost, node: Node, pid: int, job: Job) -> Page | None:
    found = host.mpi_page(node.name, pid, job.ranks)
    return mpi_page.unpacked(found.data, found.read, job.ranks) if found else None


def profile(job: Job, before: Reading, after: Reading, recent: bool = False) -> MpiProfile:
    """The activity of the job's ranks between two readings. An iteration may be found in calls before them, unless only
    `recent` ones are to count."""
    both = [rank for rank, found in after.pages.items() if rank in before.pages and _same(before.pages[rank], found)]
    pairs = {rank: (before.pages[rank][2], after.pages[rank][2]) for rank in sorted(both)}
    seconds = {rank: max((new.time - old.time) / new.rate, 1e-6) for rank, (old, new) in pairs.items()}
    activity = tuple(
        _activity(rank, after.pages[rank][0], old, new, seconds[rank], index < _PERIODS, recent)
        for index, (rank, (old, new)) in enumerate(pairs.items())
    )
    operations = _operations(pairs, seconds)
    flows, outside = _flows(pairs, seconds)
    imbalance = _imbalance(activity)
    kind, reason = _kind(activity, operations, imbalance)
    return MpiProfile(
        job=job.id,
        time=now(),
        seconds=sum(seconds.values()) / len(seconds) if seconds else 0.0,
        size=max((new.size for _, new in pairs.values()), default=0),
        kind=kind,
        reason=reason,
        imbalance=imbalance,
        ranks=activity,
        operations=operations,
        flows=flows,
        communicators=_communicators(pairs, seconds),
        outside=outside,
        unseen=dict(after.unseen),
    )


def _same(old: tuple[str, int, Page], new: tuple[str, int, Page]) -> bool:
    """True when it is the same run of the rank, by one clock; its process has another number after a move."""
    if old[2].begun != new[2].begun or old[2].calls > new[2].calls:
        return False
    passed, lasted = new[2].read - old[2].read, (new[2].time - old[2].time) / new[2].rate
    return 0 <= lasted < 2 * passed and (bool(new[2].ended) or lasted > passed / 2)


def _activity(rank: int, node: str, old: Page, new: Page, seconds: float, periodic: bool, recent: bool) -> RankActivity:
    unit = new.rate * seconds
    under_way = new.in_call - old.in_call  # the duration of a call so far is counted when it ends
    inside = (new.inside - old.inside + under_way) / unit
    polling = (new.polling - old.polling) / unit
    waited = (_waited(new) - _waited(old) + under_way) / unit
    waiting = min(max(waited + polling, 0.0), 1.0)
    computing = min(max(1.0 - inside - polling, 0.0), 1.0 - waiting)
    latest = new.latest() if periodic else []
    found = period(latest[max(0, len(latest) - (new.calls - old.calls)) :] if recent else latest)
    return RankActivity(
        rank=rank,
        node=node,
        computing=computing,
        waiting=waiting,
        transferring=1.0 - computing - waiting,
        calls=(new.calls - old.calls) / seconds,
        period=found[0] if found else None,
        steps=found[1] if found else 0,
        now=new.now,
        lasts=new.in_call / new.rate,
    )


def _waited(page: Page) -> int:
    return sum(cell.waiting for cell in page.cells())


def period(latest: Sequence[tuple[int, float]]) -> tuple[float, int] | None:
    """Seconds and calls of an iteration, from the latest calls: the smallest distance at which nearly all are alike."""
    calls, times = [call for call, _ in latest], [time for _, time in latest]
    count = len(calls)
    if count < _LEAST_CALLS:
        return None
    for distance in range(1, count // _TURNS + 1):
        if calls[-1 - distance] != calls[-1]:
            continue
        alike = sum(map(operator.eq, calls[distance:], calls))
        if alike >= _ALIKE * (count - distance):
            turns = (count - 1) // distance
            return (times[-1] - times[-1 - turns * distance]) / turns, distance
    return None


def _operations(pairs: Mapping[int, tuple[Page, Page]], seconds: Mapping[int, float]) -> tuple[OperationUse, ...]:
    """The operations that were called, by their share of the ranks' time."""
    found: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for rank, (old, new) in pairs.items():
        past = {(cell.operation, cell.least): cell for cell in old.cells()}
        for cell in new.cells():
            key = cell.operation, cell.least
            was = past.get(key, Cell(*key, 0, 0, 0, 0))
            unit, parts = new.rate * seconds[rank] * len(pairs), found[key]
            parts[0] += (cell.calls - was.calls) / seconds[rank]
            parts[1] += (cell.bytes - was.bytes) / seconds[rank]
            parts[2] += (cell.ticks - was.ticks) / unit
            parts[3] += (cell.waiting - was.waiting) / unit
    used = [
        OperationUse(
            operation=operation, least=least, calls=calls, bytes=size, share=share, waiting=min(waiting, share)
        )
        for (operation, least), (calls, size, share, waiting) in found.items()
        if calls > 0
    ]
    return tuple(sorted(used, key=lambda use: (-use.share, use.operation, use.least)))


def _flows(pairs: Mapping[int, tuple[Page, Page]], seconds: Mapping[int, float]) -> tuple[tuple[RankFlow, ...], float]:
    """Messages between ranks, and those to other worlds, per second."""
    flows, outside = [], 0.0
    for rank, (old, new) in pairs.items():
        past = old.peers()
        for target, peer in new.peers().items():
            was = past.get(target)
            messages = (peer.messages - (was.messages if was else 0)) / seconds[rank]
            size = (peer.bytes - (was.bytes if was else 0)) / seconds[rank]
            if messages and target < new.size:
                flows.append(RankFlow(source=rank, target=target, messages=messages, bytes=size))
            elif messages:
                outside += messages
    return tuple(flows), outside


def _communicators(pairs: Mapping[int, tuple[Page, Page]], seconds: Mapping[int, float]) -> tuple[CommunicatorUse, ...]:
    sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for rank, pages in pairs.items():
        for page, sign in zip(pages, (-1, 1), strict=True):
            for one in page.communicators():
                part, each = sums[one.size], sign / seconds[rank]
                part[0] += one.calls * each
                part[1] += one.bytes * each
                part[2] += one.ticks * each / page.rate / len(pairs)
    return tuple(
        CommunicatorUse(size=size, calls=calls, bytes=sent, share=share)
        for size, (calls, sent, share) in sorted(sums.items())
        if calls > 0
    )


def _imbalance(activity: Sequence[RankActivity]) -> float:
    shares = [rank.computing for rank in activity]
    mean = sum(shares) / len(shares) if shares else 0.0
    return max(shares) / mean if mean > 0 else 1.0


def _kind(activity: Sequence[RankActivity], operations: Sequence[OperationUse], imbalance: float) -> tuple[str, str]:
    """The bound of the job's speed, and why."""
    if not activity:
        return "unknown", "no rank could be read twice"
    count = len(activity)
    computing = sum(rank.computing for rank in activity) / count
    if computing >= _COMPUTES:
        return "computing", f"its ranks compute {computing:.0%} of the time"
    slowest = max(activity, key=lambda rank: rank.computing)
    if imbalance >= _IMBALANCED and slowest.computing >= _COMPUTES:
        said = f"rank {slowest.rank} computes {slowest.computing:.0%} of the time, the mean is {computing:.0%}"
        return "imbalanced", f"{said}: the others wait for it"
    top = operations[0] if operations else None
    sized = [use for use in operations if use.bytes]
    mean = sum(use.bytes for use in sized) / sum(use.calls for use in sized) if sized else 0.0
    kind = "latency" if mean < _SMALL else "bandwidth"
    most = f", most of all MPI_{top.operation} ({top.share:.0%})" if top else ""
    return kind, f"its ranks are in MPI {1 - computing:.0%} of the time with {mean:.0f} bytes a call{most}"
