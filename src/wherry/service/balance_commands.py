"""The commands on balancing: profile a job, make a plan, carry it out, turn automatic balancing on or off.

Invariant: making a plan changes nothing, and carrying one out decides nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.cluster.lookup import find_cluster, find_job
from wherry.job import mpi_profile
from wherry.job.inside import amid_critical_phase
from wherry.model.balance import BalancePlan, ProposedMove, Verdict
from wherry.model.mpi_profile import MpiProfile
from wherry.model.profile import Profile
from wherry.model.records import ClusterState, Gain, Job, Operation
from wherry.service.balance_sampling import sampling
from wherry.service.bulk_moves import Refusal, ignore_refusal, move_many
from wherry.service.claims import BALANCE, FABRIC, Claims, cluster_claim, node_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen
from wherry.service.swap_commands import swap_now
from wherry.service.task import Task

AUTO = "balance.auto"
"""Setting: `on` when automatic balancing is on."""
_PARALLEL = 8
"""Most requests and wishes that measure at the same time: a request holds one of the threads that serve all."""
_STARTING, _POLL_INTERVAL = 2.0, 0.1
"""Age to which a job's ranks may still be starting, and the seconds between two looks at them."""
_measuring = threading.BoundedSemaphore(_PARALLEL)


class BalanceCommands:
    """The commands of one peer on balancing."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._seen = context, peer, seen(context.store, peer)

    def profile(self, id: str, seconds: float) -> Profile:
        """Measures the job, and other jobs on its cluster, for `seconds`."""
        job = self._running_job(id)
        with sampling(self._context) as view, measurement():
            return view.profile(*view.measure(seconds), job.cluster)

    def mpi_profile(self, id: str, seconds: float) -> MpiProfile:
        """Reads the counters of the job's ranks twice, so many seconds apart; once when there is nothing to read. Ranks
        that are being started are waited for."""
        job, store, managers = self._running_job(id), self._context.store, self._context.require_managers()

        def read() -> mpi_profile.Reading:
            return mpi_profile.take(job, store.nodes(job.cluster), managers.placements, managers.ranks)

        with measurement():
            before = read()
            while len(before.pages) < job.ranks and not job.uncounted and managers.jobs.ran(job) < _STARTING:
                time.sleep(_POLL_INTERVAL)
                before = read()
            if before.pages:
                time.sleep(seconds)
            return mpi_profile.profile(job, before, read())

    def _running_job(self, id: str) -> Job:
        job = find_job(self._seen, id)
        self._peer.require(job.uid, f"job {id}")
        if not job.computes:
            why = f"it is {job.state}" if job.kind == "mpi" else "it is no MPI program"
            raise Refused(Code.WRONG_STATE, f"job {id} has no profile", why, "wherry job list")
        return job

    def plan(self, cluster: str | None, seconds: float, remaining: float | None) -> BalancePlan:
        """Measures, and plans the moves of one cluster or of all."""
        names = self._names(cluster)
        with sampling(self._context) as view, measurement():
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

        owner = find_cluster(self._seen, cluster).owner_uid if cluster is not None else None
        return start(self._context, cluster or "all", names, body, self._peer.uid, owner)

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
            self._peer.require(find_cluster(self._seen, cluster).owner_uid, f"cluster {cluster}")
            return [cluster]
        self._peer.require(0, "the balancing of all clusters")
        return clusters_up(self._context)


@contextmanager
def measurement() -> Iterator[None]:
    """One of the measurements that are made at a time. WRONG_STATE when there are as many already."""
    if not _measuring.acquire(blocking=False):
        what = f"{_PARALLEL} measurements are under way already"
        raise Refused(Code.WRONG_STATE, what, "no more are made at a time", "repeat the command in some seconds")
    try:
        yield
    finally:
        _measuring.release()


def clusters_up(context: ServiceContext) -> list[str]:
    """Names of the clusters that can be measured."""
    usable = (ClusterState.RUNNING, ClusterState.PARTLY)
    return [cluster.name for cluster in context.store.clusters() if cluster.state in usable]


def start(
    context: ServiceContext, target: str, names: Sequence[str], body: Any, uid: int, owner: int | None = None
) -> Operation:
    """Starts an operation that may move nodes of these clusters; one runs at a time."""
    shared = _shared(names)
    return context.operations.start("balance", target, body, uid=uid, owner=owner, shared=shared, exclusive=[BALANCE])


def conflicting_operation(context: ServiceContext, clusters: Sequence[str]) -> Operation | None:
    """The running operation that keeps `start` from beginning now for the clusters; None if there is none."""
    return context.operations.conflicting_operation(_shared(clusters), [BALANCE])


def _shared(names: Sequence[str]) -> list[str]:
    return [FABRIC, *(cluster_claim(name) for name in names)]


def carry_out(
    context: ServiceContext, task: Task, plan: BalancePlan, refused: Refusal = ignore_refusal
) -> dict[str, Any]:
    """Writes an event for every verdict of a plan, then makes its moves. PARTLY_DONE names the moves that failed;
    `refused` is called for moves that could not begin."""
    for verdict in plan.verdicts:
        note(context, verdict)
        task.progress(f"{verdict.cluster}: {verdict.text}")
        for move in verdict.moves:
            task.progress(f"{move.node}: {move.source} to {move.destination}: {move.reason}")
    targets = {move.node: move.destination for move in plan.moves if not move.swap}
    sources = {move.node: move.source for move in plan.moves}

    def check(name: str) -> None:
        task.claim(Claims.of(exclusive=[node_claim(name)]))
        node = context.store.node(name)
        if node is not None and (why := amid_critical_phase(context.store.jobs(node.cluster))):
            raise Refused(Code.WRONG_STATE, f"{name} stays where it is for now", why, "wherry balance")
        if node is not None and node.host != sources[name]:
            what = f"{name} is on {node.host} now, and stays there"
            raise Refused(Code.WRONG_STATE, what, "it was moved after this was planned", "wherry balance")

    partly = "the nodes are balanced in part"
    gains = {
        move.node: Gain(before=verdict.before, after=verdict.after, cost=verdict.cost, step=verdict.step)
        for verdict in plan.verdicts
        for move in verdict.moves
    }
    moved, failed = list[dict[str, Any]](), list[str]()
    try:
        moved += move_many(context.require_managers().moves, task, targets, partly, refused, check, gains)
    except Failed as error:
        failed.append(error.why)
    for of, one, other in _pairs(plan):
        try:
            task.check()
            check(one.node)
            check(other.node)
            moved += swap_now(context, task, one.node, other.node, gains[one.node], of)
        except WherryError as error:
            if isinstance(error, Refused):
                refused(one.node, one.destination)
            failed.append(f"{one.node} and {other.node}: {error}")
    if failed:
        code = Code.CANCELLED if task.cancelled() else Code.PARTLY_DONE
        raise Failed(code, partly, "; ".join(failed[:3]), "repeat the command")
    for verdict in plan.verdicts:
        if ids := tuple(move["id"] for move in moved if move["gain"] and move["cluster"] == verdict.cluster):
            context.carried_out.put((verdict, ids))
    return {"plan": plan.model_dump(mode="json"), "moves": moved}


def _pairs(plan: BalancePlan) -> list[tuple[str, ProposedMove, ProposedMove]]:
    """The swaps of a plan, each with the cluster that gains by it."""
    by_node = {move.node: move for move in plan.moves if move.swap}
    return [
        (verdict.cluster, move, by_node[move.swap])
        for verdict in plan.verdicts
        for move in verdict.moves
        if move.swap and move.node < move.swap
    ]


def note(context: ServiceContext, verdict: Verdict) -> None:
    """Writes the event of a verdict, with its numbers."""
    moves = {move.node: f"{move.source} to {move.destination}" for move in verdict.moves}
    numbers = verdict.model_dump(mode="json", exclude={"cluster", "text", "moves"})
    context.store.add_event("balance.decision", verdict.cluster, verdict.text, numbers=numbers, moves=moves)
