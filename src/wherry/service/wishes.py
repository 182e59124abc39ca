"""A wish of a running program: a move that the daemon makes when it is cheap.

Invariants: a wish is an operation, so it is listed, may be cancelled, and ends with its job or with the daemon. It
claims nothing until it moves. It moves nothing amid a critical phase of its cluster, and nothing of other jobs. It
measures within the bound of all who do (`balance_commands`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.units import format_duration
from wherry.cluster.lookup import find_node
from wherry.job.inside import amid_critical_phase
from wherry.model.balance import BalancePlan, Verdict
from wherry.model.records import Job, Operation
from wherry.service.balance_commands import carry_out, conflicting_operation, measurement
from wherry.service.balance_sampling import sampling
from wherry.service.claims import BALANCE, FABRIC, Claims, cluster_claim, node_claim
from wherry.service.context import ServiceContext
from wherry.service.task import Task

KIND = "wish"
_POLL_INTERVAL, _ROUND_INTERVAL = 2.0, 10.0
"""Seconds between two looks at a node; at all of them, which are measured for `_POLL_INTERVAL` seconds."""


def subject_of(wish: Operation) -> str:
    """The node that a wish is for, or the job."""
    return wish.target.partition(" to ")[0]


def only_of(plan: BalancePlan, job: Job) -> BalancePlan:
    """The plan, without the moves of a verdict that needs nodes of other jobs: half of them would not pay."""

    def own(verdict: Verdict) -> Verdict:
        foreign = [move.node for move in verdict.moves if move.node not in job.nodes or move.swap]
        if not foreign:
            return verdict
        text = f"not asked for by job {job.id}, whose nodes {foreign[0]} is not alone: {verdict.text}"
        return verdict.model_copy(update={"moves": (), "after": verdict.before, "cost": 0.0, "text": text})

    return plan.model_copy(update={"verdicts": tuple(map(own, plan.verdicts))})


@dataclass(frozen=True)
class Wish:
    """To move `node` to `host` (None: the nodes of the job that the rule of balancing moves) when its downtime would be
    `downtime` seconds at most, within so many seconds."""

    context: ServiceContext
    job: str
    node: str
    host: str | None
    downtime: float
    within: float
    planning: Callable[[str], AbstractContextManager[None]]
    """Refused while another request plans a move of that node."""
    permitted: Callable[[], object]
    """PERMISSION when the job's user may move nodes no more."""

    @property
    def target(self) -> str:
        """The target of the operation: wishes that differ in anything have different ones."""
        bounds = f"{self.downtime:g} s at most, within {self.within:g} s"
        return f"{self.node} to {self.host}, {bounds}" if self.host else f"{self.job} to where it pays, {bounds}"

    def run(self, task: Task) -> dict[str, Any]:
        """The operation. TIMED_OUT when it was not cheap in time."""
        deadline = time.monotonic() + self.within
        while True:
            task.check()
            job = self.context.store.job(self.job)
            if job is None or not job.computes:
                return {"moves": []}
            why, moved = self._hindrance(job.cluster), None
            try:
                moved = None if why else self._attempt(task, job)
            except (Refused, LostContact) as error:  # no room, or another operation has the node, as of now
                if task.claims != Claims() or error.code is Code.PERMISSION:
                    raise  # other operations are not to wait for the same
                why = str(error)
            if moved is not None:
                return moved
            why = why or "it is not cheap enough"
            task.progress(f"{subject_of(task.operation)} waits: {why}")
            if time.monotonic() >= deadline:
                what = f"{subject_of(task.operation)} was not moved within {format_duration(self.within)}"
                raise Failed(Code.TIMED_OUT, what, why, "allow more downtime, or more time")
            task.stop.wait(min(_POLL_INTERVAL if self.host else _ROUND_INTERVAL, deadline - time.monotonic()))

    def _hindrance(self, cluster: str) -> str:
        """Why nothing is to be moved for the job now; empty when nothing is in the way. The job is read last: its
        critical phases end with it."""
        why = amid_critical_phase(self.context.store.jobs(cluster))
        job = self.context.store.job(self.job)
        return why if job is not None and job.computes else "its job has ended"

    def _attempt(self, task: Task, job: Job) -> dict[str, Any] | None:
        return self._balanced(task, job) if self.host is None else self._moved(task, job.cluster, self.host)

    def _moved(self, task: Task, cluster: str, host: str) -> dict[str, Any]:
        if find_node(self.context.store, self.node).host == host:
            return {"moves": []}
        moves, shared = self.context.require_managers().moves, [FABRIC, cluster_claim(cluster)]
        if busy := self.context.operations.conflicting_operation(shared, [node_claim(self.node)]):
            raise _not_now(self.node, f"{busy.id} is under way")
        with self.planning(self.node):
            plan = moves.plan(self.node, host)
        if plan.predicted is None:
            raise _not_now(self.node, str(plan.unpredicted or "the cost of a move cannot be foretold"))
        if plan.predicted.downtime > self.downtime:
            raise _not_now(self.node, f"its downtime would be {format_duration(plan.predicted.downtime)}")
        task.check()
        self.permitted()
        if why := self._hindrance(cluster):  # again: it may have begun meanwhile
            raise _not_now(self.node, why)
        task.claim(Claims.of(shared, [node_claim(self.node)]))
        move = moves.apply(plan, task.progress, task.cancelled, operation=task.operation.id)
        return {"moves": [move.model_dump(mode="json")]}

    def _balanced(self, task: Task, job: Job) -> dict[str, Any] | None:
        if busy := conflicting_operation(self.context, [job.cluster]):
            raise _not_now(job.id, f"{busy.id} is under way")
        with sampling(self.context) as view, measurement():
            samples = view.measure(_POLL_INTERVAL, task.stop.wait)
            task.check()
            plan = only_of(view.plan(*samples, [job.cluster]), job)
        if not plan.moves or any(move.downtime > self.downtime for move in plan.moves):
            return None
        task.check()
        self.permitted()
        if why := self._hindrance(job.cluster):
            raise _not_now(job.id, why)
        task.claim(Claims.of([FABRIC, cluster_claim(job.cluster)], [BALANCE]))
        return carry_out(self.context, task, plan)


def _not_now(what: str, why: str) -> Refused:
    return Refused(Code.WRONG_STATE, f"{what} is not to be moved now", why, "")
