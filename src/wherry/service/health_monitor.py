"""Watches what runs: jobs are polled, a node whose first process is gone becomes LOST, a dead link is made anew.

What is old is forgotten: jobs that are over, events, operations, moves.

Invariant: of clusters it only notes what happened, and only when no operation works on them; repairing them is what a
user asks for. What joins the sites holds no state, so it is started anew at once.
"""

from __future__ import annotations

import functools
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from wherry.model.objects import ClusterState, Job, Node
from wherry.service.claims import cluster_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
"""Seconds between two looks."""
_TIDY_EVERY = 300.0
"""Seconds between two times that what is old is forgotten; a daemon begins with it."""


class HealthMonitor(PeriodicTask):
    """Looks once a second, and tidies up now and then."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("monitor", _EVERY)
        self._context = context
        self._tidied = -_TIDY_EVERY
        self._looks: dict[str, Future[bool]] = {}
        """By cluster, while it is looked at."""
        self._lookers = ThreadPoolExecutor(thread_name_prefix="monitor")

    def run_once(self) -> None:
        self.look()
        if time.monotonic() - self._tidied >= _TIDY_EVERY:
            self._tidied = time.monotonic()
            self.tidy()

    def look(self) -> None:
        """One look at the fabric, every job that runs and every cluster that is up."""
        domain = self._context.managers
        if domain is None:
            return
        jobs = [job for job in self._context.store.jobs() if job.state.under_way]
        self._look_at_clusters(domain, jobs)
        for job in jobs:
            domain.jobs.poll(job.id)
        for tended in domain.fabric.repair():  # last, as it may take long
            kind = "fabric.repair-failed" if tended.failed else "fabric.repaired"
            self._context.store.add_event(kind, domain.fabric.spec.name, tended.text)

    def _look_at_clusters(self, domain: Managers, jobs: list[Job]) -> None:
        """One that takes long, as a host of it is silent, is not waited for, and not looked at once more meanwhile."""
        for cluster in self._context.store.clusters():
            if cluster.name not in self._looks and cluster.state in (ClusterState.RUNNING, ClusterState.PARTLY):
                look = functools.partial(domain.clusters.gone, cluster.name)
                mark = functools.partial(self._mark, domain, cluster.name, jobs)
                claim = cluster_claim(cluster.name)
                self._looks[cluster.name] = self._lookers.submit(self._context.operations.while_idle, claim, look, mark)
        done, _ = wait(self._looks.values(), _EVERY)
        self._looks = {name: future for name, future in self._looks.items() if future not in done}
        for future in done:
            future.result()

    def tidy(self) -> None:
        """Forgets what is old."""
        if self._context.managers is not None:
            self._context.managers.jobs.prune()
        self._context.store.prune()

    def _mark(self, domain: Managers, name: str, jobs: list[Job], gone: list[Node]) -> None:
        """Of a cluster that nothing works on: a node that moves has no process for a good reason."""
        for node in domain.clusters.lose(name, gone):
            for job in jobs:
                if job.cluster == name:
                    self._context.store.add_event("job.node-lost", job.id, f"its node {node.name} is lost")
                    domain.jobs.node_lost(job.id, node)
