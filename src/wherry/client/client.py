"""The REST interface as Python methods: each sends one request, or waits for one operation.

Records are returned as models; operations as `Row`, JSON whose keys are attributes too. Clusters, fabrics and plans
are returned as JSON: they contain specs, whose parser refuses the plain numbers that JSON has for sizes and durations.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wherry.base.bytes_text import to_text
from wherry.base.components import parts
from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance, instance
from wherry.client import identity, models
from wherry.client.accounts import AccountRequests
from wherry.client.leases import LeaseRequests
from wherry.client.remote import Remote, configured
from wherry.client.requests import POLL, Progress, quiet
from wherry.client.row import Row
from wherry.client.transport import Transport

if TYPE_CHECKING:
    from wherry.model.balance import BalancePlan
    from wherry.model.job_request import Layout, Program
    from wherry.model.move_check import JobCheck, NodeCheck
    from wherry.model.mpi_profile import MpiProfile
    from wherry.model.owner import Owner
    from wherry.model.profile import Profile
    from wherry.model.program import ProgramProfile
    from wherry.model.records import Event, Host, Image, Job, Move, Node, Prediction

_GATHER = 0.25
"""Least time between two answers with the output of a running job, in seconds."""
Chunk = tuple[str, float, bytes]
"""Stream (`stdout` or `stderr`), seconds since the epoch, data."""


@dataclass
class Taken:
    """How much of a job's output was taken: the offset of an answer, how many of its chunks, and bytes of the next."""

    offset: int = 0
    chunks: int = 0
    bytes: int = 0


class Client(AccountRequests, LeaseRequests):
    """A connection to the daemon of an instance. With `start` the daemon is started when none runs. Unless a `place` is
    named, the daemon is that of WHERRY_URL or of `wherry login`, if there is one."""

    def __init__(self, place: Instance | None = None, start: bool = True, remote: Remote | None = None) -> None:
        remote = remote or (configured() if place is None else None)
        super().__init__(Transport(place or instance(), start, remote))

    @classmethod
    def at(cls, url: str, token: str = "", ca: str = "") -> Client:
        """A client of a daemon over the network: `https://HOST:PORT`, a token (`wherry token create`), and the path of
        the daemon's `ca.pem` (empty: whom this machine trusts)."""
        return cls(remote=Remote(url, token, ca))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open: a connection ends with its request."""

    if not TYPE_CHECKING:  # for a type checker there is the component's own class

        def __getattr__(self, name: str) -> Any:
            """A request of a component."""
            for _, requests in () if name.startswith("_") else parts("requests"):
                if hasattr(requests, name):
                    return getattr(requests(self._transport), name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # The fabric and its hosts.

    def fabric(self) -> dict[str, Any]:
        """`fabric` (its spec), `up`, `hosts`. NOT_FOUND when there is none."""
        found: dict[str, Any] = self.get("/v1/fabric")
        return found

    def fabric_up(self, spec: dict[str, Any], source: str) -> Row:
        """Begins to make a fabric."""
        return self._begin("PUT", "/v1/fabric", body={"spec": spec, "source": source})

    def fabric_down(self) -> Row:
        """Begins to remove the fabric."""
        return self._begin("DELETE", "/v1/fabric")

    def hosts(self) -> list[Host]:
        """The hosts and their present state."""
        return [models.Host(**data) for data in self.get("/v1/hosts")]

    def drain(self, host: str, at: float | None = None) -> Row:
        """Begins to move all nodes off a host; with `at` (seconds since the epoch) has that begin then."""
        return self._begin("POST", f"/v1/hosts/{host}/drain", body=None if at is None else {"at": at})

    def restore(self, host: str) -> Row:
        """Begins to move back the nodes that a drain took off a host."""
        return self._begin("POST", f"/v1/hosts/{host}/restore")

    def declare_lost(self, host: str) -> Row:
        """Begins to declare a silent host lost."""
        return self._begin("POST", f"/v1/hosts/{host}/lost")

    def add_machine(self, uri: str, install: bool = False) -> Row:
        """Begins to make a machine fit to be a host by SSH."""
        return self._begin("POST", "/v1/machines/add", body={"uri": uri, "install": install})

    def remove_machine(self, uri: str) -> Row:
        """Begins to remove Wherry's files from a machine."""
        return self._begin("POST", "/v1/machines/remove", body={"uri": uri})

    def links(self, measure: bool = False) -> list[dict[str, Any]]:
        """Each with `link`, `declared`, `measured`, `there`, `back`. `measure` fills each link for some seconds."""
        found: list[dict[str, Any]] = self.get("/v1/links", measure=measure)
        return found

    def set_link(self, one: str, other: str, change: dict[str, str], one_way: bool = False) -> Row:
        """Begins to change a link: latency, jitter, bandwidth, loss as in a fabric file, and overlay."""
        body = {**change, "one_way": one_way}
        return self._begin("PATCH", f"/v1/links/{one}/{other}", body=body)

    # Clusters and nodes.

    def clusters(self) -> list[dict[str, Any]]:
        """By name."""
        return list(self.each("/v1/clusters"))

    def plan(self, spec: dict[str, Any], source: str, project: str | None = None) -> dict[str, Any]:
        """`plan` and its `text`: the changes that `up` would make."""
        body = {"spec": spec, "source": source, "dry_run": True, "project": project, **self._owner(None)}
        found: dict[str, Any] = self._transport.ask("POST", "/v1/clusters", body=body)
        return found

    def up(
        self,
        spec: dict[str, Any],
        source: str = "the cluster file",
        owner: Owner | None = None,
        project: str | None = None,
        wait: bool = False,
        priority: int = 0,
    ) -> Row:
        """Begins to make, change or repair a cluster; the result has `cluster`, `nodes`, `plan`.

        It belongs to `owner`, by default to the user of this process, and its nodes may write to the owner's `cwd`.
        Over the network it belongs to the account, whose nodes have no directory of it; with a `project` to that.
        With `wait` the operation waits until there is room; of several clusters the higher `priority` comes first.
        """
        body = {"spec": spec, "source": source, "project": project, **self._owner(owner)}
        body |= {"wait": wait, "priority": priority} if wait or priority else {}
        return self._begin("POST", "/v1/clusters", body=body)

    def _owner(self, owner: Owner | None) -> dict[str, object]:
        """The owner for whom a request is made: over the network none."""
        return {} if self._transport.remote else {"owner": (owner or identity.owner()).model_dump()}

    def _inheritance(
        self, owner: Owner | None, env: dict[str, str] | None = None, inherited: dict[str, Any] | None = None
    ) -> dict[str, object]:
        """The default environment of a program: variables, limits and the like of this process; over the
        network the usual variables alone."""
        if self._transport.remote:
            said = {} if inherited is None else {"inherited": inherited}
            return {"env": dict(identity.ELSEWHERE if env is None else env), **said}
        variables = identity.environment(owner or identity.owner()) if env is None else env
        return {
            "env": {to_text(name): to_text(value) for name, value in variables.items()},
            "inherited": identity.inherited() if inherited is None else inherited,
        }

    def down(self, name: str, end_jobs: bool = False) -> Row:
        """Begins to remove a cluster. Refused while jobs run on it, unless `end_jobs`: then they are ended."""
        return self._begin("DELETE", f"/v1/clusters/{name}", end_jobs=end_jobs)

    def restart(self, nodes: Sequence[str], end_jobs: bool = False) -> Row:
        """Begins to end nodes of one cluster and start them anew. Refused while jobs run there, unless `end_jobs`."""
        return self._begin("POST", "/v1/restarts", body={"nodes": list(nodes), "end_jobs": end_jobs})

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        return [models.Node(**data) for data in self.each("/v1/nodes", cluster=cluster)]

    def node(self, name: str) -> dict[str, Any]:
        """`node`, `usage` and `moves`."""
        found: dict[str, Any] = self.get(f"/v1/nodes/{name}")
        return found

    def console(self, node: str) -> str:
        """The end of a virtual machine's console output."""
        text: str = self.get(f"/v1/nodes/{node}/console")["text"]
        return text

    # Images of virtual machines.

    def images(self) -> list[Image]:
        """By name."""
        return [models.Image(**data) for data in self.get("/v1/images")]

    def image(self, name: str) -> Image:
        """One image."""
        return models.Image(**self.get(f"/v1/images/{name}"))

    def build_image(self, name: str, programs: list[str]) -> Row:
        """Begins to build an image; `programs` are absolute paths on the daemon's machine. The result has `image`."""
        return self._begin("PUT", f"/v1/images/{name}", body={"programs": programs})

    def remove_image(self, name: str) -> Image:
        """Removes an image."""
        return models.Image(**self._transport.ask("DELETE", f"/v1/images/{name}"))

    # Moves.

    def predict(
        self,
        node: str,
        host: str,
        bandwidth: str | None = None,
        max_rounds: int | None = None,
        parameters: dict[str, object] | None = None,
    ) -> Prediction:
        """The predicted cost of a move, with the options of `begin_move`."""
        body: dict[str, object] = {"node": node, "host": host, "bandwidth": bandwidth, "dry_run": True}
        body |= {"max_rounds": max_rounds, **({} if parameters is None else {"parameters": parameters})}
        return models.Prediction(**self._transport.ask("POST", "/v1/moves", body=body)["predicted"])

    def check_node(self, node: str) -> NodeCheck:
        """Objects that would prevent or prolong a move of a node."""
        return models.NodeCheck(**self.get(f"/v1/nodes/{node}/check"))

    def check_job(self, id: str) -> JobCheck:
        """The same for each node with ranks of a job."""
        return models.JobCheck(**self.get(f"/v1/jobs/{id}/check"))

    def begin_move(
        self,
        node: str,
        host: str,
        max_rounds: int | None = None,
        fault: str | None = None,
        bandwidth: str | None = None,
        parameters: dict[str, object] | None = None,
    ) -> Row:
        """Begins a move; the result has `move`. `bandwidth`, for instance `500Mbit/s`, limits the rate of sending.
        `parameters` has the mode and its parameters (see `wherry.model.migration_parameters`). `fault` is for tests
        (see `wherry.move.faults`)."""
        body: dict[str, object] = {"node": node, "host": host, "max_rounds": max_rounds, "bandwidth": bandwidth}
        if parameters is not None:
            body["parameters"] = parameters
        headers = {"Wherry-Fault": fault} if fault else {}
        return self._begin("POST", "/v1/moves", body=body, headers=headers)

    def move(self, node: str, host: str, progress: Progress = quiet) -> Move:
        """Moves a node and returns the record."""
        return self.moved(self.wait(self.begin_move(node, host).id, progress))

    def swap(self, node: str, other: str, progress: Progress = quiet, fault: str | None = None) -> list[Move]:
        """Swaps two nodes; returns the records of both moves. `fault` as in `begin_move`, of the second one."""
        headers = {"Wherry-Fault": fault} if fault else None
        operation = self._begin("POST", "/v1/swaps", body={"node": node, "other": other}, headers=headers)
        done: dict[str, Any] = self.wait(operation.id, progress).result or {}
        return [models.Move.model_validate(move) for move in done["moves"]]

    @staticmethod
    def moved(operation: Row) -> Move:
        """The move in the result of its operation."""
        return models.Move.model_validate((operation.result or {})["move"])

    def moves(self) -> list[Move]:
        """Oldest first."""
        return [models.Move(**data) for data in self.each("/v1/moves")]

    # Jobs.

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        return [models.Job(**data) for data in self.each("/v1/jobs", cluster=cluster)]

    def job(self, id: str) -> Job:
        """One job."""
        return models.Job(**self.get(f"/v1/jobs/{id}"))

    def wait_job(self, id: str, seconds: float = math.inf) -> Job:
        """A job when it has ended. TIMED_OUT after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            job = models.Job(**self.get(f"/v1/jobs/{id}", wait=min(POLL, remaining)))
            if not job.state.under_way:
                return job
            if not remaining:
                raise Failed(Code.TIMED_OUT, f"{id} did not end within {seconds:g} s", "", f"wherry job cancel {id}")

    def run(
        self,
        cluster: str,
        argv: list[str],
        ranks: int,
        mpi: str | None = None,
        env: dict[str, str] | None = None,
        inherited: dict[str, Any] | None = None,
        progress: Progress = quiet,
        input: bool = False,
        expected: float | None = None,
        owner: Owner | None = None,
        programs: Sequence[Program] = (),
        layout: Layout | None = None,
        timeout: float | None = None,
        launcher_args: Sequence[str] = (),
        measured: bool = False,
        plain: bool = False,
        site_collectives: bool = False,
        deterministic: bool = False,
        place_spawned: bool = False,
        host_memory: bool = False,
    ) -> Job:
        """Starts a program on a cluster; returns when it was started. `env` and `inherited` (umask, nice value,
        limits: `wherry.model.inherited.Inherited`) default to this process's.

        With `input` rank 0 reads the input of `feed`, else nothing. `expected` is the expected run time in seconds.
        Its ranks run as `owner`, by default the user of this process, in the owner's `cwd`. `programs`, `layout`,
        `timeout`, `launcher_args`, `measured`, `plain`, `site_collectives`, `deterministic`, `place_spawned` and
        `host_memory` as in `wherry.model.job_request.JobRequest`.
        """
        body = {
            "cluster": cluster,
            "argv": list(map(to_text, argv)),
            "ranks": ranks,
            "mpi": mpi,
            **self._inheritance(owner, env, inherited),
            **self._owner(owner),
            "input": input,
            "expected": expected,
            "programs": [program.model_dump() for program in programs],
            "timeout": timeout,
            "launcher_args": list(map(to_text, launcher_args)),
            "measured": measured,
            "plain": plain,
            "site_collectives": site_collectives,
            "deterministic": deterministic,
            "place_spawned": place_spawned,
            "host_memory": host_memory,
        }
        if layout is not None:
            body["layout"] = layout.model_dump()
        operation = self._begin("POST", "/v1/jobs", body=body)
        return models.Job.model_validate((self.wait(operation.id, progress).result or {})["job"])

    def exec(
        self,
        node: str,
        argv: Sequence[str],
        owner: Owner | None = None,
        asked: bool = False,
        input: bool = False,
        terminal: tuple[int, int] | None = None,
        progress: Progress = quiet,
    ) -> Job:
        """Starts a program on a node, as `run` does on a cluster; `asked` and `terminal` (rows, columns) as in
        `wherry.model.job_request.ExecRequest`."""
        body = {"argv": list(map(to_text, argv)), "asked": asked, **self._inheritance(owner), **self._owner(owner)}
        size = {"rows": terminal[0], "columns": terminal[1]} if terminal else None
        operation = self._begin("POST", f"/v1/nodes/{node}/exec", body={**body, "input": input, "terminal": size})
        return models.Job.model_validate((self.wait(operation.id, progress).result or {})["job"])

    def forget(self, id: str) -> None:
        """Removes a job that has ended, with its output."""
        self._transport.ask("DELETE", f"/v1/jobs/{id}/output")

    def feed(self, id: str, read: Callable[[], bytes]) -> None:
        """Sends the results of `read` to rank 0, until it returns b"", the end. WRONG_STATE when the job ends
        before."""
        offset, ended = 0, False
        while not ended:
            rest = read()
            last = not rest
            while rest or (last and not ended):
                body = {"offset": offset, "data": base64.b64encode(rest).decode(), "end": last}
                taken = self._transport.ask("PUT", f"/v1/jobs/{id}/input", body=body, wait=POLL)
                rest, offset, ended = rest[taken["next"] - offset :], taken["next"], taken["ended"]

    def output(
        self,
        id: str,
        follow: bool = True,
        seconds: float = math.inf,
        gather: float = _GATHER,
        taken: Taken | None = None,
    ) -> Iterator[Chunk]:
        """The job's output until its end, at least `gather` seconds apart; without `follow` the output so far.
        TIMED_OUT when the job has not ended after `seconds`. It continues after the part that was `taken` already,
        which the caller keeps up to date."""
        at, deadline, last = taken or Taken(), time.monotonic() + seconds, -gather
        while True:
            now = time.monotonic()
            remaining = max(0.0, deadline - now)
            found = self.get(
                f"/v1/jobs/{id}/output",
                offset=at.offset,
                wait=min(POLL, remaining) if follow else 0,
                gather=min(max(0.0, last + gather - now), remaining) if follow else 0,
            )
            last = time.monotonic()
            for chunk in found["chunks"][at.chunks :]:
                yield chunk["stream"], chunk["time"], base64.b64decode(chunk["data"])
            at.offset, at.chunks = found["next"], 0
            if found["end"] or not (follow or found["chunks"]):
                return
            if not remaining:
                raise Failed(Code.TIMED_OUT, f"{id} did not end within {seconds:g} s", "", f"wherry job cancel {id}")

    def cancel_job(
        self, id: str, progress: Progress = quiet, seconds: float = math.inf, grace: float | None = None
    ) -> Job:
        """Ends a job and returns it when all its processes are gone; a job that has ended is returned as it is. With a
        `grace` its ranks get SIGTERM, and have so many seconds to end. TIMED_OUT when processes are left after
        `seconds`."""
        operation = self._begin("DELETE", f"/v1/jobs/{id}", grace=grace)
        return models.Job.model_validate((self.wait(operation.id, progress, seconds).result or {})["job"])

    def signal_job(self, id: str, name: str, progress: Progress = quiet) -> dict[str, Any]:
        """Sends a signal, such as `USR1`, to the ranks of a running job: how many got it (`sent`), and the nodes that
        did not answer (`silent`)."""
        operation = self._begin("POST", f"/v1/jobs/{id}/signal", body={"signal": name})
        return dict(self.wait(operation.id, progress).result or {})

    # Profiles and balancing.

    def profile(self, job: str, seconds: float = 3.0) -> Profile:
        """Measures a job for `seconds`."""
        return models.Profile(**self.get(f"/v1/jobs/{job}/profile", seconds=seconds))

    def programs(self) -> list[ProgramProfile]:
        """The profiles of the user's programs, that measured last first."""
        return [models.ProgramProfile(**data) for data in self.each("/v1/programs")]

    def forget_program(self, key: str) -> ProgramProfile:
        """Forgets a profile."""
        return models.ProgramProfile(**self._transport.ask("DELETE", f"/v1/programs/{key}"))

    def mpi_profile(self, job: str, seconds: float = 3.0) -> MpiProfile:
        """The calls of a job's ranks inside MPI, measured for `seconds`; without ranks, at once, if they have no
        pages."""
        return models.MpiProfile(**self.get(f"/v1/jobs/{job}/mpi-profile", seconds=seconds))

    def balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> BalancePlan:
        """Measures and plans the moves of one cluster or of all; moves nothing."""
        body = {"cluster": cluster, "seconds": seconds, "remaining": remaining}
        return models.BalancePlan(**self._transport.ask("POST", "/v1/balance", body=body)["plan"])

    def begin_balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> Row:
        """Begins to measure, plan and move; the result has `plan` and `moves`."""
        body = {"cluster": cluster, "seconds": seconds, "remaining": remaining, "apply": True}
        return self._begin("POST", "/v1/balance", body=body)

    def auto_balance(self, on: bool | None = None) -> bool:
        """Whether automatic balancing is on. Turns it on or off first unless `on` is None."""
        if on is None:
            return bool(self.get("/v1/balance")["auto"])
        return bool(self._transport.ask("PUT", "/v1/balance", body={"auto": on})["auto"])

    # Events.

    def events(self, after: int = 0, wait: float = 0.0) -> list[Event]:
        """Events after number `after`, as soon as there are some."""
        return [models.Event(**data) for data in self.get("/v1/events", after=after, wait=wait)]

    def follow_events(self, after: int = 0) -> Iterator[Event]:
        """All events after number `after`, without end."""
        while True:
            for event in self.events(after, POLL):
                after = event.id
                yield event
