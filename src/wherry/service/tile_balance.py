"""Balances tiles that were started with `balance`: looks each second, and moves what two looks in a row want moved.

Invariant: its moves are operations with the claims of anybody's; what cannot begin now is looked at again.
"""

from __future__ import annotations

import os

from wherry.base.errors import WherryError
from wherry.manycore.balancer import LOOK, Balancer
from wherry.model.objects import OperationState
from wherry.service.context import TILES_BALANCED, ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.periodic import PeriodicTask
from wherry.service.tiles import Tiles

_MOVE = 30.0
"""Seconds for what takes milliseconds, on a loaded machine."""


class TileBalance(PeriodicTask):
    """The thread that does it."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("tile-balance", LOOK)
        self._context = context
        self._tiles = Tiles(context, PeerCredentials(os.geteuid(), os.getegid(), frozenset()))
        self._balancer: Balancer | None = None

    def run_once(self) -> None:
        """One look, and the move that it wants."""
        if not self._context.store.setting(TILES_BALANCED) or not self._context.board.is_up():
            self._balancer = None
            return
        try:
            self._look()
        except WherryError:
            self._balancer = None
            raise

    def _look(self) -> None:
        if self._balancer is None:
            self._balancer = Balancer(self._context.board)
            return
        wanted = self._balancer.look()
        if wanted is None:
            return
        operation = self._tiles.move({wanted.process: wanted.tile}, "precopy")
        if self._context.operations.wait(operation.id, _MOVE).state != OperationState.DONE:
            return
        self._balancer.moved(wanted.process)
        text = f"process {wanted.process} is on tile {wanted.tile} now: gains {wanted.gain:.2f}"
        self._context.store.add_event("tiles.balance", str(wanted.process), text, operation=operation.id)
