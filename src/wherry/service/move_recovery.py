"""Goes on with what moves left undone as a host did not answer: moves that could neither be finished nor taken back
when they failed, and copies of nodes at hosts that they were not moved to.

Invariant: each try is an operation with the claims of a move, so nothing else works on the node meanwhile; it is made
while the hosts answer, and after one that fails the next comes later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.model.objects import Move
from wherry.node.protocol import NodeDriver
from wherry.service.claims import FABRIC, cluster_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.operations import Task
from wherry.service.periodic import PeriodicTask

_EVERY = 5.0
"""Seconds between two looks, and between a move's first try and its second; from then on twice as long each time."""
_LONGEST = 600.0
"""Seconds between two tries at most."""


class MoveRecovery(PeriodicTask):
    """Looks for such moves and copies every few seconds."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("take-up", every)
        self._context = context
        self._pauses: dict[str, tuple[float, float]] = {}
        """By move, or node and host: when the next try is due, and the seconds after that until the one after."""

    def run_once(self) -> None:
        """Begins what is due."""
        managers = self._context.managers
        if managers is None:
            self._pauses = {}
            return
        due: dict[str, Callable[[], None]] = {}
        for move in managers.moves.recoverable():
            if self._idle(move.node):
                due[move.id] = partial(self._begin, managers, move)
        for driver in managers.drivers.values():
            for node, host in driver.orphans():
                if self._idle(node) and managers.fabric.reachable(host):
                    due[f"{node}@{host}"] = partial(self._end_orphan, driver, node, host)
        self._pauses = {what: pause for what, pause in self._pauses.items() if what in due}
        for what, begin in due.items():
            when, pause = self._pauses.get(what, (0.0, self.every))
            if time.monotonic() >= when:
                self._pauses[what] = time.monotonic() + pause, min(2 * pause, _LONGEST)
                with contextlib.suppress(WherryError):  # something else works on the node
                    begin()

    def _idle(self, node: str) -> bool:
        return self._context.operations.busy_with(exclusive=[node_claim(node)]) is None

    def _end_orphan(self, driver: NodeDriver, node: str, host: str) -> None:
        def body(_task: Task) -> None:
            row = self._context.store.node(node)
            if row is None or row.host != host:  # else it was started there, which has ended the orphan
                driver.end_orphan(node, host)

        shared = [FABRIC, cluster_claim(node.rpartition("-")[0])]
        self._context.operations.start(
            "end orphan", f"{node} at {host}", body, may_cancel=False, shared=shared, exclusive=[node_claim(node)]
        )

    def _begin(self, managers: Managers, move: Move) -> None:
        def body(task: Task) -> dict[str, Any]:
            managers.moves.recover(task.progress, move.id)
            after = self._context.store.move(move.id)
            if after is not None and not after.ended:
                what = f"the move of {move.node} is neither finished nor taken back yet"
                raise Failed(Code.MOVE_FAILED, what, str((after.error or {}).get("why", "")), "wherry status")
            return {"move": after.model_dump(mode="json") if after else None}

        target, shared = f"{move.node} to {move.destination}", [FABRIC, cluster_claim(move.cluster)]
        self._context.operations.start(
            "take up", target, body, may_cancel=False, shared=shared, exclusive=[node_claim(move.node)]
        )
