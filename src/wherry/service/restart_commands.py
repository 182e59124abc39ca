"""The restart of nodes where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import find_cluster, find_node
from wherry.model.records import ClusterState, Job, Operation
from wherry.service.claims import FABRIC, cluster_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen
from wherry.service.task import Task


class RestartCommands:
    """The commands of one peer on restarts."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer = context, peer
        self._seen = seen(context.store, peer)

    def restart(self, nodes: Sequence[str], end_jobs: bool = False) -> Operation:
        """Ends nodes of one cluster, and starts each anew at its host: its programs and its own files are gone. Refused
        while jobs run there, unless `end_jobs`: then they are ended."""
        names = list(dict.fromkeys(nodes))
        clusters = {find_node(self._seen, name).cluster for name in names}
        if len(clusters) != 1:
            raise Refused(Code.USAGE, "name nodes of one cluster", "they are restarted together", "wherry node list")
        (name,) = clusters
        cluster = find_cluster(self._seen, name)
        self._peer.require(cluster.owner_uid, f"cluster {name}")
        managers, store = self._context.require_managers(), self._context.store

        def check() -> list[Job]:
            """The jobs that will be ended."""
            if managers.clusters.check_down(name).state is ClusterState.REMOVING:
                raise Refused(Code.WRONG_STATE, f"cluster {name} is being removed", "", f"wherry down {name}")
            under_way = [job for job in store.jobs(name) if job.state.under_way]
            found = [job for job in under_way if not job.nodes or not set(job.nodes).isdisjoint(names)]
            if found and not end_jobs:
                shown = ", ".join(f"{job.id} ({Path(job.argv[0]).name})" for job in found)
                remedy = f"wherry node restart {' '.join(names)} --yes"
                raise Refused(Code.WRONG_STATE, f"jobs run on {', '.join(names)}", f"it would end {shown}", remedy)
            return found

        check()

        def body(task: Task) -> dict[str, Any]:
            found = check()
            for node in (find_node(store, name) for name in names):
                for job in found:
                    self._context.end_job_on_lost_node(managers, job, node)
            rows = managers.clusters.restart(name, names, task.progress)
            return {"cluster": name, "nodes": [node.model_dump(mode="json") for node in rows]}

        target = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        return self._context.operations.start(
            "restart", target, body, uid=self._peer.uid, may_cancel=False, shared=[FABRIC],
            exclusive=[cluster_claim(name)], owner=cluster.owner_uid,
        )  # fmt: skip
