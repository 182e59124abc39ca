"""Balances tiles that were started with `balance`: samples once a second, and makes a move that two samples in a row
propose.

Invariant: its moves are operations with the same claims as a user's; a refused move may be proposed again.
"""

from __future__ import annotations

import os

from wherry.base.errors import WherryError
from wherry.model.records import OperationState
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.periodic import PeriodicTask
from wherry_tiles.manycore.balancer import SAMPLE_INTERVAL, Balancer
from wherry_tiles.service.commands import TILES_BALANCED, TileCommands
from wherry_tiles.service.part import board_of

_MOVE = 30.0
"""Longest wait in seconds for a move, which takes milliseconds on a machine that is not loaded."""


class TileAutoBalancer(PeriodicTask):
    """Does nothing while no tiles are up or their balancing is off."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("tile-balance", SAMPLE_INTERVAL)
        self._context, self._board = context, board_of(context.instance)
        self._tiles = TileCommands(context, PeerCredentials(os.geteuid(), os.getegid(), frozenset()))
        self._balancer: Balancer | None = None

    def run_once(self) -> None:
        """Takes a sample, and makes the move that it confirms."""
        if not self._context.store.setting(TILES_BALANCED) or not self._board.is_up():
            self._balancer = None
            return
        try:
            self._balance()
        except WherryError:
            self._balancer = None
            raise

    def _balance(self) -> None:
        if self._balancer is None:
            self._balancer = Balancer(self._board)
            return
        proposed = self._balancer.look()
        if proposed is None:
            return
        operation = self._tiles.move({proposed.process: proposed.tile}, "precopy")
        if self._context.operations.wait(operation.id, _MOVE).state != OperationState.DONE:
            return
        self._balancer.moved(proposed.process)
        text = f"process {proposed.process} is on tile {proposed.tile} now: {proposed.why}; gains {proposed.gain:.2f}"
        self._context.store.add_event("tiles.balance", str(proposed.process), text, operation=operation.id)
