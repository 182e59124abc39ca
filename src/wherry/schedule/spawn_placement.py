"""The nodes of processes that a running program spawns: those of the least loaded hosts.

Invariants: pure and deterministic; each process is taken for one busy CPU; a node in a move, or on a drained host, is
chosen only where there is no other, and one on a host that is down never.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wherry.base.errors import Code, Refused

_MAX_LISTED = 8
"""Names in an error's text."""


@dataclass(frozen=True)
class Seat:
    """A node that may get processes. `load`: CPUs in use on its host; `busy`: processes of jobs that it has already;
    `second`: only where nothing else is left."""

    node: str
    address: str
    host: str
    cpus: float
    cores: float
    load: float
    busy: float = 0
    second: bool = False


def named(seats: Sequence[Seat], text: str) -> dict[str, int | None]:
    """The nodes that a `host` key names, and how many processes each may get (None: any number): names of nodes, their
    addresses, or hosts, which stand for the nodes there; separated by commas, a node with `:NUMBER` if that bounds it.
    NOT_FOUND for a name that is none of these."""
    rooms: dict[str, int | None] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = word.partition(":")
        found = [seat.node for seat in seats if name in (seat.node, seat.address)]
        there = found or [seat.node for seat in seats if seat.host == name]
        if not there or (colon and not (number.isdecimal() and number.isascii() and len(number) < 6)):
            hosts = ", ".join(dict.fromkeys(seat.host for seat in seats[:_MAX_LISTED]))
            why = f"the job has nodes {', '.join(seat.node for seat in seats[:_MAX_LISTED])} on {hosts}"
            raise Refused(Code.NOT_FOUND, f"{word!r} is no node or host of this job", why, "name one of these")
        for node in there:
            before = rooms.get(node, 0)
            bounded = before is not None and colon
            rooms[node] = before + int(number) if bounded and before is not None else None
    return rooms


def places(seats: Iterable[Seat], processes: int, rooms: Mapping[str, int | None] | None, most: int) -> dict[str, int]:
    """How many of the processes each node gets; at most `most` nodes get any. NO_CAPACITY when the rooms are too small,
    also those of so many nodes, or there is no node."""
    usable = [seat for seat in seats if rooms is None or seat.node in rooms]
    chosen = _greedy(usable, processes, rooms)
    if len(chosen) > most:  # a list of them all would be too long: the best ones have more each
        rooms = rooms or {}
        room = {node: processes if (bound := rooms.get(node)) is None else bound for node in chosen}
        best = sorted(chosen, key=lambda node: (-room[node], -chosen[node]))[:most]
        if sum(room[node] for node in best) < processes:
            what, why = "the list of these nodes is too long", f"it has room for {most}, with {processes} processes"
            raise Refused(Code.NO_CAPACITY, what, why, "name fewer nodes, and more processes for each")
        chosen = _greedy([seat for seat in usable if seat.node in best], processes, rooms)
    return chosen


def _greedy(seats: Iterable[Seat], processes: int, rooms: Mapping[str, int | None] | None) -> dict[str, int]:
    nodes: dict[tuple[bool, str], list[tuple[float, str, Seat]]] = {}
    for seat in seats:
        nodes.setdefault((seat.second, seat.host), []).append((seat.busy / seat.cpus, seat.node, seat))
    hosts = []
    for key, queue in nodes.items():
        heapq.heapify(queue)
        one = queue[0][2]
        hosts.append((key[0], (one.load + 1) / one.cores, one.host))
    heapq.heapify(hosts)
    chosen, left = Counter[str](), processes
    while left and hosts:
        second, used, name = heapq.heappop(hosts)
        queue = nodes[second, name]
        _, node, seat = heapq.heappop(queue)
        room = (rooms or {}).get(node)
        if room is None or chosen[node] < room:
            chosen[node] += 1
            left -= 1
            used += 1 / seat.cores
            heapq.heappush(queue, ((seat.busy + chosen[node]) / seat.cpus, node, seat))
        if queue:
            heapq.heappush(hosts, (second, used, name))
    if left:
        what, why = f"{processes} processes have no room", f"there is room for {chosen.total()}"
        raise Refused(Code.NO_CAPACITY, what, why, "name more nodes, or leave the key host out")
    return dict(chosen)
