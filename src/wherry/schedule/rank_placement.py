"""The node of each rank: by the speed that hosts leave to nodes, and by the profile of the program's last run.

    cost = C + L,  C: the largest work of a rank by the speed that it gets,  L: the largest time of a rank's messages

Pure and deterministic. Invariants: no node gets more ranks than even blocks would give the fullest one; without a gain
above the unknown part of a profile, the ranks are even blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wherry.model.program import ProgramProfile
from wherry.schedule.host_speed import class_of
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import SITE_LATENCY

_GAIN = 0.1
"""Part of the cost that another placement than even blocks must save."""
_SAME_HOST = SITE_LATENCY / 4
"""Assumed latency in seconds of a message between two nodes of one host."""
_TIE = 1e-3
"""Weight of all messages and of oversubscribed nodes beside the largest ones, which decide."""
_WORK = 400_000
"""Pairs of ranks that a search looks at, at most: a fraction of a second. Programs with more are not searched."""


@dataclass(frozen=True)
class Seat:
    """A node for ranks: its host and site, the speed that its CPUs get there, and their number."""

    node: str
    host: str
    site: str
    speed: float
    cpus: float


Places = tuple[int, ...]
"""The seat of each rank, by its number."""


def even(seats: Sequence[Seat], ranks: int) -> Places:
    """Blocks as even as possible. The fastest have a rank more, or one at all where there are fewer ranks than
    nodes."""
    share, more = divmod(ranks, len(seats))
    best = sorted(range(len(seats)), key=lambda seat: (-class_of(seats[seat].speed), seat))[:more]
    return tuple(seat for seat in range(len(seats)) for _ in range(share + (seat in best)))


def by_profile(seats: Sequence[Seat], profile: ProgramProfile, routes: Routes) -> tuple[Places, str]:
    """The places of the program's ranks, and why in a line."""
    start, ranks = even(seats, profile.program.ranks), profile.program.ranks
    if ranks * ranks > _WORK:
        return start, f"profile {profile.key}: {ranks} ranks are too many to search, even blocks"
    model = _Model(seats, profile, routes)
    best = min((_improved(model, seats, first) for first in (start, _clustered(model, seats))), key=model.cost)
    of = f"profile {profile.key} ({profile.kind}, {profile.runs} run{'' if profile.runs == 1 else 's'})"
    if model.cost(best) > (1 - _GAIN) * model.cost(start):
        return start, f"{of}: even blocks serve it as well as anything"
    before, after = model.crossing(start), model.crossing(best)
    words = [f"{after:.0f} messages/s cross links instead of {before:.0f}"] if before > after else []
    loaded = max(model.work, key=lambda rank: (model.work[rank], -rank))
    if seats[best[loaded]].speed > seats[start[loaded]].speed:
        words.append(f"rank {loaded}, which computes most, is on {seats[best[loaded]].host}")
    if not words:
        words.append(f"a step takes {model.cost(best) / model.cost(start):.0%} of that with even blocks")
    return best, f"{of}: {', '.join(words)}"


class _Model:
    """The cost of placements of one program on these seats."""

    def __init__(self, seats: Sequence[Seat], profile: ProgramProfile, routes: Routes) -> None:
        self._seats, self._routes = seats, routes
        self.work: Mapping[int, float] = {rank.rank: rank.work for rank in profile.ranks}
        self.talk = _talk(profile)
        self._latency: dict[tuple[int, int], float] = {}

    @property
    def size(self) -> int:
        """Pairs that one evaluation looks at."""
        return max(1, len(self.talk) + len(self.work))

    def cost(self, places: Places) -> float:
        """Relative to a step of the profiled run, less is better."""
        held = Counter(places)
        slowest, crowd = 0.0, 0.0
        for rank, seat in enumerate(places):
            share = self._seats[seat].speed * min(1.0, self._seats[seat].cpus / held[seat])
            slowest = max(slowest, self.work[rank] / max(share, 1e-6))
            crowd += held[seat] / self._seats[seat].cpus
        waits, total = defaultdict[int, float](float), 0.0
        for (source, target), rate in self.talk.items():
            wait = rate * self._between(places[source], places[target])
            waits[target] += wait
            total += wait
        count = len(places)
        return slowest + max(waits.values(), default=0.0) + _TIE * (total + crowd / count) / count

    def crossing(self, places: Places) -> float:
        """Messages per second over links."""
        site = [self._seats[seat].site for seat in places]
        return sum(rate for (source, target), rate in self.talk.items() if site[source] != site[target])

    def _between(self, one: int, other: int) -> float:
        if one == other:
            return 0.0
        if (one, other) not in self._latency:
            here, there = self._seats[one], self._seats[other]
            far = self._routes.route(here.site, there.site).latency
            self._latency[one, other] = far or (_SAME_HOST if here.host == there.host else SITE_LATENCY)
        return self._latency[one, other]


def _talk(profile: ProgramProfile) -> dict[tuple[int, int], float]:
    """Turns per second from rank to rank. Messages between groups are shared by their ranks; those within a group are
    unknown, and taken to be as many as those of the ranks of a pair of groups at most."""
    members = defaultdict[int, list[int]](list)
    for rank in profile.ranks:
        members[rank.group].append(rank.rank)
    found = dict[tuple[int, int], float]()
    for flow in profile.flows or ():
        each = flow.turns / (len(members[flow.source]) * len(members[flow.target]))
        found |= {(one, other): each for one in members[flow.source] for other in members[flow.target]}
    most = max(found.values(), default=0.0)
    inside = ((one, other) for group in members.values() for one in group for other in group if one != other)
    return found | (dict.fromkeys(inside, most) if most else {})


def _clustered(model: _Model, seats: Sequence[Seat]) -> Places:
    """Ranks in the order in which they belong together, put on seats site by site, the largest site first."""
    ranks, room = len(model.work), -(-len(model.work) // len(seats))
    near, beside = defaultdict[int, float](float), defaultdict[int, list[tuple[int, float]]](list)
    for (source, target), rate in model.talk.items():
        beside[source].append((target, rate))
        beside[target].append((source, rate))
    order, left = list[int](), dict.fromkeys(range(ranks))
    while left:
        rank = max(left, key=lambda one: (near[one], model.work[one], -one))
        del left[rank]
        order.append(rank)
        for other, rate in beside[rank]:
            near[other] += rate
    sites = Counter(seat.site for seat in seats)
    speed = {site: sum(seat.speed for seat in seats if seat.site == site) for site in sites}
    by_site = sorted(range(len(seats)), key=lambda i: (-speed[seats[i].site], seats[i].site, -seats[i].speed, i))
    filled = [seat for seat in by_site for _ in range(room)]
    return tuple(seat for _, seat in sorted(zip(order, filled, strict=False)))


def _improved(model: _Model, seats: Sequence[Seat], places: Places) -> Places:
    """The best placement that exchanges of two ranks, and moves of one to a node with room, lead to."""
    room = -(-len(places) // len(seats))
    cost, looks = model.cost(places), _WORK // model.size
    while True:
        best = None
        for changed in _neighbours(places, len(seats), room):
            looks -= 1
            if looks < 0:
                break
            if (found := model.cost(changed)) < cost - 1e-9:
                best, cost = changed, found
        if best is None:
            return places
        places = best


def _neighbours(places: Places, seats: int, room: int) -> Iterator[Places]:
    held = Counter(places)
    for rank, seat in enumerate(places):
        for free in range(seats):
            if free != seat and held[free] < room:
                yield (*places[:rank], free, *places[rank + 1 :])
        for other in range(rank + 1, len(places)):
            if places[other] != seat:
                yield (*places[:rank], places[other], *places[rank + 1 : other], seat, *places[other + 1 :])
