"""Placement of tile processes: brings processes that exchange messages to one host, and relieves overloaded hosts.

The loss of a placement is counted in processes: one that only waits loses 1. A pair on different hosts loses its
messages per second times the extra latency between hosts, at most 1; an overloaded host loses the CPUs that it lacks.
The best single move to a free tile is chosen if its gain exceeds the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

MESSAGE = 200e-6  # seconds: extra latency of a message between hosts
LEAST = 0.1  # processes: the least gain of a move


@dataclass(frozen=True)
class Tile:
    """A tile; `process` is None when it is free."""

    number: int
    host: int
    process: int | None = None


@dataclass(frozen=True)
class TileMove:
    """The move of a process to a tile; `gain` in processes, see above."""

    process: int
    tile: int
    gain: float


def loss(
    tiles: Sequence[Tile], load: Mapping[int, float], talk: Mapping[tuple[int, int], float], cpus: Mapping[int, float]
) -> float:
    """The loss of a placement. `load` is in CPUs by process, `talk` in messages per second by pair, `cpus` by host."""
    host = {tile.process: tile.host for tile in tiles if tile.process is not None}
    apart: dict[frozenset[int], float] = {}
    for (one, other), rate in talk.items():
        if one in host and other in host and host[one] != host[other]:
            pair = frozenset((one, other))
            apart[pair] = apart.get(pair, 0.0) + rate * MESSAGE
    used: dict[int, float] = {}
    for process, place in host.items():
        used[place] = used.get(place, 0.0) + load.get(process, 0.0)
    crowded = sum(max(0.0, amount - cpus.get(place, amount)) for place, amount in used.items())
    return sum(min(1.0, lost) for lost in apart.values()) + crowded


def choose_move(
    tiles: Sequence[Tile],
    load: Mapping[int, float],
    talk: Mapping[tuple[int, int], float],
    cpus: Mapping[int, float],
    resting: Set[int] = frozenset(),
) -> TileMove | None:
    """The move with the largest gain, or None. `resting` processes moved recently and stay."""
    now = loss(tiles, load, talk, cpus)
    best: TileMove | None = None
    for source in tiles:
        if source.process is None or source.process in resting:
            continue
        for target in tiles:
            if target.process is not None or target.host == source.host:
                continue
            changed = [
                replace(tile, process=None if tile is source else source.process) if tile in (source, target) else tile
                for tile in tiles
            ]
            gain = now - loss(changed, load, talk, cpus)
            if gain >= LEAST and (best is None or gain > best.gain + 1e-9):
                best = TileMove(source.process, target.number, gain)
    return best
