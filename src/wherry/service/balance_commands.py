"""The commands on balancing: profile a job, make a plan, carry it out, turn automatic balancing on or off.

Invariant: making a plan changes nothing, and carrying one out decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import find_cluster, find_job
from wherry.model.balance import BalancePlan, Verdict
from wherry.model.profile import Profile
from wherry.model.records import ClusterState, Operation
from wherry.service.balance_sampling import sampling
from wherry.service.bulk_moves import Refusal, ignore_refusal, move_many
from wherry.service.claims import BALANCE, FABRIC, Claims, cluster_claim, node_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.operations import Task

AUTO = "balance.auto"
"""Setting: `on` when automatic balancing is on."""
_AT_ONCE = 8
"""Most requests that measure at the same time: each holds one of the threads that serve all requests."""
_measuring = threading.BoundedSemaphore(_AT_ONCE)


class BalanceCommands:
    """The commands of one peer on balancing."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer = context, peer

    def profile(self, id: str, seconds: float) -> Profile:
        """Measures the job, and other jobs on its cluster, for `seconds`."""
        job = find_job(self._context.store, id)
        self._peer.require(job.uid, f"job {id}")
        if not job.state.under_way:
            raise Refused(Code.WRONG_STATE, f"job {id} does not run", f"it is {job.state}", "wherry job list")
        with sampling(self._context) as view, _measurement():
            return view.profile(*view.measure(seconds), job.cluster)

    def plan(self, cluster: str | None, seconds: float, remaining: float | None) -> BalancePlan:
        """Measures, and plans the moves of one cluster or of all."""
        names = self._names(cluster)
        with sampling(self._context) as view, _measurement():
            return view.plan(*view.measure(seconds), names, remaining)

    def apply(self, cluster: str | None, seconds: float, remaining: float | None) -> Operation:
        """Measures, plans and moves."""
        names = self._names(cluster)
        view = sampling(self._context)

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"measuring {', '.join(names)} for {seconds:g} s")
            with view:
                samples = view.measure(seconds, task.stop.wait)
                task.check()
                plan = view.plan(*samples, names, remaining)
            return carry_out(self._context, task, plan)

        return start(self._context, cluster or "all", names, body, self._peer.uid)

    def auto(self) -> bool:
        """True when automatic balancing is on."""
        return self._context.store.setting(AUTO) == "on"

    def set_auto(self, on: bool) -> None:
        """Turns automatic balancing on or off."""
        self._peer.require(0, "the balancing of all clusters")
        if on != self.auto():
            self._context.store.put_setting(AUTO, "on" if on else "off")
            text = "nodes are moved when it pays" if on else "nodes are moved by commands only"
            self._context.store.add_event("balance.auto", self._context.instance.name, text)

    def _names(self, cluster: str | None) -> list[str]:
        if cluster is not None:
            self._peer.require(find_cluster(self._context.store, cluster).owner_uid, f"cluster {cluster}")
            return [cluster]
        self._peer.require(0, "the balancing of all clusters")
        return clusters_up(self._context)


@contextmanager
def _measurement() -> Iterator[None]:
    if not _measuring.acquire(blocking=False):
        what = f"{_AT_ONCE} measurements are under way already"
        raise Refused(Code.WRONG_STATE, what, "no more are made at a time", "repeat the command in some seconds")
    try:
        yield
    finally:
        _measuring.release()


def clusters_up(context: ServiceContext) -> list[str]:
    """Names of the clusters that can be measured."""
    usable = (ClusterState.RUNNING, ClusterState.PARTLY)
    return [cluster.name for cluster in context.store.clusters() if cluster.state in usable]


def start(context: ServiceContext, target: str, names: Sequence[str], body: Any, uid: int) -> Operation:
    """Starts an operation that may move nodes of these clusters; one runs at a time."""
    return context.operations.start("balance", target, body, uid=uid, shared=_shared(names), exclusive=[BALANCE])


def busy_with(context: ServiceContext, cluster: str) -> Operation | None:
    """The running operation that keeps `start` from beginning now for the cluster; None if there is none."""
    return context.operations.busy_with(_shared([cluster]), [BALANCE])


def _shared(names: Sequence[str]) -> list[str]:
    return [FABRIC, *(cluster_claim(name) for name in names)]


def carry_out(
    context: ServiceContext, task: Task, plan: BalancePlan, refused: Refusal = ignore_refusal
) -> dict[str, Any]:
    """Writes an event for every verdict of a plan, then makes its moves. PARTLY_DONE names the moves that failed;
    `refused` is called for those that could not begin."""
    for verdict in plan.verdicts:
        note(context, verdict)
        task.progress(f"{verdict.cluster}: {verdict.text}")
        for move in verdict.moves:
            task.progress(f"{move.node}: {move.source} to {move.destination}: {move.reason}")
    targets = {move.node: move.destination for move in plan.moves}
    sources = {move.node: move.source for move in plan.moves}

    def check(name: str) -> None:
        task.claim(Claims.of(exclusive=[node_claim(name)]))
        node = context.store.node(name)
        if node is not None and node.host != sources[name]:
            what = f"{name} is on {node.host} now, and stays there"
            raise Refused(Code.WRONG_STATE, what, "it was moved after this was planned", "wherry balance")

    partly = "the nodes are balanced in part"
    moved = move_many(context.require_managers().moves, task, targets, partly, refused, check)
    return {"plan": plan.model_dump(mode="json"), "moves": moved}


def note(context: ServiceContext, verdict: Verdict) -> None:
    """Writes the event of a verdict, with its numbers."""
    moves = {move.node: f"{move.source} to {move.destination}" for move in verdict.moves}
    numbers = verdict.model_dump(mode="json", exclude={"cluster", "text", "moves"})
    context.store.add_event("balance.decision", verdict.cluster, verdict.text, numbers=numbers, moves=moves)
