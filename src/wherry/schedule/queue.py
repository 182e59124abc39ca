"""The order of clusters that wait for room, and which of them may start. Pure functions.

Invariants: a cluster that starts delays none before it, as far as the ends of leases are known; where they are not, it
takes no host that a cluster before it may use, or is gone before that could start. Hosts get no
more than they have (`placement`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wherry.base.errors import Refused
from wherry.model.records import Host, Move, Node
from wherry.model.spec.cluster import PlacementSpec
from wherry.schedule.placement import NodeNeed, Used, choose_places, used_by

_SOON = 60.0
"""Seconds until nodes are gone whose lease has ended."""
_DEPTH, _TIMES = 32, 64
"""How many clusters of the queue are planned, and at how many times each is tried: others wait behind them."""


@dataclass(frozen=True)
class Wanted:
    """Nodes that a cluster waits for. `lease`: seconds that they stay (None: without end); `own`: nodes that the
    cluster has, by host; `obstacle`: why it cannot start whatever room there is, such as its owner's quota."""

    key: str
    uid: int
    priority: int
    needs: tuple[NodeNeed, ...]
    placement: PlacementSpec
    sites: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    lease: float | None = None
    own: Mapping[str, int] | None = None
    obstacle: str = ""

    def may_use(self, host: Host) -> bool:
        """Whether the file allows a host."""
        return host.name in (self.hosts or (host.name,)) and host.site in (self.sites or (host.site,))


@dataclass(frozen=True)
class Verdict:
    """Whether a cluster starts now; else `why` not, and when there is room by the ends of leases (None: not known)."""

    key: str
    starts: bool
    why: str = ""
    at: float | None = None


@dataclass(frozen=True)
class _Planned:
    """Nodes that come at a time, and stay until another."""

    places: tuple[tuple[str, NodeNeed], ...]
    begins: float
    ends: float


def in_order(entered: Sequence[Wanted], held: Mapping[int, int]) -> list[Wanted]:
    """The order of the queue: by priority, then turn by turn. An owner's turn is the number of clusters that it has
    (`held`), and of its clusters that wait before this one; of equal turns the earlier entry comes first."""
    turns, counts = dict[str, tuple[int, int]](), dict(held)
    for wanted in sorted(entered, key=lambda one: -one.priority):
        turns[wanted.key] = (-wanted.priority, counts.get(wanted.uid, 0))
        counts[wanted.uid] = counts.get(wanted.uid, 0) + 1
    return sorted(entered, key=lambda one: turns[one.key])


def can_ever_start(wanted: Wanted, hosts: Iterable[Host]) -> str:
    """Why the nodes fit on no empty fabric whose hosts are all usable; empty when they fit."""
    usable = [_usable(host) for host in hosts if not host.lost]
    try:
        choose_places(list(wanted.needs), usable, {}, wanted.placement, wanted.sites, wanted.hosts)
    except Refused as error:
        return error.why
    return ""


def _usable(host: Host) -> Host:
    """The host as it will be when it is back."""
    return host.model_copy(update={"down": False, "drained": False, "absent": False})


def decide(
    queue: Sequence[Wanted],
    hosts: Sequence[Host],
    nodes: Sequence[Node],
    moves: Sequence[Move],
    ends: Mapping[str, float],
    present: float,
) -> list[Verdict]:
    """A verdict for each of the queue, in its order. `ends` has the end of each running cluster's lease, if it has
    one."""
    planned, closed, verdicts = list[_Planned](), dict[str, float](), list[Verdict]()
    ends = {name: end if end > present else present + _SOON for name, end in ends.items()}
    taken = _Taken(nodes, moves, ends, present)
    known = _Taken([node for node in nodes if node.cluster in ends], moves, ends, present)
    for wanted in queue:
        if sum(not verdict.starts for verdict in verdicts) >= _DEPTH:
            verdicts.append(Verdict(wanted.key, False, wanted.obstacle or f"{_DEPTH} before it wait"))
            continue
        if wanted.obstacle:
            verdicts.append(Verdict(wanted.key, False, wanted.obstacle))
            continue
        found, why = _first_time(wanted, hosts, closed, taken, planned)
        if found:
            planned.append(found)
            starts = found.begins <= present
            at = None if starts else found.begins
            verdicts.append(Verdict(wanted.key, starts, "" if starts else "until leases of others end", at))
            continue
        if _first_time(wanted, hosts, {}, known, planned)[0]:
            since = present  # when a cluster without a lease ends
        else:  # after a cluster that waits and has no lease
            since = min((one.begins for one in planned if one.ends == math.inf), default=present)
        closed |= {host.name: min(since, closed.get(host.name, since)) for host in hosts if wanted.may_use(host)}
        others = sum(not verdict.starts for verdict in verdicts)
        verdicts.append(Verdict(wanted.key, False, _unknown(why, others)))
    return verdicts


def _unknown(why: str, before: int) -> str:
    others = f"{before} before it wait{'s' if before == 1 else ''}; " if before else ""
    return f"{others}no lease gives the time when there is room: {why}"


class _Taken:
    """The room that running clusters take at a time."""

    def __init__(self, nodes: Sequence[Node], moves: Sequence[Move], ends: Mapping[str, float], present: float) -> None:
        self._nodes, self._moves, self.ends, self.present = nodes, moves, ends, present
        self._at = dict[float, dict[str, Used]]()

    def at(self, time: float) -> dict[str, Used]:
        """By host; a copy."""
        if time not in self._at:
            staying = [node for node in self._nodes if self.ends.get(node.cluster, math.inf) > time]
            self._at[time] = used_by(staying, self._moves if time <= self.present else ())
        return dict(self._at[time])


def _first_time(
    wanted: Wanted, hosts: Sequence[Host], closed: Mapping[str, float], taken: _Taken, planned: Sequence[_Planned]
) -> tuple[_Planned | None, str]:
    """The first time at which there is room for as long as the nodes stay, and their places; else why there is none
    now. They must be gone from a host when it is `closed`."""
    times = {taken.present, *taken.ends.values(), *(one.ends for one in planned)}
    reason = ""
    for time in sorted(time for time in times if time < math.inf)[:_TIMES]:
        until = time + wanted.lease if wanted.lease is not None else math.inf
        free = [host for host in hosts if until <= closed.get(host.name, math.inf)]
        used = taken.at(time)
        for one in planned:
            if one.begins < until and one.ends > time:
                for host, need in one.places:
                    used[host] = used.get(host, Used()).plus(need)
        try:
            chosen = choose_places(
                list(wanted.needs), free, used, wanted.placement, wanted.sites, wanted.hosts, wanted.own
            )
        except Refused as error:
            reason = reason or error.why
            continue
        places = tuple((place.host, replace(need, pin=None)) for place, need in zip(chosen, wanted.needs, strict=True))
        return _Planned(places, time, until), ""
    return None, reason
