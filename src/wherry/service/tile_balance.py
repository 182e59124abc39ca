"""Balances tiles that were started with `balance`: looks each second, and moves what two looks in a row want moved.

Invariant: its moves are operations with the claims of anybody's; what cannot begin now is looked at again.
"""

from __future__ import annotations

import os

from wherry.base.errors import WherryError
from wherry.manycore.balancer import LOOK, Balancer
from wherry.model.objects import OperationState
from wherry.service.cell import TILES_BALANCED, Cell
from wherry.service.peer import Peer
from wherry.service.tiles import Tiles
from wherry.service.watcher import Watcher

_MOVE = 30.0
"""Seconds for what takes milliseconds, on a loaded machine."""


class TileBalance(Watcher):
    """The thread that does it."""

    def __init__(self, cell: Cell) -> None:
        super().__init__("tile-balance", LOOK)
        self._cell = cell
        self._tiles = Tiles(cell, Peer(os.geteuid(), os.getegid(), frozenset()))
        self._balancer: Balancer | None = None

    def turn(self) -> None:
        """One look, and the move that it wants."""
        if not self._cell.store.setting(TILES_BALANCED) or not self._cell.board.is_up():
            self._balancer = None
            return
        try:
            self._look()
        except WherryError:
            self._balancer = None
            raise

    def _look(self) -> None:
        if self._balancer is None:
            self._balancer = Balancer(self._cell.board)
            return
        wanted = self._balancer.look()
        if wanted is None:
            return
        operation = self._tiles.move({wanted.process: wanted.tile}, "precopy")
        if self._cell.operations.ended(operation.id, _MOVE).state != OperationState.DONE:
            return
        self._balancer.moved(wanted.process)
        text = f"process {wanted.process} is on tile {wanted.tile} now: gains {wanted.gain:.2f}"
        self._cell.store.add_event("tiles.balance", str(wanted.process), text, operation=operation.id)
