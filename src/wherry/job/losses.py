"""Ends the jobs that have ranks on a node that was lost.

The file `lost` of a job's directory is written before anything is killed: the next daemon continues with it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.wait import readable
from wherry.job import cleanup, ending, holder_files
from wherry.model.owner import Owner
from wherry.model.records import Job, Node

log = logging.getLogger("wherry.jobs")
_LOST_SECONDS = 3.0  # Open MPI notices at once; hydra waits for a connection that is never closed


class Losses:
    """Of the jobs below `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def node_lost(self, job: Job, node: Node) -> bool:
        """Ends the job if it has ranks on a lost node: kills the launcher's agent for it, which may have ended or not
        begun, and after _LOST_SECONDS the job, in case the launcher did not react. True when the loss was new.
        Idempotent."""
        directory = self._directory / job.id
        owner, file = Owner(uid=job.uid, gid=job.gid, home="/", cwd="/"), directory / "own" / "job"
        has_ranks = node.name in job.nodes if job.nodes else cleanup.has_agents(file, owner, node.address)
        found = has_ranks and not (directory / ending.LOST).exists()
        if has_ranks:
            try:
                write_atomically(directory / ending.LOST, node.name.encode())
            except OSError:  # the disk is full, perhaps: the job ends all the same, without this reason
                log.exception("job %s: the loss of %s cannot be noted", job.id, node.name)
            cleanup.end_agents(file, owner, node.address)
        self.end_if_lost(job.id, has_ranks)
        return found

    def end_if_lost(self, id: str, known: bool = False) -> None:
        """Ends the job soon if it is known, or noted, that it has lost a node."""
        if known or (self._directory / id / ending.LOST).exists():
            threading.Thread(target=self._end, args=(id,), name=f"lost-{id}", daemon=True).start()

    def _end(self, id: str) -> None:
        holder = holder_files.read_holder(self._directory / id)
        fd = holder.open() if holder else None
        if fd is None:
            return
        try:
            if not readable(fd, _LOST_SECONDS):
                holder_files.end_holder(self._directory / id, signal.SIGINT)
        finally:
            os.close(fd)
