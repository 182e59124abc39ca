"""The daemon's own balancing: a thread that measures what runs, and moves nodes when two measurements say that it pays.

Invariants: one plan at a time; a decision is an event when it says something else than the last one of its cluster;
what it remembers may be lost at any time, as the cool-down counts from the rows of moves.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

from wherry.base.clock import now
from wherry.base.errors import Refused
from wherry.job.profile import Sample
from wherry.model.balance import BalancePlan, Verdict
from wherry.schedule.balance import Rule, confirmed
from wherry.service.balance import AUTO, busy_with, carry_out, clusters_up, note, start
from wherry.service.balance_sampling import BalanceSampling, Where
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 4.0
"""Seconds of one measurement."""
_PAUSE = 4
"""Measurements that are left out, at most, after one that would move nothing: none, 1, 2, 4, and so on. Changes in
jobs, nodes, hosts or links end it. LU's steps take some 1.07 times as long while it is looked at (docs/design/0011)."""
_AGAIN = 60.0
"""Seconds after which a decision is told with its numbers of then, also when it is the same."""
_NUMBERS = re.compile(r"(?<![\w-])\d[\d.,]*")
"""Not those of names, as `cg-3` and `a1`."""


class AutoBalancer(PeriodicTask):
    """Does nothing while the setting is off or no job runs."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("balance", every)
        self._context = context
        self._look: BalanceSampling | None = None
        self._sample: Sample | None = None
        self._before: dict[str, Verdict] = {}
        self._jobs: dict[str, set[str]] = {}
        """Ids of the jobs that ran on each cluster when it was last measured."""
        self._refused: dict[Where, float] = {}
        """When a move that was planned was refused: it has no row that would say so."""
        self._said: dict[str, tuple[str, float]] = {}
        """What was said of a cluster last, without its numbers, and when."""
        self._scene: object = None
        """What ends a pause when it changes."""
        self._pause = self._left = 0
        """How many measurements the next pause leaves out, and how many this one still does."""

    def run_once(self) -> None:
        """One measurement, since the last one; and what follows from it."""
        managers, running = self._context.managers, dict[str, set[str]]()
        for job in self._context.store.jobs():
            if job.state.under_way:
                running.setdefault(job.cluster, set()).add(job.id)
        idle = managers is None or not running or self._context.store.setting(AUTO) != "on"
        if managers is None or idle or self._under_way():
            self._sample, self._before = None, {}
            if idle:
                self._scene = None
                self._stop_looking()
            return
        # what was said of other jobs confirms nothing
        self._before = {name: v for name, v in self._before.items() if self._jobs.get(name) == running.get(name)}
        self._jobs = running
        if self._paused(managers):
            return
        if self._look is None or self._look.managers is not managers:
            self._stop_looking()
            self._look, self._sample = BalanceSampling(self._context, managers), None
        before, self._sample = self._sample, self._look.sample()
        if before is not None:
            self._refused = {where: time for where, time in self._refused.items() if now() - time < Rule().hold}
            names = [name for name in clusters_up(self._context) if name in running]
            found = self._look.plan(before, self._sample, names, refused=self._refused)
            self._decide(found)
            self._begin_pause(found)

    def _paused(self, managers: Managers) -> bool:
        hosts = [(host.name, host.drained, host.down) for host in self._context.hosts()]
        scene = (self._jobs, self._context.store.nodes(), hosts, managers.fabric.spec.links)
        if scene != self._scene:
            self._scene, self._pause, self._left = scene, 0, 0
        if not self._left:
            return False
        self._left -= 1
        return True

    def _begin_pause(self, found: BalancePlan) -> None:
        if found.moves:
            self._pause = 0
            return
        self._left, self._pause = self._pause, min(2 * self._pause or 1, _PAUSE)
        if self._left:
            self._sample = None
            self._stop_looking()

    def stop(self) -> None:
        super().stop()
        self._stop_looking()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.close()

    def _decide(self, found: BalancePlan) -> None:
        site = {host.name: host.site for host in self._context.hosts()}
        verdicts = [confirmed(verdict, self._before.get(verdict.cluster), site) for verdict in found.verdicts]
        self._before = {verdict.cluster: verdict for verdict in found.verdicts}
        verdicts = [self._unless_busy(verdict) for verdict in verdicts]
        for verdict in verdicts:
            if not verdict.moves and self._news(verdict):
                note(self._context, verdict)
        with suppress(Refused):  # somebody has just begun something: the next measurement says so
            self._start([verdict for verdict in verdicts if verdict.moves])

    def _unless_busy(self, verdict: Verdict) -> Verdict:
        """The verdict, without moves while somebody is at its cluster: the others' moves need not wait for that."""
        busy = busy_with(self._context, verdict.cluster) if verdict.moves else None
        if busy is None:
            return verdict
        text = f"not while operation {busy.id} ({busy.kind} {busy.target}) is under way: {verdict.text}"
        return verdict.model_copy(update={"moves": (), "after": verdict.before, "cost": 0.0, "text": text})

    def _start(self, act: list[Verdict]) -> None:
        if not act:
            return
        names = [verdict.cluster for verdict in act]
        body = partial(carry_out, self._context, found=BalancePlan(verdicts=tuple(act)), refused=self._refuse)
        start(self._context, ", ".join(names), names, body, 0)
        for verdict in act:
            self._news(verdict)

    def _refuse(self, node: str, host: str) -> None:
        """Whatever the reason was, it will hardly be another one in the next measurement."""
        self._refused[node, host] = now()

    def _under_way(self) -> bool:
        """True while nodes are moved by a plan: what is measured then tells nothing."""
        return any(operation.kind == "balance" for operation in self._context.operations.all(running=True))

    def _news(self, verdict: Verdict) -> bool:
        """True when it says something else than the last one of the cluster, but for its numbers; and once a minute."""
        text = _NUMBERS.sub("#", verdict.text)
        last, when = self._said.get(verdict.cluster, ("", 0.0))
        news = last != text or now() - when > _AGAIN
        if news:
            self._said[verdict.cluster] = (text, now())
        return news
