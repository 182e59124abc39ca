"""Retries, with exponential backoff, moves left unfinished because a host was unreachable, and ends orphaned copies of
nodes at hosts where they do not belong.

Invariant: each try is an operation with the claims of a move, so no other operation works on the node meanwhile. It is
made only while the hosts answer, and each failure doubles the pause before the next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.model.records import Move
from wherry.node.protocol import NodeDriver
from wherry.service.claims import FABRIC, cluster_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask
from wherry.service.task import Task

_EVERY = 5.0
"""Seconds between two searches, and between the first try and the second; doubled for each further try."""
_MAX_PAUSE = 600.0
"""Longest pause between two tries, in seconds."""


class MoveRecovery(PeriodicTask):
    """Searches for unfinished moves and orphaned copies every few seconds."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("move-recovery", every)
        self._context = context
        self._backoff: dict[str, tuple[float, float]] = {}
        """By move, or node and host: when the next try is due, and the pause after that one. Kept for as long as the
        move is unfinished or the copy exists, also while a try is under way."""

    def run_once(self) -> None:
        """Starts the tries that are due."""
        managers = self._context.managers
        if managers is None:
            self._backoff = {}
            return
        tries: dict[str, tuple[str, Callable[[], None]]] = {}
        for move in managers.moves.recoverable():
            tries[move.id] = move.node, partial(self._recover, managers, move)
        searched = True
        for kind, driver in managers.drivers.items():
            try:
                for node, host in driver.orphans():
                    if managers.fabric.reachable(host):
                        tries[f"{node}@{host}"] = node, partial(self._end_orphan, driver, node, host)
            except Exception:  # the orphans found so far are tried
                searched = False
                self._log.exception("the search for orphaned copies of kind %s failed", kind)
        if searched:
            self._backoff = {key: backoff for key, backoff in self._backoff.items() if key in tries}
        for key, (node, begin) in tries.items():
            due, pause = self._backoff.get(key, (0.0, self.every))
            if time.monotonic() >= due and self._idle(node):
                self._backoff[key] = time.monotonic() + pause, min(2 * pause, _MAX_PAUSE)
                with contextlib.suppress(WherryError):  # an operation has just claimed the node
                    begin()

    def _idle(self, node: str) -> bool:
        return self._context.operations.conflicting_operation(exclusive=[node_claim(node)]) is None

    def _end_orphan(self, driver: NodeDriver, node: str, host: str) -> None:
        def body(_task: Task) -> None:
            row = self._context.store.node(node)
            if row is None or row.host != host:  # else a start of the node there has ended the orphan
                driver.end_orphan(node, host)

        shared = [FABRIC, cluster_claim(node.rpartition("-")[0])]
        self._context.operations.start(
            "end orphan", f"{node} at {host}", body, may_cancel=False, shared=shared, exclusive=[node_claim(node)]
        )

    def _recover(self, managers: Managers, move: Move) -> None:
        def body(task: Task) -> dict[str, Any]:
            managers.moves.recover(task.progress, move.id)
            after = self._context.store.move(move.id)
            if after is not None and not after.ended:
                what = f"the move of {move.node} is neither finished nor rolled back yet"
                raise Failed(Code.MOVE_FAILED, what, str((after.error or {}).get("why", "")), "wherry status")
            return {"move": after.model_dump(mode="json") if after else None}

        target, shared = f"{move.node} to {move.destination}", [FABRIC, cluster_claim(move.cluster)]
        self._context.operations.start(
            "recover move", target, body, may_cancel=False, shared=shared, exclusive=[node_claim(move.node)]
        )
