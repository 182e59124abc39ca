"""Goes on with moves that could neither be finished nor taken back when they failed, as a host did not answer.

Invariant: each try is an operation with the claims of a move, so nothing else works on the node meanwhile; it is made
while both hosts answer, and after one that fails the next comes later.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.model.objects import Move
from wherry.service.acts import FABRIC, cluster_claim, node_claim
from wherry.service.cell import Cell, Domain
from wherry.service.operations import Task
from wherry.service.watcher import Watcher

_EVERY = 5.0
"""Seconds between two looks, and between a move's first try and its second; from then on twice as long each time."""
_LONGEST = 600.0
"""Seconds between two tries at most."""


class TakeUp(Watcher):
    """Looks for such moves every few seconds."""

    def __init__(self, cell: Cell, every: float = _EVERY) -> None:
        super().__init__("take-up", every)
        self._cell = cell
        self._pauses: dict[str, tuple[float, float]] = {}
        """By move: when the next try is due, and the seconds after that until the one after."""

    def turn(self) -> None:
        """Begins what is due."""
        domain = self._cell.domain
        left = domain.moves.left() if domain else []
        self._pauses = {move.id: self._pauses[move.id] for move in left if move.id in self._pauses}
        for move in left:
            due, pause = self._pauses.get(move.id, (0.0, self.every))
            if domain and time.monotonic() >= due:
                self._pauses[move.id] = time.monotonic() + pause, min(2 * pause, _LONGEST)
                with contextlib.suppress(WherryError):  # something else works on the node
                    self._begin(domain, move)

    def _begin(self, domain: Domain, move: Move) -> None:
        def body(task: Task) -> dict[str, Any]:
            domain.moves.recover(task.progress, move.id)
            after = self._cell.store.move(move.id)
            if after is not None and not after.ended:
                what = f"the move of {move.node} is neither finished nor taken back yet"
                raise Failed(Code.MOVE_FAILED, what, str((after.error or {}).get("why", "")), "wherry status")
            return {"move": after.model_dump(mode="json") if after else None}

        target, shared = f"{move.node} to {move.destination}", [FABRIC, cluster_claim(move.cluster)]
        self._cell.operations.start(
            "take up", target, body, may_cancel=False, shared=shared, exclusive=[node_claim(move.node)]
        )
