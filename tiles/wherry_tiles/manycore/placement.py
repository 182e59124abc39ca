"""Placement of tile processes: brings processes that exchange messages to one host, and on a network on chip near to
each other; relieves overloaded hosts.

The loss of a placement is counted in processes: a process that only waits loses 1. A pair on different hosts loses its
messages per second times the extra latency between hosts, a pair on one host whose tiles form a mesh its messages times
hops times the cost of a hop; either at most 1. An overloaded host loses the CPUs that it lacks. The best single
move to a free tile is chosen if its gain exceeds the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

MESSAGE = 200e-6  # seconds: extra latency of a message between hosts
MIN_GAIN = 0.1  # processes: the least gain of a move


@dataclass(frozen=True)
class Tile:
    """A tile; `process` is None when it is free; `place`: column and row on the mesh of its host, if that has one."""

    number: int
    host: int
    process: int | None = None
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class TileMove:
    """The move of a process to a tile; `gain` in processes, see above; `why` in words."""

    process: int
    tile: int
    gain: float
    why: str = ""


def hops(one: Tile, other: Tile) -> int:
    """Hops between two tiles of one host; 0 without a mesh."""
    if one.place is None or other.place is None:
        return 0
    return abs(one.place[0] - other.place[0]) + abs(one.place[1] - other.place[1])


def loss(
    tiles: Sequence[Tile],
    load: Mapping[int, float],
    talk: Mapping[tuple[int, int], float],
    cpus: Mapping[int, float],
    hop: float = 0.0,
) -> float:
    """The loss of a placement. `load` is in CPUs by process, `talk` in messages per second by pair, `cpus` by host,
    `hop` the cost of a hop in seconds."""
    at = {tile.process: tile for tile in tiles if tile.process is not None}
    apart: dict[frozenset[int], float] = {}
    for (one, other), rate in talk.items():
        if one in at and other in at and (takes := _latency(at[one], at[other], hop)):
            pair = frozenset((one, other))
            apart[pair] = apart.get(pair, 0.0) + rate * takes
    crowded = sum(_lacking(at, load, cpus).values())
    return sum(min(1.0, lost) for lost in apart.values()) + crowded


def _latency(one: Tile, other: Tile, hop: float) -> float:
    """Extra time of a message compared with one between neighbours in memory."""
    return MESSAGE if one.host != other.host else hops(one, other) * hop


def _lacking(at: Mapping[int, Tile], load: Mapping[int, float], cpus: Mapping[int, float]) -> dict[int, float]:
    """CPUs that each host lacks."""
    used: dict[int, float] = {}
    for process, tile in at.items():
        used[tile.host] = used.get(tile.host, 0.0) + load.get(process, 0.0)
    return {host: max(0.0, amount - cpus.get(host, amount)) for host, amount in used.items()}


def choose_move(
    tiles: Sequence[Tile],
    load: Mapping[int, float],
    talk: Mapping[tuple[int, int], float],
    cpus: Mapping[int, float],
    resting: Set[int] = frozenset(),
    hop: float = 0.0,
) -> TileMove | None:
    """The move with the largest gain, or None. `resting` processes moved recently and stay."""
    now = loss(tiles, load, talk, cpus, hop)
    best: TileMove | None = None
    where: tuple[Tile, Tile] | None = None
    for source in tiles:
        if source.process is None or source.process in resting:
            continue
        for target in tiles:
            if target.process is not None or (target.host == source.host and not hops(source, target)):
                continue
            changed = [
                replace(tile, process=None if tile is source else source.process) if tile in (source, target) else tile
                for tile in tiles
            ]
            gain = now - loss(changed, load, talk, cpus, hop)
            if gain >= MIN_GAIN and (best is None or gain > best.gain + 1e-9):
                best, where = TileMove(source.process, target.number, gain), (source, target)
    if best is None or where is None:
        return None
    return replace(best, why=_reason(tiles, load, talk, cpus, *where))


def _reason(
    tiles: Sequence[Tile],
    load: Mapping[int, float],
    talk: Mapping[tuple[int, int], float],
    cpus: Mapping[int, float],
    source: Tile,
    target: Tile,
) -> str:
    """With whom the process exchanges most, how far away that is and will be, and the CPUs that its host lacks."""
    at = {tile.process: tile for tile in tiles if tile.process is not None}
    rates: dict[int, float] = {}
    for (one, other), rate in talk.items():
        if source.process in (one, other) and one != other:
            peer = other if one == source.process else one
            rates[peer] = rates.get(peer, 0.0) + rate
    parts = []
    if peers := [peer for peer in rates if peer in at]:
        most = max(peers, key=lambda peer: rates[peer])
        before, after = _distance(source, at[most]), _distance(target, at[most])
        parts.append(f"{rates[most]:.0f} messages a second with process {most}, {before}, then {after}")
    lacks = _lacking(at, load, cpus).get(source.host, 0.0)
    if lacks and target.host != source.host:
        parts.append(f"its host lacks {lacks:.1f} CPUs")
    return "; ".join(parts)


def _distance(one: Tile, other: Tile) -> str:
    if one.host != other.host:
        return "on another host"
    far = hops(one, other)
    return f"{far} hop{'s' * (far != 1)} away" if far else "on its host"
