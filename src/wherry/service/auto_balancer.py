"""Automatic balancing: a thread that measures the running jobs, and moves nodes when two measurements in a row agree
that it pays.

Invariants: one plan is carried out at a time. A decision becomes an event when it differs from the cluster's last one.
The state of this object may be lost at any time: the cool-down is computed from the rows of moves.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from functools import partial

from wherry.base.clock import steady
from wherry.base.errors import Refused
from wherry.job.profile import Sample
from wherry.model.balance import BalancePlan, Verdict
from wherry.schedule.balance import Rule, confirmed
from wherry.service.balance_commands import AUTO, carry_out, clusters_up, conflicting_operation, note, start
from wherry.service.balance_sampling import BalanceSampling, NodeAtHost
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 4.0
"""Seconds of one measurement."""
_MOST_SKIPPED = 4
"""Most measurements in a row that are skipped. Each measurement without a move doubles the number (none, 1, 2, 4); a
change of jobs, nodes, hosts or links ends the pause. Measuring costs: LU's steps take 1.07 times as long (0011)."""
_NOTE_AGAIN = 60.0
"""Seconds after which an unchanged decision becomes an event again, with its present numbers."""
_NUMBERS = re.compile(r"(?<![\w-])\d[\d.,]*")
"""Numbers, but not those in names such as `cg-3` and `a1`."""


class AutoBalancer(PeriodicTask):
    """Does nothing while the setting is off or no job runs."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("balance", every)
        self._context = context
        self._sampling: BalanceSampling | None = None
        self._sample: Sample | None = None
        self._before: dict[str, Verdict] = {}
        """The last verdict on each cluster."""
        self._jobs: dict[str, set[str]] = {}
        """Ids of the jobs that ran on each cluster at the last measurement."""
        self._refused: dict[NodeAtHost, float] = {}
        """When (`steady`) a planned move was refused: a refused move has no row."""
        self._noted: dict[str, tuple[str, float]] = {}
        """The text of each cluster's last event, without its numbers, and when (monotonic) it was written."""
        self._situation: object = None
        """Jobs, nodes, hosts and links: a change of them ends a pause."""
        self._next_pause = self._to_skip = 0
        """Measurements that the next pause skips, and that the present one still skips."""

    def run_once(self) -> None:
        """Takes a sample, plans from it and the one before, and starts the confirmed moves."""
        managers, running = self._context.managers, dict[str, set[str]]()
        for job in self._context.store.jobs_under_way():
            if job.computes:
                running.setdefault(job.cluster, set()).add(job.id)
        idle = managers is None or not running or self._context.store.setting(AUTO) != "on"
        if managers is None or idle or self._balancing():
            self._sample, self._before = None, {}
            if idle:
                self._situation = None
                self.close()
            return
        # a verdict on other jobs confirms nothing
        self._before = {name: v for name, v in self._before.items() if self._jobs.get(name) == running.get(name)}
        self._jobs = running
        if self._paused(managers):
            return
        if self._sampling is None or self._sampling.managers is not managers:
            self.close()
            self._sampling, self._sample = BalanceSampling(self._context, managers), None
        before, self._sample = self._sample, self._sampling.sample()
        if before is not None:
            self._refused = {move: when for move, when in self._refused.items() if steady() - when < Rule().hold}
            names = [name for name in clusters_up(self._context) if name in running]
            plan = self._sampling.plan(before, self._sample, names, refused=self._refused)
            self._decide(plan)
            self._begin_pause(plan)

    def _paused(self, managers: Managers) -> bool:
        hosts = [(host.name, host.drained, host.down) for host in self._context.hosts()]
        situation = (self._jobs, self._context.store.nodes(), hosts, managers.fabric.spec.links)
        if situation != self._situation:
            self._situation, self._next_pause, self._to_skip = situation, 0, 0
        if not self._to_skip:
            return False
        self._to_skip -= 1
        return True

    def _begin_pause(self, plan: BalancePlan) -> None:
        if plan.moves:
            self._next_pause = 0
            return
        self._to_skip, self._next_pause = self._next_pause, min(2 * self._next_pause or 1, _MOST_SKIPPED)
        if self._to_skip:
            self._sample = None
            self.close()

    def close(self) -> None:
        """Ends the counting of frames, until the next sample."""
        if self._sampling is not None:
            self._sampling.close()

    def _decide(self, plan: BalancePlan) -> None:
        site = {host.name: host.site for host in self._context.hosts()}
        verdicts = [confirmed(verdict, self._before.get(verdict.cluster), site) for verdict in plan.verdicts]
        self._before = {verdict.cluster: verdict for verdict in plan.verdicts}
        known = {cluster.name for cluster in self._context.store.clusters()} | self._before.keys()
        self._noted = {name: last for name, last in self._noted.items() if name in known}
        verdicts = [self._without_moves_if_busy(verdict) for verdict in verdicts]
        for verdict in verdicts:
            if not verdict.moves and self._is_new(verdict):
                note(self._context, verdict)
        with suppress(Refused):  # an operation has just begun: the next measurement sees it
            self._start([verdict for verdict in verdicts if verdict.moves])

    def _without_moves_if_busy(self, verdict: Verdict) -> Verdict:
        """The verdict, without its moves while an operation claims its cluster or one with which it swaps; moves of
        other clusters continue."""
        busy = conflicting_operation(self._context, self._clusters_of([verdict])) if verdict.moves else None
        if busy is None:
            return verdict
        text = f"not while operation {busy.id} ({busy.kind} {busy.target}) is under way: {verdict.text}"
        return verdict.model_copy(update={"moves": (), "after": verdict.before, "cost": 0.0, "text": text})

    def _start(self, verdicts: list[Verdict]) -> None:
        if not verdicts:
            return
        names = [verdict.cluster for verdict in verdicts]
        body = partial(carry_out, self._context, plan=BalancePlan(verdicts=tuple(verdicts)), refused=self._refuse)
        start(self._context, ", ".join(names), self._clusters_of(verdicts), body, 0)
        for verdict in verdicts:
            self._is_new(verdict)  # `carry_out` writes its event

    def _clusters_of(self, verdicts: list[Verdict]) -> list[str]:
        """The clusters of the verdicts, then the others of which they move nodes."""
        names = [verdict.cluster for verdict in verdicts]
        moved = {move.node for verdict in verdicts for move in verdict.moves}
        others = {node.cluster for node in self._context.store.nodes() if node.name in moved} - set(names)
        return [*names, *sorted(others)]

    def _refuse(self, node: str, host: str) -> None:
        """Keeps the move from being proposed again at once: the next measurement would meet the same refusal."""
        self._refused[node, host] = steady()

    def _balancing(self) -> bool:
        """True while a plan moves nodes: measurements mean nothing then."""
        return any(operation.kind == "balance" for operation in self._context.operations.all(running=True))

    def _is_new(self, verdict: Verdict) -> bool:
        """True when the text differs from the cluster's last one in more than its numbers, and once a minute."""
        text = _NUMBERS.sub("#", verdict.text)
        last, when = self._noted.get(verdict.cluster, ("", 0.0))
        new = last != text or time.monotonic() - when > _NOTE_AGAIN
        if new:
            self._noted[verdict.cluster] = (text, time.monotonic())
        return new
