"""A whole service in this process, on a socket of its own, with a fabric and nodes in memory."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from databases import Migrated

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.job.mpi import Mpi
from wherry.job.validation import JobPlan
from wherry.model.job_request import JobRequest
from wherry.model.records import Job, JobState, Node
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerProtocol
from wherry.service.daemon import listening
from wherry.service.health_monitor import HealthMonitor
from wherry.service.rest.app import make_app
from wherry.store import Store

FABRIC = {
    "kind": "fabric",
    "version": 1,
    "name": "two",
    "driver": "fake",
    "sites": [{"name": "a"}, {"name": "b"}],
    "hosts": [
        {"name": "a1", "site": "a", "cores": 2, "memory": "2GiB"},
        {"name": "a2", "site": "a", "cores": 2, "memory": "2GiB"},
        {"name": "b1", "site": "b", "cores": 2, "memory": "2GiB"},
    ],
    "links": [{"between": ["a", "b"]}],
}
CLUSTER = {"name": "hello", "nodes": 3, "cpus": 0.5, "memory": "256MiB"}


@dataclass(frozen=True)
class Here(Instance):
    """An instance below a temporary directory."""

    top: Path = Path("/nonexistent")

    @property
    def run(self) -> Path:
        return self.top / "run"

    @property
    def state(self) -> Path:
        return self.top / "state"


class JobsInMemory:
    """Jobs with a fixed output: nodes in memory run nothing. A job ends when all of its output was read, but for
    `sleep`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.outputs: dict[str, list[tuple[str, float, bytes]]] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.inputs: dict[str, bytes] = {}
        self.signals: list[tuple[str, str]] = []
        self.lost: list[tuple[str, str]] = []
        """Job and node of each loss."""

    def plan(self, request: JobRequest) -> JobPlan:
        if request.argv[0] == "missing":
            raise Refused(Code.NOT_FOUND, "the program missing is not there", "", "give the program's path")
        return JobPlan(request, (Path(request.argv[0]),), Mpi("openmpi", (5, 0), Path("mpirun")))

    def start(self, plan: JobPlan, check: Callable[[], None], operation: str, starter: int) -> Job:
        order, number = plan.request, len(self.outputs) + 1
        job = Job(
            id=f"job-{number}", cluster=order.cluster, argv=order.argv, ranks=order.ranks, mpi=order.mpi or "openmpi",
            uid=order.owner.uid, gid=order.owner.gid, cwd=order.owner.cwd, state=JobState.RUNNING, created=now(),
            operation=operation, starter=starter,
        )  # fmt: skip
        self.outputs[job.id] = [("stdout", 1.0, b"out\n"), ("stderr", 2.0, b"err\n")]
        self.environments[job.id] = order.env
        self.store.put_job(job)
        return job

    def directory(self, id: str) -> Path:
        return Path("/nonexistent") / id

    def node_lost(self, id: str, node: Node) -> bool:
        new = (id, node.name) not in self.lost
        if new:
            self.lost.append((id, node.name))
        return new

    def update(self, id: str, change: Callable[[Job], Job]) -> Job:
        job = self.store.job(id)
        assert job
        job = change(job)
        self.store.put_job(job)
        return job

    def ran(self, job: Job) -> float:
        return now() - job.created

    def poll(self, id: str) -> Job:
        job = self.store.job(id)
        assert job
        if job.state == JobState.RUNNING and job.argv[0] != "sleep":
            code = int(job.argv[1]) if len(job.argv) > 1 else 0
            job = job.model_copy(update={"state": JobState.ENDED, "exit_code": code})
            self.store.put_job(job)
            self.store.add_event("job.end", id, f"exit code {code}")
        return job

    def watch(self, id: str) -> None:
        self.poll(id)

    def sweep(self) -> None:
        pass

    def output(self, id: str, offset: int = 0, limit: int = 1 << 20) -> tuple[list[tuple[str, float, bytes]], int]:
        chunks = self.outputs[id][offset:]
        if not chunks:
            self.poll(id)
        return chunks, offset + len(chunks)

    def input(self, id: str, offset: int, data: bytes, end: bool) -> tuple[int, bool]:
        """Takes a few bytes at a time."""
        had = self.inputs.setdefault(id, b"")
        self.inputs[id] = had + data[len(had) - offset :][:5]
        taken = len(self.inputs[id])
        return taken, end and taken == offset + len(data)

    def cancel(self, id: str, taken_down: str = "", grace: float | None = None) -> Job:
        job = self.poll(id)
        if not job.state.under_way:
            return job
        job = job.model_copy(update={"state": JobState.CANCELLED, "exit_code": 130})
        self.store.put_job(job)
        return job

    def send_signal(self, id: str, number: signal.Signals, seconds: float) -> tuple[int, dict[str, str]]:
        self.signals.append((id, number.name))
        return 2, {}

    def remove(self, cluster: str, reason: str) -> None:
        for job in self.store.jobs(cluster):
            self.store.drop_job(job.id)

    def adopt(self) -> None:
        pass

    def prune(self) -> None:
        pass


@dataclass
class Service:
    """The parts of the service that a test uses."""

    place: Here
    context: ServiceContext
    monitor: HealthMonitor

    @property
    def jobs(self) -> JobsInMemory:
        """The stand-in."""
        assert self.context.managers
        jobs = self.context.managers.jobs
        assert isinstance(jobs, JobsInMemory)
        return jobs


class ContextWithoutRanks(ServiceContext):
    """A context whose jobs run no ranks."""

    def make_managers(self, fabric):  # type: ignore[no-untyped-def]
        domain = super().make_managers(fabric)
        domain.jobs = JobsInMemory(self.store)  # type: ignore[assignment]
        return domain


class Awaited(set[Any]):
    """Connections or tasks that a server awaits until none is left."""

    def __init__(self) -> None:
        super().__init__()
        self._empty = asyncio.Event()

    def discard(self, one: Any) -> None:
        super().discard(one)
        if not self:
            self._empty.set()

    async def none_left(self) -> None:
        """Returns when it is empty."""
        while self:
            self._empty.clear()
            await self._empty.wait()


class PromptServer(uvicorn.Server):
    """uvicorn's server, which starts and ends at once, instead of at its next look, ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._begun, self._end = threading.Event(), asyncio.Event()
        self._loop = (config.get_loop_factory() or asyncio.new_event_loop)()
        self._connections = self.server_state.connections = Awaited()
        self._tasks = self.server_state.tasks = Awaited()

    def begin(self, listener: socket.socket) -> threading.Thread:
        """A thread that serves, once it does."""
        thread = threading.Thread(target=self._serve_all, args=(listener,), daemon=True)
        thread.start()
        self._begun.wait(60)
        return thread

    def end(self) -> None:
        """Has the thread take no more requests, and end when all have been answered or a second later."""
        self._loop.call_soon_threadsafe(self._end.set)

    def _serve_all(self, listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self.serve([listener]))
        finally:
            self._begun.set()

    async def main_loop(self) -> None:
        self._begun.set()
        for second in itertools.count():
            await self.on_tick(10 * second)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), 1)
                return

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._connections.none_left()
                await self._tasks.none_left()
        for task in self._tasks:
            task.cancel()


@contextmanager
def running(top: Path, fabric: bool = True) -> Iterator[Service]:
    """The service, ready, until the end of the block."""
    place = Here("test", top)
    place.run.mkdir(parents=True, exist_ok=True)
    context = ContextWithoutRanks(place, Store(Migrated(place.state / "wherry.db")))
    if fabric:
        from wherry.model.spec.fabric import FabricSpec
        from wherry.model.spec.parse import parse

        context.fabric_up(parse(FabricSpec, FABRIC, "test"))
    config = uvicorn.Config(
        make_app(context), http=PeerProtocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = PromptServer(config)
    thread = server.begin(listening(place.socket, None))
    try:
        yield Service(place, context, HealthMonitor(context))
    finally:
        server.end()
        thread.join(20)
        context.close(5)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The service, with the fabric FABRIC."""
    with running(tmp_path) as made:
        yield made


def client_of(service: Service) -> httpx.Client:
    """A client of the service."""
    transport = httpx.HTTPTransport(uds=str(service.place.socket), verify=False)  # no TLS, so nobody to verify
    return httpx.Client(transport=transport, base_url="http://x", timeout=60)


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    """A client of the fixture `service`."""
    with client_of(service) as client:
        yield client


def ended(http: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    """The operation that the answer began, when it has ended."""
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = {}
    after, lines = 0, []
    while found.get("state", "running") == "running":
        data = http.get(answer.headers["Location"], params={"wait": 10, "after": after}).json()
        found, after = data["operation"], data["next"]
        lines += data["lines"]
    return found | {"lines": lines}
