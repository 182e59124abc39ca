"""Which tile process should be on which tile: one that talks to another host goes there, one on a crowded host away.

What a placement loses is in processes: one that waits all the time loses 1. For each pair on different hosts the
messages per second times what a message between hosts takes longer, at most 1; for each host with more to compute than
it has CPUs, what it lacks. The best single move to a free tile is chosen, if it gains enough to be more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

MESSAGE = 200e-6  # seconds that a message between hosts takes longer than one within
LEAST = 0.1  # processes: a move that gains less is not worth its disturbance


@dataclass(frozen=True)
class Tile:
    """`process` is None when it is free."""

    number: int
    host: int
    process: int | None = None


@dataclass(frozen=True)
class TileMove:
    """`gain` in processes; see above."""

    process: int
    tile: int
    gain: float


def loss(
    tiles: Sequence[Tile], load: Mapping[int, float], talk: Mapping[tuple[int, int], float], cpus: Mapping[int, float]
) -> float:
    """What the placement loses. `load` in CPUs by process, `talk` in messages per second, `cpus` by host."""
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
    """The move that gains most, or None. Processes that are `resting` have moved lately and stay."""
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
