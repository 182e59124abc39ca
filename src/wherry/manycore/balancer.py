"""Moves tile processes to where they lose less: `wherry tile up --balance` starts it, and it ends with the tiles.

Invariant: it acts only on what two looks in a row have said, decided by `wherry.schedule.tiles`, and lets a process
rest after a move. Run as `python -m wherry.manycore.balancer SOCKET`; what it does it says on standard error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from wherry.base.errors import Failed, LostContact, Refused
from wherry.manycore.board import Board, Event
from wherry.schedule.tiles import Tile, TileMove, choose_move

LOOK = 1.0  # seconds between looks
REST = 5.0  # seconds that a process is left alone after a move


def rates(before: Event, after: Event, seconds: float) -> tuple[list[float], dict[tuple[int, int], float]]:
    """CPUs used by each tile, and messages per second from one process to another."""
    busy = [(now - then) / 1e9 / seconds for then, now in zip(before["cpu_ns"], after["cpu_ns"], strict=True)]
    said = {(one, other): count for one, other, count in before["said"]}
    talk = {(one, other): (count - said.get((one, other), 0)) / seconds for one, other, count in after["said"]}
    return busy, {pair: rate for pair, rate in talk.items() if rate > 0}


def decide(board: Board, before: Event, after: Event, seconds: float, resting: frozenset[int]) -> TileMove | None:
    """What should be moved, as the tiles are now."""
    table = board.ps()
    running = {p["tile"]: p["process"] for p in table["processes"] if p["state"] == "running"}
    tiles = [Tile(t["tile"], t["host"], running.get(t["tile"])) for t in table["tiles"] if t["alive"]]
    busy, talk = rates(before, after, seconds)
    load = {process: busy[tile] for tile, process in running.items()}
    return choose_move(tiles, load, talk, dict(enumerate(map(float, after["cpus"]))), resting)


def tell_apart(board: Board) -> list[int]:
    """What is different for tiles that were started anew at the same socket."""
    return [tile["pid"] for tile in board.ps()["tiles"]]


def balance(board: Board) -> None:
    """Until the tiles are gone, or others are in their place, who have a balancer of their own if they want one."""
    moved: dict[int, float] = {}
    wanted: TileMove | None = None
    ours = tell_apart(board)
    before, looked = board.loads(), time.monotonic()
    while True:
        time.sleep(LOOK)
        if tell_apart(board) != ours:
            return
        after, now = board.loads(), time.monotonic()
        resting = frozenset(process for process, when in moved.items() if now - when < REST)
        last, wanted = wanted, decide(board, before, after, now - looked, resting)
        before, looked = after, now
        if wanted is None or last is None or (last.process, last.tile) != (wanted.process, wanted.tile):
            continue
        try:
            cost = board.move(wanted.process, wanted.tile, "precopy")
        except (Refused, Failed) as error:
            print(f"process {wanted.process} stays: {error}", file=sys.stderr, flush=True)
            continue
        moved[wanted.process] = time.monotonic()
        print(
            f"process {wanted.process} moved from tile {cost['from']} to {cost['to']}: gains {wanted.gain:.2f}",
            file=sys.stderr,
            flush=True,
        )


def main() -> int:
    try:
        balance(Board(Path(sys.argv[1])))
    except (Refused, LostContact):  # the tiles are gone
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
