"""Health checks: jobs are polled, a node whose first process is gone becomes LOST, a dead link is made anew.

Old rows are pruned: jobs that are over, events, operations, moves.

Invariants: of clusters it only notes what happened, and only when no operation works on them; repairing them is what a
user asks for. What joins the sites holds no state, so it is started anew at once. A check that fails is logged, and
keeps no other from being made.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from wherry.base.errors import WherryError
from wherry.model.objects import ClusterState, Job, Node
from wherry.service.claims import cluster_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
"""Seconds between two checks."""
_PRUNE_EVERY = 300.0
"""Seconds between two times that what is old is forgotten; a daemon begins with it."""


class HealthMonitor(PeriodicTask):
    """Checks once a second, and prunes now and then."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("monitor", _EVERY)
        self._context = context
        self._pruned = -_PRUNE_EVERY
        self._checks: dict[str, Future[bool]] = {}
        """By cluster, while it is checked."""
        self._pool = ThreadPoolExecutor(thread_name_prefix="monitor")

    def run_once(self) -> None:
        self.check()
        if time.monotonic() - self._pruned >= _PRUNE_EVERY:
            self._pruned = time.monotonic()
            self.prune()

    def check(self) -> None:
        """Checks every cluster that is up, every job that runs, and the fabric."""
        managers = self._context.managers
        if managers is None:
            return
        jobs = [job for job in self._context.store.jobs() if job.state.under_way]
        self._check_clusters(managers, jobs)
        for job in jobs:
            with self._logged(f"job {job.id}"):
                managers.jobs.poll(job.id)
        with self._logged("the fabric"):  # last, as it may take long
            for repair in managers.fabric.repair():
                kind = "fabric.repair-failed" if repair.failed else "fabric.repaired"
                self._context.store.add_event(kind, managers.fabric.spec.name, repair.text)

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Logs what a check raises: what it looked at was just removed, or an error that must not end the turn."""
        try:
            yield
        except WherryError as error:
            self._log.info("%s: %s", what, error)
        except Exception:
            self._log.exception("the check of %s failed", what)

    def _check_clusters(self, managers: Managers, jobs: list[Job]) -> None:
        """A check that takes long, as a host of the cluster is silent, is not waited for, nor begun twice."""
        for cluster in self._context.store.clusters():
            if cluster.name not in self._checks and cluster.state in (ClusterState.RUNNING, ClusterState.PARTLY):
                look = functools.partial(managers.clusters.gone, cluster.name)
                mark = functools.partial(self._mark, managers, cluster.name, jobs)
                claim = cluster_claim(cluster.name)
                self._checks[cluster.name] = self._pool.submit(self._context.operations.while_idle, claim, look, mark)
        wait(self._checks.values(), _EVERY)
        for name in [name for name, future in self._checks.items() if future.done()]:
            with self._logged(f"cluster {name}"):
                self._checks.pop(name).result()

    def prune(self) -> None:
        """Forgets old rows."""
        if self._context.managers is not None:
            self._context.managers.jobs.prune()
        self._context.store.prune()

    def _mark(self, managers: Managers, name: str, jobs: list[Job], gone: list[Node]) -> None:
        """Of a cluster that nothing works on: a node that moves has no process for a good reason."""
        for node in managers.clusters.lose(name, gone):
            for job in jobs:
                if job.cluster == name:
                    self._context.store.add_event("job.node-lost", job.id, f"its node {node.name} is lost")
                    managers.jobs.node_lost(job.id, node)
