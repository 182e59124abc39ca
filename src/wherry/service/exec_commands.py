"""The commands that run programs on single nodes.

Invariant: as for runs, a cluster cannot be removed or changed while a program is being started on it; its node may be
moving.
"""

from __future__ import annotations

from typing import Any

from wherry.cluster.leases import require_lease
from wherry.cluster.lookup import find_job, find_node
from wherry.job.exec import Execs
from wherry.model.job_request import ExecRequest
from wherry.model.records import Job, Operation
from wherry.service.claims import FABRIC, cluster_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen
from wherry.service.task import Task


class ExecCommands:
    """The commands of one peer on programs on nodes."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context = context
        self._peer = peer
        self._seen = seen(context.store, peer)

    def start(self, request: ExecRequest, stream: int | None = None) -> Operation:
        """Starts a program on a node; the operation ends when it was started, with its job. `stream` is a pipe for its
        output, which is kept nowhere then; the caller closes it when the operation has ended."""
        cluster = find_node(self._seen, request.node).cluster
        require_lease(self._context.store, cluster)
        managers = self._context.require_managers()
        managers.jobs.require_usable(cluster)
        execs = Execs(self._context.store, managers.placements, self._context.instance, managers.jobs)
        planned = execs.plan(request)

        def body(task: Task) -> dict[str, Any]:
            job = execs.start(planned, task.check, task.operation.id, stream)
            if task.cancelled():
                managers.jobs.cancel(job.id)
                task.check()
            return {"job": job.model_dump(mode="json")}

        shared = [FABRIC, cluster_claim(cluster)]
        uid, owner = self._peer.uid, request.owner.uid
        return self._context.operations.start("exec", request.node, body, uid=uid, owner=owner, shared=shared)

    def forget(self, id: str) -> Job:
        """Removes a job that has ended, with its output. WRONG_STATE while it runs."""
        self._peer.require(find_job(self._seen, id).uid, f"job {id}")
        return self._context.require_managers().jobs.forget(id)
