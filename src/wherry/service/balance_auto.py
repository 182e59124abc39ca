"""The daemon's own balancing: a thread that measures what runs, and moves nodes when two measurements say that it pays.

Invariants: one plan at a time; a decision is an event when it says something else than the last one of its cluster;
what it remembers may be lost at any time, as the cool-down counts from the rows of moves.
"""

from __future__ import annotations

import re

from wherry.job.profile import Sample
from wherry.model.balance import BalancePlan, Verdict
from wherry.schedule.balance import confirmed
from wherry.service.balance import AUTO, carry_out, clusters_up, note, start
from wherry.service.balance_look import Look
from wherry.service.cell import UNDER_WAY, Cell
from wherry.service.watcher import Watcher

_EVERY = 4.0
"""Seconds of one measurement."""
_NUMBERS = re.compile(r"[\d.,]+")


class AutoBalance(Watcher):
    """Does nothing while the setting is off or no job runs."""

    def __init__(self, cell: Cell, every: float = _EVERY) -> None:
        super().__init__("balance", every)
        self._cell = cell
        self._look: Look | None = None
        self._sample: Sample | None = None
        self._before: dict[str, Verdict] = {}
        self._said: dict[str, str] = {}

    def turn(self) -> None:
        """One measurement, since the last one; and what follows from it."""
        domain = self._cell.domain
        running = {job.cluster for job in self._cell.store.jobs() if job.state in UNDER_WAY}
        idle = domain is None or not running or self._cell.store.setting(AUTO) != "on"
        if domain is None or idle or self._under_way():
            self._sample = None
            return
        if self._look is None or self._look.domain is not domain:
            self._look, self._sample = Look(self._cell, domain), None
        before, self._sample = self._sample, self._look.sample()
        if before is not None:
            names = [name for name in clusters_up(self._cell) if name in running]
            self._decide(self._look.plan(before, self._sample, names))

    def _decide(self, found: BalancePlan) -> None:
        verdicts = [confirmed(verdict, self._before.get(verdict.cluster)) for verdict in found.verdicts]
        self._before = {verdict.cluster: verdict for verdict in found.verdicts}
        act = [verdict for verdict in verdicts if verdict.moves]
        for verdict in verdicts:
            if not verdict.moves and self._news(verdict):
                note(self._cell, verdict)
        if act:
            names = [verdict.cluster for verdict in act]
            agreed = BalancePlan(verdicts=tuple(act))
            for verdict in act:
                self._news(verdict)
            start(self._cell, ", ".join(names), names, lambda task: carry_out(self._cell, task, agreed), 0)

    def _under_way(self) -> bool:
        """True while nodes are moved by a plan: what is measured then tells nothing."""
        return any(operation.kind == "balance" for operation in self._cell.operations.all(running=True))

    def _news(self, verdict: Verdict) -> bool:
        """True when it says something else than the last one of the cluster, but for its numbers."""
        text = _NUMBERS.sub("#", verdict.text)
        news = self._said.get(verdict.cluster) != text
        self._said[verdict.cluster] = text
        return news
