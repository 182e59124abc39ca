"""The end of jobs: noticed by a thread that waits for the holder, recorded once, after the job's leftovers on its nodes
were killed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path

from wherry.base.clock import now
from wherry.base.errors import Failed, Refused
from wherry.base.wait import readable
from wherry.cluster.lookup import find_job
from wherry.job import cleanup, ending, holder_files
from wherry.job.late_sweeps import LateSweeps
from wherry.job.node_agents import NodeAgents
from wherry.job.node_counters import NodeCounters
from wherry.model.owner import Owner
from wherry.model.records import Job, JobState, NodeState
from wherry.node.container.mounts import remove_tree
from wherry.store.store import Store

log = logging.getLogger("wherry.jobs")
_CLEANUP_SECONDS = 60.0
ENDED = (JobState.ENDED, JobState.CANCELLED, JobState.LOST, JobState.FAILED)


class JobEnds:
    """The ends of the jobs below `directory`. Safe from several threads."""

    def __init__(self, store: Store, agents: NodeAgents, counters: NodeCounters, directory: Path) -> None:
        self._store, self._agents, self._counters = store, agents, counters
        self._directory = directory
        self._settling: dict[str, threading.Lock] = {}
        self._late = LateSweeps(directory, self._sweep, self._swept)
        self._watched = set[str]()
        self._watching = threading.Lock()
        self.starting = set[str]()
        """Jobs that have a row, and perhaps no holder yet."""

    def settling(self, id: str) -> threading.Lock:
        """Held while the job's row changes by its end, or is changed by its operations."""
        return self._settling.setdefault(id, threading.Lock())

    def poll(self, id: str) -> Job:
        """The current state of the job. If it has ended, cleans up its nodes and records the end."""
        find_job(self._store, id)
        with self.settling(id):
            job = find_job(self._store, id)
            if job.state in ENDED or id in self.starting:
                return job
            directory = self._directory / id
            ended, holder = holder_files.read_exit(directory), holder_files.read_holder(directory)
            if ended is None and holder and holder.alive():
                return job
            # The holder may have ended between the two reads.
            return self._record_end(job, ended or holder_files.read_exit(directory))

    def watch(self, id: str) -> None:
        """Has a thread of its own wait for the job's end, and record it, unless one does. Returns at once."""
        with self._watching:
            if id in self._watched:
                return
            self._watched.add(id)
        try:
            threading.Thread(target=self._await_end, args=(id,), name=f"watch-{id}", daemon=True).start()
        except RuntimeError:  # the kernel refuses a thread: the monitor calls again
            log.exception("job %s has no watching thread", id)
            with self._watching:
                self._watched.discard(id)

    def _await_end(self, id: str) -> None:
        holder = holder_files.read_holder(self._directory / id)
        fd = holder.open() if holder else None
        if fd is not None:
            readable(fd, None)
            os.close(fd)
        try:
            self.poll(id)
        except Refused:
            pass  # removed meanwhile
        finally:  # the monitor has it watched again, whatever failed
            with self._watching:
                self._watched.discard(id)

    def _record_end(self, job: Job, ended: holder_files.Exit | None) -> Job:
        directory, ends = self._directory / job.id, self._counters.ends(job)
        problems = self.clean_up(job, [end.node.name for end in ends if not end.alive])
        try:
            if problems:
                self._late.note(job.id, problems)
        except OSError:  # the disk is full, perhaps: the end is recorded all the same
            log.exception("job %s: the nodes that keep something of it cannot be noted", job.id)
        change = ending.change_of(job, directory, ended, ends, problems)
        job = job.model_copy(update={**change, "ended": ended.ended if ended else now()})
        try:
            remove_tree(directory / "own")  # first: it holds the nodes' keys, and nobody looks at an ended job again
        except Failed:  # it is tried again when the job is removed
            log.exception("job %s: its files cannot be removed", job.id)
        self._store.put_job(job)
        text = str(job.state) if job.exit_code is None else f"{job.state}, exit code {job.exit_code}"
        data = {"lost": ended.lost if ended else 0}
        if job.failure:
            text, data = f"{text}: {job.reason}", {**data, **job.failure.model_dump(exclude_none=True)}
        self._store.add_event("job.end", job.id, text, **data)
        return job

    def sweep(self) -> None:
        """Begins to kill the leftovers of ended jobs on nodes that did not answer then. Returns at once."""
        self._late.once()

    def _sweep(self, id: str, nodes: Collection[str]) -> dict[str, str]:
        job = find_job(self._store, id)
        others = [node.name for node in self._store.nodes(job.cluster) if node.name not in nodes]
        return self.clean_up(job, others)

    def _swept(self, id: str) -> None:
        self._store.add_event("job.swept", id, "its leftover processes are gone")

    def clean_up(self, job: Job, left_out: Collection[str] = ()) -> dict[str, str]:
        """Kills the job's leftovers on its nodes, except those left out, and beside its launcher; why it could not, by
        node."""
        owner = Owner(uid=job.uid, gid=job.gid, home="/", cwd="/")
        cleanup.end_leftovers_at_head(self._directory / job.id / "own" / "job", owner)
        cluster = self._store.cluster(job.cluster)
        if cluster is None:
            return {}
        rows = self._store.nodes(job.cluster)
        nodes = tuple(node for node in rows if node.state != NodeState.LOST and node.name not in left_out)
        if job.kind == "exec":
            nodes = tuple(node for node in nodes if node.name in job.nodes)
        return cleanup.end_leftovers_on_nodes(job.id, owner, self._agents.endpoints(cluster, nodes), _CLEANUP_SECONDS)

    def is_swept(self, id: str) -> bool:
        """Whether all nodes of an ended job that can be reached have nothing left of it."""
        return not self._late.awaited(id)

    def discard(self, job: Job) -> None:
        """Removes the job's files and its row."""
        remove_tree(self._directory / job.id)  # first: a directory without a row would be found by nobody
        self._store.drop_job(job.id)
        self._settling.pop(job.id, None)
