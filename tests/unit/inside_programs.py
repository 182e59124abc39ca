"""Programs that ask from inside a node, over the routes for nodes: as ranks of jobs on clusters in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from rest_service import CLUSTER, Service, client_of, ended

from wherry.base.clock import now
from wherry.cluster.placements import secret_name
from wherry.job import inside
from wherry.model.records import Job, JobState
from wherry.service.inside_commands import InsideLimits
from wherry.service.rest.inside import make_inside_app

GROUP = 7
HOSTS = ("a1", "a2", "b1")


class Program:
    """Asks as a rank of a job does."""

    def __init__(self, service: Service, job: Job, node: int = 0, cluster: str = "", token: str = "") -> None:
        self.service, self.job = service, job
        self.cluster = cluster or job.cluster
        secret = service.context.store.secret(secret_name(job.cluster))
        self.token = token or f"{job.id}.{inside.token(secret, job.id)}"
        nodes = service.context.store.nodes(self.cluster)
        self.address = nodes[node].address if node < len(nodes) else "192.0.2.1"
        self.limits = InsideLimits()
        self.app = make_inside_app(service.context, self.limits, GROUP)

    def __call__(
        self, method: str, path: str, json: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        async def told(scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "state": {"cluster": self.cluster}}, receive, send)

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(told, client=(self.address, 4000))  # type: ignore[arg-type]
            given = {"Authorization": f"Bearer {self.token}", **(headers or {})}
            async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:
                return await client.request(method, f"/v1/self{path}", json=json, headers=given, **more)

        return asyncio.run(go())

    def end_of(self, answer: httpx.Response) -> dict[str, Any]:
        """The operation of an answer, once it has ended."""
        assert answer.status_code == 202, answer.text
        found: dict[str, Any] = answer.json()
        while found["state"] == "running":
            found = self("GET", f"/operations/{found['operation']}", params={"wait": 10}).json()
        return found


def make_job(service: Service, cluster: str = "hello", uid: int = 0, **change: Any) -> Job:
    """A cluster and a job that runs on it."""
    if service.context.store.cluster(cluster) is None:
        with client_of(service) as http:
            spec = {**CLUSTER, "name": cluster}
            assert ended(http, http.post("/v1/clusters", json={"spec": spec}))["state"] == "done"
    nodes = tuple(node.name for node in service.context.store.nodes(cluster))
    job = Job(
        id=f"job-{len(service.context.store.jobs()) + 1}", cluster=cluster, argv=("p",), ranks=5, mpi="openmpi",
        uid=uid, gid=uid, cwd="/", state=JobState.RUNNING, created=now(), nodes=nodes,
    ).model_copy(update=change)  # fmt: skip
    service.context.store.put_job(job)
    return job


def elsewhere(service: Service, node: str = "hello-0") -> str:
    found = service.context.store.node(node)
    return next(host for host in HOSTS if found and host != found.host)
