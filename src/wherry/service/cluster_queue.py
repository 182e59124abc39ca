"""The queue of clusters that wait for room: its commands, and the task that starts them.

Invariants: a cluster that waits is a row and an operation that waits, which holds no claim; it starts, and ends, once.
An operation that waited ends when the cluster is up, has failed for a reason other than room, or was cancelled: a
daemon that ends before has the next one continue.
"""

from __future__ import annotations

import time
from typing import Any

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.moments import moment
from wherry.cluster.leases import planned_lease
from wherry.cluster.lookup import known_hosts
from wherry.cluster.plan import need_of
from wherry.model.accounts import Usage, is_account
from wherry.model.owner import Owner
from wherry.model.queue import QueueEntry, WaitingCluster
from wherry.model.records import Operation, OperationState
from wherry.model.spec.cluster import ClusterSpec
from wherry.schedule.queue import Verdict, can_ever_start
from wherry.schedule.quota import excess
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.periodic import PeriodicTask
from wherry.service.queue_order import operation_of, verdicts, waiting, wanted_of
from wherry.service.task import Again, Body, Task

_EVERY = 0.5
_AGAIN = 5.0
"""Seconds until a start that was refused is tried again; others may start meanwhile."""
_SOON = 90.0
"""Seconds within which the time of room is not given, as it may be reckoned from the present."""
_LATER = (Code.NO_CAPACITY, Code.QUOTA_EXCEEDED, Code.WRONG_STATE)
_DAEMON = PeerCredentials(0, 0, frozenset())


class QueueCommands:
    """The commands of one peer on the queue."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer = context, peer

    def enter(self, spec: ClusterSpec, owner: Owner, priority: int = 0) -> Operation:
        """Makes, changes or repairs a cluster once there is room for it. Refused is a cluster that no wait helps."""
        if priority > 0:
            self._peer.require(0, "a priority above 0")
        self._require_possible(spec, owner)

        def enters(operation: Operation) -> None:
            one = WaitingCluster(
                operation=operation.id, spec=spec, owner=owner, priority=priority, entered=operation.created
            )
            if not self._context.store.queue.add(one):
                why, remedy = "names of clusters are unique on a machine", "wherry queue list"
                raise Refused(Code.NAME_TAKEN, f"a cluster named {spec.name} waits already", why, remedy)

        return self._context.operations.enter("up", spec.name, enters, uid=self._peer.uid, owner=owner.uid)

    def _require_possible(self, spec: ClusterSpec, owner: Owner) -> None:
        store, needs = self._context.store, [need_of(spec, index) for index in range(spec.size)]
        planned_lease(store, spec, owner.uid, store.cluster(spec.name))
        found = store.accounts.of_uid(owner.uid) if is_account(owner.uid) else None
        if found and (why := excess(found.quota, Usage(), needs)):
            what = f"{spec.name} is more than {found.name} may ever have"
            raise Refused(Code.QUOTA_EXCEEDED, what, why, "an admin changes it: wherry user quota NAME")
        try:
            Commands(self._context, self._peer).plan(spec, owner)
        except Refused as error:
            if error.code not in (Code.NO_CAPACITY, Code.QUOTA_EXCEEDED):
                raise
            managers = self._context.planning_managers()
            empty = wanted_of(store, spec, owner, spec.name)
            if why := can_ever_start(empty, known_hosts(store, managers.fabric, ())):
                what = f"{spec.name} does not fit, however long it waits"
                raise Refused(Code.NO_CAPACITY, what, why, error.next) from None

    def entries(self) -> list[QueueEntry]:
        """The clusters that wait, the first one first, as far as the peer sees them."""
        queue = {one.operation: one for one in waiting(self._context)}
        found = []
        for position, verdict in enumerate(verdicts(self._context, list(queue.values()), {}), 1):
            one, operation = queue[verdict.key], self._context.operations.get(verdict.key)
            if self._peer.sees(operation.uid, operation.owner):
                why = operation.progress.partition(": ")[2] if verdict.starts else verdict.why
                found.append(
                    QueueEntry(
                        cluster=one.spec.name, operation=one.operation, by=operation.by, nodes=one.spec.size,
                        priority=one.priority, entered=one.entered, position=position,
                        why=why or "it is about to start", starts=verdict.at,
                    )
                )  # fmt: skip
        return found


class ClusterQueue(PeriodicTask):
    """Starts clusters that wait, one after another, as soon as there is room."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("cluster-queue", _EVERY)
        self._context = context
        self._refused: dict[str, tuple[float, str]] = {}
        """Until when a cluster is not tried again, and why, by its operation."""

    def run_once(self) -> None:
        """Starts at most one; the room that it takes is known when its rows are written."""
        known = [(one, operation_of(self._context, one)) for one in self._context.store.queue.all()]
        found = [one for one, operation in known if operation]
        operations = {one.operation: operation for one, operation in known if operation}
        for id, operation in operations.items():
            if not operation.state.under_way:
                self._context.store.queue.drop(id)
                self._refused.pop(id, None)
        if any(self._starts(one, operations[one.operation]) for one in found):
            return
        queue = {one.operation: one for one in found if operations[one.operation].state is OperationState.WAITING}
        if not queue:
            return
        obstacles = {id: why for id, (until, why) in self._refused.items() if time.monotonic() < until}
        decided = verdicts(self._context, list(queue.values()), obstacles)
        for position, verdict in enumerate(decided, 1):
            if not verdict.starts:
                self._context.operations.tell(verdict.key, _told(verdict, position, len(decided)))
        for verdict in decided:
            if verdict.starts and self._begin(queue[verdict.key]):
                return

    def _starts(self, one: WaitingCluster, operation: Operation) -> bool:
        """Whether a cluster is being started whose rows are not all written."""
        rows = self._context.store.nodes(one.spec.name)
        return operation.state is OperationState.RUNNING and len(rows) < one.spec.size

    def _begin(self, one: WaitingCluster) -> bool:
        body, claims = Commands(self._context, _DAEMON).up_body(one.spec, one.owner)
        try:
            return self._context.operations.begin(one.operation, self._body(one, body), **claims)
        except WherryError as error:
            self._refused[one.operation] = time.monotonic() + _AGAIN, str(error)
            return False

    def _body(self, one: WaitingCluster, body: Body) -> Body:
        def started(task: Task) -> dict[str, Any] | None:
            try:
                task.progress(f"there is room, after {now() - one.entered:.0f} s")
                return body(task)
            except Refused as error:  # the room was taken meanwhile, or the cluster is being removed
                if error.code not in _LATER:
                    raise
                self._refused[one.operation] = time.monotonic() + _AGAIN, str(error)
                raise Again(str(error)) from None
            except Failed as error:
                if error.code is Code.CANCELLED and self._context.operations.closing:
                    raise Again("the daemon is being stopped; the next one continues") from None
                raise

        return started


def resume(context: ServiceContext) -> None:
    """Has the clusters of an earlier daemon wait on, also clusters that it was making. To be called before its
    operations are ended."""
    for one in context.store.queue.all():
        operation = context.store.operation(one.operation)
        if operation is None or not operation.state.under_way:
            context.store.queue.drop(one.operation)
        else:
            context.operations.resume(operation)


def _told(verdict: Verdict, position: int, number: int) -> str:
    at = ""
    if verdict.at is not None:
        at = "; room " + (f"at {moment(verdict.at)}" if verdict.at > now() + _SOON else "soon")
    return f"position {position} of {number}: {verdict.why}{at}"
