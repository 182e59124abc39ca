"""Health checks: running jobs are watched, a node whose first process has ended becomes LOST and its jobs are ended, a
dead link is restarted, what jobs have left on silent nodes is killed when these answer.

Old rows are pruned: ended jobs, events, operations, moves.

Invariants: a check of a cluster only records what happened, and only while no operation changes it or moves its nodes;
repair is the user's command (`up`). Links hold no state, so they are restarted at once. A check that fails or blocks
delays no other.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from wherry.base.errors import WherryError
from wherry.model.records import ClusterState
from wherry.node.console_tail import cut
from wherry.service.claims import Claims, cluster_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
"""Seconds between two checks."""
_PRUNE_EVERY = 300.0
"""Seconds between two prunings; the first check of a daemon prunes too."""
_POOL = 1024
"""Most threads that check clusters: checks that wait for silent hosts must not fill the pool. A cluster has one check
at a time, and a thread is made only when no other is idle."""


class HealthMonitor(PeriodicTask):
    """Checks once a second, and prunes every few minutes."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("monitor", _EVERY)
        self._context = context
        self._pruned = -_PRUNE_EVERY
        self._checks: dict[str, Future[bool]] = {}
        """Checks under way, by cluster."""
        self._serving: dict[str, Future[None]] = {}
        """Looks at servers of users' directories, by cluster: one may have to be started, which takes seconds."""
        self._told: set[tuple[str, str]] = set()
        """The running jobs, each with a lost node of its cluster, that were ended or have no ranks there."""
        self._pool = ThreadPoolExecutor(_POOL, thread_name_prefix="monitor")

    def run_once(self) -> None:
        self.check()
        if time.monotonic() - self._pruned >= _PRUNE_EVERY:
            self._pruned = time.monotonic()
            self.prune()

    def check(self) -> None:
        """Checks every cluster that is up and the fabric, and has every job that runs watched."""
        managers = self._context.managers
        if managers is None:
            return
        with self._logged("the clusters"):  # the kernel may refuse a thread
            self._check_clusters(managers)
        for job in self._context.store.jobs_under_way():
            with self._logged(f"job {job.id}"):
                managers.jobs.watch(job.id)
        with self._logged("leftovers of jobs"):
            managers.jobs.sweep()
        with self._logged("jobs on lost nodes"):
            self._end_jobs_on_lost_nodes(managers)
        with self._logged("the servers of files"):
            self._serve_clusters(managers)
        with self._logged("consoles"):
            for cluster in self._context.store.clusters():
                if log := managers.clusters.server_log(cluster):
                    cut(log)
            for node in self._context.store.nodes():
                for console in managers.drivers[node.kind].console_files(node.name) or ():
                    cut(console)
        with self._logged("the fabric"):  # last: restarting a link takes time
            for repair in managers.fabric.repair():
                kind = "fabric.repair-failed" if repair.failed else "fabric.repaired"
                self._context.store.add_event(kind, managers.fabric.spec.name, repair.text)

    def prune(self) -> None:
        """Deletes old rows."""
        managers = self._context.managers
        if managers is not None:
            with self._logged("old jobs"):
                managers.jobs.prune()
        self._context.store.prune()
        self._context.store.accounts.prune_audit()

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Logs an exception of a check, so that the other checks are made."""
        try:
            yield
        except WherryError as error:  # its object was removed
            self._log.info("%s: %s", what, error)
        except Exception:
            self._log.exception("the check of %s failed", what)

    def _check_clusters(self, managers: Managers) -> None:
        """Starts a check of each cluster that has none under way, and waits a moment for the results."""
        for cluster in self._context.store.clusters():
            if cluster.name not in self._checks and cluster.state in (ClusterState.RUNNING, ClusterState.PARTLY):
                find_gone = functools.partial(managers.clusters.gone, cluster.name)
                # No operation changes the cluster or one of its nodes: a node that is being moved has no process at its
                # host. Jobs may be started meanwhile: their start is to learn of a loss.
                mark_lost = functools.partial(managers.clusters.lose, cluster.name)
                nodes = [node_claim(node.name) for node in self._context.store.nodes(cluster.name)]
                claims = Claims.of(shared=[cluster_claim(cluster.name)], exclusive=nodes)
                check = functools.partial(self._context.operations.if_unclaimed, claims, find_gone, mark_lost)
                self._checks[cluster.name] = self._pool.submit(check)
        wait(self._checks.values(), _EVERY)
        for name in [name for name, future in self._checks.items() if future.done()]:
            with self._logged(f"cluster {name}"):
                self._checks.pop(name).result()

    def _serve_clusters(self, managers: Managers) -> None:
        """Has each cluster whose user's directories are served looked at, and logs the results of the last looks."""
        for name in [name for name, future in self._serving.items() if future.done()]:
            with self._logged(f"the files of {name}"):
                self._serving.pop(name).result()
        for cluster in self._context.store.clusters():
            up = cluster.state in (ClusterState.RUNNING, ClusterState.PARTLY)
            if up and cluster.served and cluster.name not in self._serving:
                self._serving[cluster.name] = self._pool.submit(managers.clusters.serve, cluster)

    def _end_jobs_on_lost_nodes(self, managers: Managers) -> None:
        """Ends the jobs with ranks on lost nodes, by the rows, however long ago and by whichever daemon the nodes were
        marked as lost: an earlier daemon may have been killed before it ended the jobs."""
        pairs = self._context.jobs_with_lost_nodes()
        self._told &= {(job.id, node.name) for job, node in pairs}
        for job, node in pairs:
            if (job.id, node.name) not in self._told:
                with self._logged(f"job {job.id}"):
                    self._context.end_job_on_lost_node(managers, job, node)
                    self._told.add((job.id, node.name))
