"""Jobs: readiness check of the nodes, launch, output, cancel, adoption after a restart.

A job lives in its holder (`wherry-launch`) and its directory, never in this process:

    STATE/jobs/ID/      root's: pid, output, exit (written by the holder), input (read by it), cancelled, lost
    STATE/jobs/ID/own/  its user's: job file, hosts file, the launcher's temporary files

Invariants: a job's row is written before its holder starts; its end is recorded once, after its leftovers on the nodes
were killed; a restarted daemon finds every job by row and directory alone.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.clock import now, since_boot
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance, native_library
from wherry.cluster.lookup import find_cluster, find_job, tell_removed
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.job import (
    ending,
    holder_files,
    holder_start,
    launcher_command,
    signals,
    uncounted,
)
from wherry.job.job_end import ENDED, JobEnds
from wherry.job.job_start import JobStart
from wherry.job.losses import Losses
from wherry.job.node_agents import NodeAgents
from wherry.job.node_counters import NodeCounters
from wherry.job.validation import JobPlan
from wherry.model.job_request import JobRequest
from wherry.model.records import Cluster, Job, JobState, Node, NodeState
from wherry.node.protocol import NodeDriver
from wherry.store.store import Store

log = logging.getLogger("wherry.jobs")


class Jobs:
    """The jobs of an instance. Safe from several threads."""

    def __init__(
        self,
        store: Store,
        fabric: Fabric,
        placements: Placements,
        instance: Instance,
        drivers: Mapping[str, NodeDriver],
        library: Callable[[str], Path] = native_library,
    ) -> None:
        self._store = store
        self._state = instance.state
        self._directory = instance.state / "jobs"
        self._counters = NodeCounters(store, placements, drivers)
        self.agents = NodeAgents(fabric, placements)
        self._start = JobStart(store, fabric, placements, self.agents, instance, self._directory, library)
        self._ends = JobEnds(store, self.agents, self._counters, self._directory)
        self._losses = Losses(self._directory)

    def directory(self, id: str) -> Path:
        """The directory that the job's holder writes to."""
        return self._directory / id

    def plan(self, request: JobRequest) -> JobPlan:
        """See `JobStart.plan`."""
        return self._start.plan(request)

    def require_usable(self, name: str) -> Cluster:
        """The cluster. Refused where nothing can run on its nodes."""
        return self._start.require_usable(name)

    def start(
        self,
        plan: JobPlan,
        check: Callable[[], None] = lambda: None,
        operation: str = "",
        starter: int | None = None,
    ) -> Job:
        """Starts a planned job, for an operation of user `starter`. Refused when the cluster has changed so that it
        cannot run it; Failed when a node does not answer.

        `check` is called several times a second; an exception that it raises aborts the start; nothing is left.
        """
        job, cluster, launch = self._start.prepare(plan, check, operation, starter)
        return self.begin(job, cluster, launch)

    def begin(self, job: Job, cluster: Cluster, plan: launcher_command.LaunchPlan) -> Job:
        """Writes the job's row, starts its holder with `plan`, and watches it. An error leaves nothing."""
        self._ends.starting.add(job.id)
        try:
            nodes = self._store.nodes(cluster.name)
            counted = self._counters.begin(node for node in nodes if node.name in job.nodes)
            self._store.put_job(job)
            self.make_directories()
            holder_start.start(self._directory / job.id, self.agents.head_netns(cluster), plan)
            write_atomically(self._directory / job.id / "counted", counted.encode())
            job = job.model_copy(update={"state": JobState.RUNNING, "started": now()})
            self._store.put_job(job)
            where = f"{job.cluster}, {job.ranks} ranks, {job.mpi}" if job.kind == "mpi" else job.nodes[0]
            text = f"{launcher_command.shortened(job.argv)} on {where}"
            self._store.add_event("job.start", job.id, text, placed=job.placed)
            if job.uncounted not in uncounted.EXPECTED:
                self._store.add_event("job.uncounted", job.id, f"its calls of MPI are not counted: {job.uncounted}")
        except BaseException:
            self._undo(job)
            raise
        finally:
            self._ends.starting.discard(job.id)
        self._ends.watch(job.id)
        return job

    def _undo(self, job: Job) -> None:
        """Ends whatever was started of the job. The caller raises the first error, so those of each step are logged;
        the monitor finds the rest by the row."""
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("its launcher", lambda: holder_files.end_holder(self._directory / job.id)),
            ("its leftovers", lambda: self._ends.clean_up(job)),
            ("its row and files", lambda: self._ends.discard(job)),
        )
        for what, step in steps:
            try:
                step()
            except Exception:
                log.exception("job %s did not start: %s cannot be removed", job.id, what)

    def poll(self, id: str) -> Job:
        """The current state of the job. If it has ended, cleans up its nodes and records the end."""
        return self._ends.poll(id)

    def watch(self, id: str) -> None:
        """Has a thread of its own wait for the job's end, and record it, unless one does. Returns at once."""
        self._ends.watch(id)

    def sweep(self) -> None:
        """Begins to kill the leftovers of ended jobs on nodes that did not answer then. Returns at once."""
        self._ends.sweep()

    def update(self, id: str, change: Callable[[Job], Job]) -> Job:
        """Changes the row of a running job. WRONG_STATE before it runs and after it."""
        with self._ends.settling(id):
            job = find_job(self._store, id)
            if job.state is not JobState.RUNNING or id in self._ends.starting:
                raise Refused(Code.WRONG_STATE, f"job {id} is {job.state}", "", f"wherry job show {id}")
            self._store.put_job(job := change(job))
            return job

    def ran(self, job: Job) -> float:
        """Seconds since the job started, whatever happened to the clock meanwhile."""
        holder = holder_files.read_holder(self._directory / job.id)
        if holder is None:  # it is being started, or removed
            return max(0.0, now() - (job.started or job.created))
        return since_boot() - holder.start / os.sysconf("SC_CLK_TCK")

    def cancel(self, id: str, taken_down: str = "", grace: float | None = None) -> Job:
        """Ends the job: with a `grace` its ranks get SIGTERM, and have so many seconds to end. Then its launcher gets
        SIGINT, and SIGKILL 5 s after that. Returns when nothing of it is left.

        A job that ends by itself before any signal keeps its exit code. `taken_down` names the remover of its cluster.
        """
        job = self.poll(id)
        if job.state in ENDED:
            return job
        if id in self._ends.starting:
            why = "its launcher is being started"
            raise Refused(Code.WRONG_STATE, f"job {id} cannot be ended yet", why, "try again in a moment")
        directory = self._directory / id
        ending.mark_cancelled(directory, taken_down)
        if grace is not None:
            signals.terminate(directory, grace, partial(self.send_signal, id))
        holder_files.end_holder(directory, signal.SIGINT)
        return self.poll(id)

    def send_signal(self, id: str, number: signal.Signals, seconds: float) -> tuple[int, dict[str, str]]:
        """Sends a signal to the job's ranks. How many got it, and the nodes that did not answer in time, with the
        reason. Refused when the job does not run."""
        job = find_job(self._store, id)
        if job.state is not JobState.RUNNING:
            raise Refused(Code.WRONG_STATE, f"job {id} does not run", f"it is {job.state}", f"wherry job show {id}")
        cluster = find_cluster(self._store, job.cluster)
        nodes = [one for one in self._store.nodes(job.cluster) if one.name in job.nodes or job.kind == "mpi"]
        alive = [one for one in nodes if one.state != NodeState.LOST]
        return signals.send(job, number, self.agents.endpoints(cluster, alive), seconds)

    def node_lost(self, id: str, node: Node) -> bool:
        """Ends the job if it has ranks on a lost node. True when the loss was new."""
        return self._losses.node_lost(find_job(self._store, id), node)

    def output(self, id: str, offset: int = 0, limit: int = 1 << 20) -> tuple[list[holder_files.Chunk], int]:
        """Output from `offset` on (0, or as returned by the last call), about `limit` bytes at most."""
        find_job(self._store, id)
        return holder_files.read_output(self._directory / id, offset, limit)

    def input(self, id: str, offset: int, data: bytes, end: bool) -> tuple[int, bool]:
        """Writes `data` to rank 0's standard input, where it begins at `offset`. See `holder_files.write_input`."""
        job = find_job(self._store, id)
        taken = holder_files.write_input(self._directory / id, offset, data, end) if job.state not in ENDED else None
        if taken is None:
            why = "it was started without input" if job.state not in ENDED else f"it is {job.state}"
            run = f"exec {job.nodes[0]}" if job.kind == "exec" else f"run {job.cluster} -n {job.ranks}"
            remedy = f"wherry {run} -- {job.argv[0]} < FILE"
            raise Refused(Code.WRONG_STATE, f"job {id} reads no input", why, remedy)
        return taken

    def adopt(self) -> None:
        """Takes over the jobs of an earlier daemon: watches the running ones, records the end of the others, and ends
        jobs that have lost a node."""
        for job in self._store.jobs():
            if job.state not in ENDED:
                try:
                    self._adopt(job)
                except Exception:  # the monitor watches it
                    log.exception("job %s has no watching thread", job.id)

    def _adopt(self, job: Job) -> None:
        """A job whose holder has written its process id was started, even if it has ended since."""
        if job.state is JobState.STARTING and holder_files.read_holder(self._directory / job.id):
            self._store.put_job(job.model_copy(update={"state": JobState.RUNNING, "started": now()}))
        self._ends.watch(job.id)
        self._losses.end_if_lost(job.id)

    def remove(self, cluster: str, reason: str) -> None:
        """Cancels the cluster's jobs and removes them with their output. Later requests for them fail with the
        reason."""
        tell_removed(self._store, cluster, reason)
        for job in self._store.jobs(cluster):
            self.cancel(job.id, reason)
            self._ends.discard(job)

    def prune(self, keep: int = 50) -> None:
        """Removes ended jobs except the newest `keep` of each kind and user. A removal that fails leaves out only that
        job."""
        ended: dict[tuple[str, int], list[Job]] = {}
        for job in self._store.jobs():
            if job.state in ENDED:
                ended.setdefault((job.kind, job.uid), []).append(job)
        for over in ended.values():
            for job in over[: max(0, len(over) - keep)]:
                try:
                    if self._ends.is_swept(job.id):
                        self._ends.discard(job)
                except Exception:
                    log.exception("job %s cannot be removed", job.id)

    def forget(self, id: str) -> Job:
        """Removes a job that has ended, with its output. WRONG_STATE while it runs."""
        job = self.poll(id)
        if job.state not in ENDED:
            raise Refused(Code.WRONG_STATE, f"job {id} is {job.state}", "", f"wherry job cancel {id}")
        self._ends.discard(job)
        return job

    def make_directories(self) -> None:
        """Mode 0711: the owner of a job must reach its `own` directory; the database itself is 0600."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for directory in (self._state, self._directory):
            directory.chmod(0o711)
