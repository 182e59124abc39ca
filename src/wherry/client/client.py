"""The REST interface as Python methods: each sends one request, or waits for one operation.

Records are returned as models. Clusters, fabrics and plans are returned as JSON: they contain specs, whose parser
refuses the plain numbers that JSON has for sizes and durations.
"""

from __future__ import annotations

import base64
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from wherry.base.errors import Code, Failed, Refused, WherryError, from_dict
from wherry.base.paths import Instance, instance
from wherry.client import identity, models
from wherry.client.transport import Transport

if TYPE_CHECKING:
    from wherry.model.balance import BalancePlan
    from wherry.model.owner import Owner
    from wherry.model.profile import Profile
    from wherry.model.records import Event, Host, Image, Job, Move, Node, Operation, Prediction

Progress = Callable[[str], None]
_POLL = 20.0
"""Length of one long poll in seconds."""
Chunk = tuple[str, float, bytes]
"""Stream (`stdout` or `stderr`), seconds since the epoch, data."""


def _is_done(operation: Operation) -> bool:
    """False while the operation runs. Raises the error of a failed or cancelled one."""
    if operation.state not in ("running", "done"):
        raise from_dict(operation.error or {})
    return operation.state == "done"


def quiet(_text: str) -> None:
    """Ignores progress."""


class Client:
    """A connection to the daemon of an instance. With `start` the daemon is started when none runs."""

    interrupted = False
    """True when Ctrl-C came during `wait`, whatever the result of the operation."""

    def __init__(self, place: Instance | None = None, start: bool = True) -> None:
        self._transport = Transport(place or instance(), start)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open: a connection ends with its request."""

    # Operations.

    def operations(self, running: bool = False) -> list[Operation]:
        """Oldest first."""
        return [models.Operation(**data) for data in self.get("/v1/operations", running=running)]

    def operation(self, id: str) -> Operation:
        """One operation."""
        return models.Operation(**self.get(f"/v1/operations/{id}")["operation"])

    def cancel(self, id: str) -> Operation:
        """Requests the cancellation of an operation."""
        return models.Operation(**self._transport.ask("POST", f"/v1/operations/{id}/cancel"))

    def wait(self, id: str, progress: Progress = quiet, seconds: float = math.inf) -> Operation:
        """Waits until the operation is done, and raises its error. Ctrl-C cancels it; a second Ctrl-C lets it run.

        After `seconds` the operation is cancelled and TIMED_OUT is raised; it may still be ending then.
        """
        after, interrupted, deadline = 0, False, time.monotonic() + seconds
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:  # around everything: Ctrl-C at any point cancels the operation
                found = self.get(f"/v1/operations/{id}", wait=min(_POLL, remaining), after=after)
                after = found["next"]
                for line in found["lines"]:
                    progress(line)
                operation = models.Operation(**found["operation"])
                if _is_done(operation):
                    return operation
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = self.interrupted = True
                self._cancel_quietly(id, progress)  # first: printing fails when the terminal is gone
                progress("cancelling; Ctrl-C again leaves it running")
                continue
            if not remaining:
                self._cancel_quietly(id, progress)
                what = f"{operation.kind} did not end within {seconds:g} s"
                raise Failed(Code.TIMED_OUT, what, "it is being cancelled", f"wherry op show {id}")

    def _begin(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Operation:
        """Begins an operation. Ctrl-C before the answer cancels it: the request may have begun it already, and the same
        request with the same idempotency key returns it. A second Ctrl-C gives up."""
        headers = {**(headers or {}), "Idempotency-Key": os.urandom(16).hex()}
        ask = partial(self._transport.ask, method, path, body=body, headers=headers, **query)
        try:
            begun = ask()  # first: a refused one needs no model
            return models.Operation(**begun)
        except KeyboardInterrupt:
            with suppress(WherryError):  # it was refused, or cannot be cancelled
                self.cancel(models.Operation(**ask()).id)
            raise

    def _cancel_quietly(self, id: str, progress: Progress) -> None:
        try:
            self.cancel(id)
        except Refused as error:
            progress(str(error))

    # The fabric and its hosts.

    def fabric(self) -> dict[str, Any]:
        """`fabric` (its spec), `up`, `hosts`. NOT_FOUND when there is none."""
        found: dict[str, Any] = self.get("/v1/fabric")
        return found

    def fabric_up(self, spec: dict[str, Any], source: str) -> Operation:
        """Begins to make a fabric."""
        return self._begin("PUT", "/v1/fabric", body={"spec": spec, "source": source})

    def fabric_down(self) -> Operation:
        """Begins to remove the fabric."""
        return self._begin("DELETE", "/v1/fabric")

    def hosts(self) -> list[Host]:
        """The hosts and their present state."""
        return [models.Host(**data) for data in self.get("/v1/hosts")]

    def drain(self, host: str) -> Operation:
        """Begins to move all nodes off a host."""
        return self._begin("POST", f"/v1/hosts/{host}/drain")

    def restore(self, host: str) -> Operation:
        """Begins to move back the nodes that a drain took off a host."""
        return self._begin("POST", f"/v1/hosts/{host}/restore")

    def declare_lost(self, host: str) -> Operation:
        """Begins to declare a silent host lost."""
        return self._begin("POST", f"/v1/hosts/{host}/lost")

    def links(self, measure: bool = False) -> list[dict[str, Any]]:
        """Each with `link`, `declared`, `measured`, `there`, `back`. `measure` fills each link for some seconds."""
        found: list[dict[str, Any]] = self.get("/v1/links", measure=measure)
        return found

    def set_link(self, one: str, other: str, change: dict[str, str], one_way: bool = False) -> Operation:
        """Begins to change a link: latency, jitter, bandwidth, loss as in a fabric file, and overlay."""
        body = {**change, "one_way": one_way}
        return self._begin("PATCH", f"/v1/links/{one}/{other}", body=body)

    # Clusters and nodes.

    def clusters(self) -> list[dict[str, Any]]:
        """By name."""
        found: list[dict[str, Any]] = self.get("/v1/clusters")
        return found

    def plan(self, spec: dict[str, Any], source: str) -> dict[str, Any]:
        """`plan` and its `text`: the changes that `up` would make."""
        body = {"spec": spec, "source": source, "dry_run": True, "owner": identity.owner().model_dump()}
        found: dict[str, Any] = self._transport.ask("POST", "/v1/clusters", body=body)
        return found

    def up(self, spec: dict[str, Any], source: str = "the cluster file", owner: Owner | None = None) -> Operation:
        """Begins to make, change or repair a cluster; the result has `cluster`, `nodes`, `plan`.

        It belongs to `owner`, by default to the user of this process, and its nodes may write to the owner's `cwd`.
        """
        body = {"spec": spec, "source": source, "owner": (owner or identity.owner()).model_dump()}
        return self._begin("POST", "/v1/clusters", body=body)

    def down(self, name: str, end_jobs: bool = False) -> Operation:
        """Begins to remove a cluster. Refused while jobs run on it, unless `end_jobs`: then they are ended."""
        return self._begin("DELETE", f"/v1/clusters/{name}", end_jobs=end_jobs)

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        return [models.Node(**data) for data in self.get("/v1/nodes", cluster=cluster)]

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

    def build_image(self, name: str, programs: list[str]) -> Operation:
        """Begins to build an image; `programs` are absolute paths on the daemon's machine. The result has `image`."""
        return self._begin("PUT", f"/v1/images/{name}", body={"programs": programs})

    def remove_image(self, name: str) -> Image:
        """Removes an image."""
        return models.Image(**self._transport.ask("DELETE", f"/v1/images/{name}"))

    # Tiles. Operations on them take milliseconds: each is one request, answered when the operation has ended.

    def tiles(self) -> dict[str, Any]:
        """`tiles`, `processes`, and the `hosts` of the fabric that they are on. NOT_FOUND when none are up."""
        found: dict[str, Any] = self.get("/v1/tiles")
        return found

    def tiles_up(
        self, spec: dict[str, Any], source: str, *, balance: bool = False, build: str = "separated"
    ) -> dict[str, Any]:
        """Starts the tiles of a file; returns their state, and `servers`: process numbers by server name."""
        body = {"spec": spec, "source": source, "balance": balance, "build": build}
        return self._tile_operation("PUT", "/v1/tiles", body)

    def tiles_down(self) -> dict[str, Any]:
        """Ends the tiles; returns their last state, and `said`: faults that tiles reported."""
        return self._tile_operation("DELETE", "/v1/tiles")

    def start_on_tile(
        self, program: str, words: list[str], tile: int | None = None, ranks: int = 1
    ) -> list[dict[str, Any]]:
        """Starts a program (an absolute path on its machine), once or as ranks; `process` and `tile` of each."""
        body = {"program": program, "words": words, "tile": tile, "ranks": ranks}
        started: list[dict[str, Any]] = self._tile_operation("POST", "/v1/tiles/processes", body)["processes"]
        return started

    def tile_output(self, processes: Sequence[int], to_end: bool = False) -> Iterator[dict[str, Any]]:
        """Events `output` of processes as they write, and one `ended` or `lost` of each. With `to_end` they are sent
        when all have ended, so that nothing disturbs the processes. FAILED when more was written than is kept."""
        offsets = dict.fromkeys(processes, 0)
        while offsets:
            of = [f"{process}:{offset}" for process, offset in offsets.items()]
            for event in self.get("/v1/tiles/output", of=of, wait=_POLL, to_end=to_end):
                process = event["process"]
                if event["event"] != "output":
                    del offsets[process]
                elif event["from"] > offsets[process]:
                    what = f"process {process} wrote more output than is kept"
                    why = f"{event['from'] - offsets[process]} bytes of its output were dropped"
                    raise Failed(Code.FAILED, what, why, "let it write less, or more slowly")
                else:
                    offsets[process] += len(event["text"])
                yield event

    def move_tile_process(self, process: int, tile: int, mode: str = "precopy") -> dict[str, Any]:
        """Moves a process; returns the cost, durations in nanoseconds."""
        return self.move_tile_processes({process: tile}, mode)[0]

    def move_tile_processes(self, tiles: dict[int, int], mode: str = "precopy") -> list[dict[str, Any]]:
        """Moves processes to a tile each, at the same time; returns the cost of each, in the order of their ends."""
        moves: list[dict[str, Any]] = self._tile_operation("POST", "/v1/tiles/moves", {"tiles": tiles, "mode": mode})[
            "moves"
        ]
        return moves

    def _tile_operation(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        operation = models.Operation(**self._transport.ask(method, path, body=body, wait=_POLL))
        return (operation if _is_done(operation) else self.wait(operation.id)).result or {}

    # Moves.

    def predict(self, node: str, host: str, bandwidth: str | None = None) -> Prediction:
        """The predicted cost of a move."""
        body = {"node": node, "host": host, "bandwidth": bandwidth, "dry_run": True}
        return models.Prediction(**self._transport.ask("POST", "/v1/moves", body=body)["predicted"])

    def begin_move(
        self,
        node: str,
        host: str,
        max_rounds: int | None = None,
        fault: str | None = None,
        bandwidth: str | None = None,
        way: dict[str, object] | None = None,
    ) -> Operation:
        """Begins a move; the result has `move`. `bandwidth`, for instance `500Mbit/s`, limits the rate of sending.
        `way` has the parameters of virtual machines (see `wherry.model.migration_parameters`). `fault` is for tests
        (see `wherry.move.faults`)."""
        body: dict[str, object] = {"node": node, "host": host, "max_rounds": max_rounds, "bandwidth": bandwidth}
        if way is not None:
            body["way"] = way
        headers = {"Wherry-Fault": fault} if fault else {}
        return self._begin("POST", "/v1/moves", body=body, headers=headers)

    def move(self, node: str, host: str, progress: Progress = quiet) -> Move:
        """Moves a node and returns the record."""
        return self.moved(self.wait(self.begin_move(node, host).id, progress))

    @staticmethod
    def moved(operation: Operation) -> Move:
        """The move in the result of its operation."""
        return models.Move.model_validate((operation.result or {})["move"])

    def moves(self) -> list[Move]:
        """Oldest first."""
        return [models.Move(**data) for data in self.get("/v1/moves")]

    # Jobs.

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        return [models.Job(**data) for data in self.get("/v1/jobs", cluster=cluster)]

    def job(self, id: str) -> Job:
        """One job."""
        return models.Job(**self.get(f"/v1/jobs/{id}"))

    def run(
        self,
        cluster: str,
        argv: list[str],
        ranks: int,
        mpi: str | None = None,
        env: dict[str, str] | None = None,
        progress: Progress = quiet,
        input: bool = False,
        expected: float | None = None,
        owner: Owner | None = None,
    ) -> Job:
        """Starts a program on a cluster; returns when it was started. `env` defaults to this process's environment.

        With `input` rank 0 reads what `feed` sends, else nothing. `expected` is the expected run time in seconds.
        Its ranks run as `owner`, by default the user of this process, in the owner's `cwd`.
        """
        owner = owner or identity.owner()
        body = {
            "cluster": cluster,
            "argv": argv,
            "ranks": ranks,
            "mpi": mpi,
            "env": identity.environment(owner) if env is None else env,
            "owner": owner.model_dump(),
            "input": input,
            "expected": expected,
        }
        operation = self._begin("POST", "/v1/jobs", body=body)
        return models.Job.model_validate((self.wait(operation.id, progress).result or {})["job"])

    def feed(self, id: str, read: Callable[[], bytes]) -> None:
        """Sends what `read` returns to rank 0, until it returns b"", the end. WRONG_STATE when the job ends before."""
        offset, ended = 0, False
        while not ended:
            rest = read()
            last = not rest
            while rest or (last and not ended):
                body = {"offset": offset, "data": base64.b64encode(rest).decode(), "end": last}
                taken = self._transport.ask("PUT", f"/v1/jobs/{id}/input", body=body, wait=_POLL)
                rest, offset, ended = rest[taken["next"] - offset :], taken["next"], taken["ended"]

    def output(self, id: str, follow: bool = True, seconds: float = math.inf) -> Iterator[Chunk]:
        """The job's output until its end; without `follow` what is there now. TIMED_OUT when the job has not ended
        after `seconds`."""
        offset, deadline = 0, time.monotonic() + seconds
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            found = self.get(f"/v1/jobs/{id}/output", offset=offset, wait=min(_POLL, remaining) if follow else 0)
            for chunk in found["chunks"]:
                yield chunk["stream"], chunk["time"], base64.b64decode(chunk["data"])
            offset = found["next"]
            if found["end"] or not (follow or found["chunks"]):
                return
            if not remaining:
                raise Failed(Code.TIMED_OUT, f"{id} did not end within {seconds:g} s", "", f"wherry job cancel {id}")

    def cancel_job(self, id: str, progress: Progress = quiet, seconds: float = math.inf) -> Job:
        """Ends a job and returns it when all its processes are gone. TIMED_OUT when some are left after `seconds`."""
        operation = self._begin("DELETE", f"/v1/jobs/{id}")
        return models.Job.model_validate((self.wait(operation.id, progress, seconds).result or {})["job"])

    # Profiles and balancing.

    def profile(self, job: str, seconds: float = 3.0) -> Profile:
        """Measures a job for `seconds`."""
        return models.Profile(**self.get(f"/v1/jobs/{job}/profile", seconds=seconds))

    def balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> BalancePlan:
        """Measures and plans the moves of one cluster or of all; moves nothing."""
        body = {"cluster": cluster, "seconds": seconds, "remaining": remaining}
        return models.BalancePlan(**self._transport.ask("POST", "/v1/balance", body=body)["plan"])

    def begin_balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> Operation:
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
            for event in self.events(after, _POLL):
                after = event.id
                yield event

    def get(self, path: str, **query: Any) -> Any:
        """The JSON that a path answers."""
        return self._transport.ask("GET", path, **query)
