"""Chooses the tile process whose move gains most (`wherry tile up --balance`).

Invariant: it proposes a move only when two samples in a row favour it, according to `wherry_tiles.manycore.placement`,
and not soon after the process was moved. It changes nothing; its caller makes the move
(`wherry_tiles.service.auto_balancer`).
"""

from __future__ import annotations

import time

from wherry_tiles.manycore.board import Board, Event
from wherry_tiles.manycore.placement import Tile, TileMove, choose_move

SAMPLE_INTERVAL = 1.0  # seconds between samples
REST = 5.0  # seconds after a move in which a process is not moved again


def rates(before: Event, after: Event, seconds: float) -> tuple[list[float], dict[tuple[int, int], float]]:
    """CPUs used by each tile, and messages per second from one process to another."""
    busy = [(now - then) / 1e9 / seconds for then, now in zip(before["cpu_ns"], after["cpu_ns"], strict=True)]
    said = {(one, other): count for one, other, count in before["said"]}
    talk = {(one, other): (count - said.get((one, other), 0)) / seconds for one, other, count in after["said"]}
    return busy, {pair: rate for pair, rate in talk.items() if rate > 0}


class Balancer:
    """The state between samples of one group of tiles."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._begin(board.ps(), board.loads())

    def _begin(self, table: Event, loads: Event) -> None:
        self._group = _group(table)
        self._before, self._looked = loads, time.monotonic()
        self._wanted: TileMove | None = None
        self._moved: dict[int, float] = {}

    def look(self) -> TileMove | None:
        """The move that both this sample and the last favour. WherryError when the tiles do not answer."""
        table = self._board.ps()
        after, now = self._board.loads(), time.monotonic()
        if _group(table) != self._group:  # the tiles were restarted
            self._begin(table, after)
            return None
        resting = frozenset(process for process, when in self._moved.items() if now - when < REST)
        last, self._wanted = self._wanted, _decide(table, self._before, after, now - self._looked, resting)
        self._before, self._looked = after, now
        wanted = self._wanted
        return wanted if wanted and last and (last.process, last.tile) == (wanted.process, wanted.tile) else None

    def moved(self, process: int) -> None:
        """Records that the process was just moved."""
        self._moved[process] = time.monotonic()


def _group(table: Event) -> list[int]:
    """The tiles' PIDs, which differ after a restart at the same socket."""
    return [tile["pid"] for tile in table["tiles"]]


def _decide(table: Event, before: Event, after: Event, seconds: float, resting: frozenset[int]) -> TileMove | None:
    running = {p["tile"]: p["process"] for p in table["processes"] if p["state"] == "running"}
    tiles = [Tile(t["tile"], t["host"], running.get(t["tile"]), _place(t)) for t in table["tiles"] if t["alive"]]
    busy, talk = rates(before, after, seconds)
    load = {process: busy[tile] for tile, process in running.items()}
    return choose_move(tiles, load, talk, dict(enumerate(map(float, after["cpus"]))), resting, table["hop_ns"] / 1e9)


def _place(tile: Event) -> tuple[int, int] | None:
    return (tile["place"][0], tile["place"][1]) if "place" in tile else None
