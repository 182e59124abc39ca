"""The service's nouns as Python: every method is one request, or one operation waited for.

Records come back as records. Clusters, fabrics and plans come back as the JSON they travel as, as a spec inside
refuses the bare numbers that it is written with there.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wherry.base.errors import Code, Failed, Refused, from_dict
from wherry.base.paths import Instance, instance
from wherry.client import identity
from wherry.client.transport import Transport
from wherry.model.balance import BalancePlan
from wherry.model.objects import Event, Host, Image, Job, Move, Node, Operation, OperationState, Prediction
from wherry.model.profile import Profile

Progress = Callable[[str], None]
_POLL = 20.0
"""Seconds of one long poll."""
Chunk = tuple[str, float, bytes]
"""Stream (`stdout` or `stderr`), seconds since the epoch, bytes."""


def _is_done(operation: Operation) -> bool:
    """False while it runs; the error of one that did not end well is raised."""
    if operation.state not in (OperationState.RUNNING, OperationState.DONE):
        raise from_dict(operation.error or {})
    return operation.state == OperationState.DONE


def quiet(_text: str) -> None:
    """Progress for those who do not look."""


class Client:
    """A connection to the service of this instance; the daemon is started when none runs."""

    interrupted = False
    """True when Ctrl-C came while an operation was waited for, however that ended."""

    def __init__(self, place: Instance | None = None, start: bool = True) -> None:
        self._transport = Transport(place or instance(), start)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    # Operations.

    def operations(self, running: bool = False) -> list[Operation]:
        """Oldest first."""
        return [Operation(**data) for data in self._get("/v1/operations", running=running)]

    def operation(self, id: str) -> Operation:
        """One operation."""
        return Operation(**self._get(f"/v1/operations/{id}")["operation"])

    def cancel(self, id: str) -> Operation:
        """Asks an operation to end."""
        return Operation(**self._transport.ask("POST", f"/v1/operations/{id}/cancel"))

    def wait(self, id: str, progress: Progress = quiet, seconds: float = math.inf) -> Operation:
        """Waits until the operation is done; its error is raised. Ctrl-C cancels it, a second one leaves it alone.

        TIMED_OUT when it is not done in so many seconds; it is cancelled then, and may still be ending.
        """
        after, interrupted, deadline = 0, False, time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:  # all of it: wherever Ctrl-C strikes, the operation is told
                found = self._get(f"/v1/operations/{id}", wait=min(_POLL, left), after=after)
                after = found["next"]
                for line in found["lines"]:
                    progress(line)
                operation = Operation(**found["operation"])
                if _is_done(operation):
                    return operation
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = self.interrupted = True
                self._cancel_quietly(id, progress)  # first: a terminal that has gone takes no word
                progress("cancelling; Ctrl-C again leaves it running")
                continue
            if not left:
                self._cancel_quietly(id, progress)
                what = f"{operation.kind} did not end within {seconds:g} s"
                raise Failed(Code.TIMED_OUT, what, "it was told to end", f"wherry op show {id}")

    def _cancel_quietly(self, id: str, progress: Progress) -> None:
        try:
            self.cancel(id)
        except Refused as error:
            progress(str(error))

    # The fabric and its hosts.

    def fabric(self) -> dict[str, Any]:
        """`fabric` (its spec), `up`, `hosts`. NOT_FOUND when there is none."""
        found: dict[str, Any] = self._get("/v1/fabric")
        return found

    def fabric_up(self, spec: dict[str, Any], source: str) -> Operation:
        """Begins to make a fabric."""
        return Operation(**self._transport.ask("PUT", "/v1/fabric", body={"spec": spec, "source": source}))

    def fabric_down(self) -> Operation:
        """Begins to remove the fabric."""
        return Operation(**self._transport.ask("DELETE", "/v1/fabric"))

    def hosts(self) -> list[Host]:
        """The hosts as they are now."""
        return [Host(**data) for data in self._get("/v1/hosts")]

    def drain(self, host: str) -> Operation:
        """Begins to move everything off a host."""
        return Operation(**self._transport.ask("POST", f"/v1/hosts/{host}/drain"))

    def restore(self, host: str) -> Operation:
        """Begins to put back what a drain took off a host."""
        return Operation(**self._transport.ask("POST", f"/v1/hosts/{host}/restore"))

    def declare_lost(self, host: str) -> Operation:
        """Begins to declare a silent host lost."""
        return Operation(**self._transport.ask("POST", f"/v1/hosts/{host}/lost"))

    def links(self, measure: bool = False) -> list[dict[str, Any]]:
        """Each with `link`, `declared`, `measured`, `there`, `back`. `measure` fills each for seconds."""
        found: list[dict[str, Any]] = self._get("/v1/links", measure=measure)
        return found

    def set_link(self, one: str, other: str, change: dict[str, str], one_way: bool = False) -> Operation:
        """Begins to change a link: latency, jitter, bandwidth, loss as in a fabric file, and overlay."""
        body = {**change, "one_way": one_way}
        return Operation(**self._transport.ask("PATCH", f"/v1/links/{one}/{other}", body=body))

    # Clusters and nodes.

    def clusters(self) -> list[dict[str, Any]]:
        """By name."""
        found: list[dict[str, Any]] = self._get("/v1/clusters")
        return found

    def plan(self, spec: dict[str, Any], source: str) -> dict[str, Any]:
        """`plan` and its `text`: what `up` would do."""
        body = {"spec": spec, "source": source, "dry_run": True, "owner": identity.owner().model_dump()}
        found: dict[str, Any] = self._transport.ask("POST", "/v1/clusters", body=body)
        return found

    def up(self, spec: dict[str, Any], source: str = "the cluster file") -> Operation:
        """Begins to make, change or repair a cluster; the result has `cluster`, `nodes`, `plan`."""
        body = {"spec": spec, "source": source, "owner": identity.owner().model_dump()}
        return Operation(**self._transport.ask("POST", "/v1/clusters", body=body))

    def down(self, name: str) -> Operation:
        """Begins to remove a cluster."""
        return Operation(**self._transport.ask("DELETE", f"/v1/clusters/{name}"))

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        return [Node(**data) for data in self._get("/v1/nodes", cluster=cluster)]

    def node(self, name: str) -> dict[str, Any]:
        """`node`, `usage` and `moves`."""
        found: dict[str, Any] = self._get(f"/v1/nodes/{name}")
        return found

    def console(self, node: str) -> str:
        """The end of what a virtual machine's kernel said on its console."""
        text: str = self._get(f"/v1/nodes/{node}/console")["text"]
        return text

    # Images of virtual machines.

    def images(self) -> list[Image]:
        """By name."""
        return [Image(**data) for data in self._get("/v1/images")]

    def image(self, name: str) -> Image:
        """One image."""
        return Image(**self._get(f"/v1/images/{name}"))

    def build_image(self, name: str, programs: list[str]) -> Operation:
        """Begins to make an image; `programs` are absolute paths at the service. The result has `image`."""
        return Operation(**self._transport.ask("PUT", f"/v1/images/{name}", body={"programs": programs}))

    def remove_image(self, name: str) -> Image:
        """Removes an image."""
        return Image(**self._transport.ask("DELETE", f"/v1/images/{name}"))

    # Tiles. Acts on them take milliseconds: each is one request, answered when its operation has ended.

    def tiles(self) -> dict[str, Any]:
        """`tiles`, `processes`, and the `hosts` of the fabric that they are on. NOT_FOUND when none are up."""
        found: dict[str, Any] = self._get("/v1/tiles")
        return found

    def tiles_up(
        self, spec: dict[str, Any], source: str, *, balance: bool = False, build: str = "separated"
    ) -> dict[str, Any]:
        """Starts tiles as a file says; what there is then, and `servers`, their processes by name."""
        body = {"spec": spec, "source": source, "balance": balance, "build": build}
        return self._tile_act("PUT", "/v1/tiles", body)

    def tiles_down(self) -> dict[str, Any]:
        """Ends them; what there was, and what tiles had `said` of faults."""
        return self._tile_act("DELETE", "/v1/tiles")

    def start_on_tile(
        self, program: str, words: list[str], tile: int | None = None, ranks: int = 1
    ) -> list[dict[str, Any]]:
        """Starts a program, an absolute path at the service, once or as ranks; `process` and `tile` of each."""
        body = {"program": program, "words": words, "tile": tile, "ranks": ranks}
        started: list[dict[str, Any]] = self._tile_act("POST", "/v1/tiles/processes", body)["processes"]
        return started

    def tile_output(self, processes: Sequence[int], to_end: bool = False) -> Iterator[dict[str, Any]]:
        """`output` of processes as they say it, then `ended` or `lost` of each. With `to_end` they are asked for when
        all have ended, so that nothing is told while they compute. FAILED when they said more than was kept."""
        offsets = dict.fromkeys(processes, 0)
        while offsets:
            of = [f"{process}:{offset}" for process, offset in offsets.items()]
            for event in self._get("/v1/tiles/output", of=of, wait=_POLL, to_end=to_end):
                process = event["process"]
                if event["event"] != "output":
                    del offsets[process]
                elif event["from"] > offsets[process]:
                    what = f"process {process} says more than is kept of it"
                    why = f"{event['from'] - offsets[process]} bytes of its output were dropped"
                    raise Failed(Code.FAILED, what, why, "have it say less, or less at once")
                else:
                    offsets[process] += len(event["text"])
                yield event

    def move_tile_process(self, process: int, tile: int, mode: str = "precopy") -> dict[str, Any]:
        """Moves a process; what it cost, durations in nanoseconds."""
        return self.move_tile_processes({process: tile}, mode)[0]

    def move_tile_processes(self, tiles: dict[int, int], mode: str = "precopy") -> list[dict[str, Any]]:
        """Moves processes to a tile each, begun together; what each cost, in the order in which they ended."""
        moves: list[dict[str, Any]] = self._tile_act("POST", "/v1/tiles/moves", {"tiles": tiles, "mode": mode})["moves"]
        return moves

    def _tile_act(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        operation = Operation(**self._transport.ask(method, path, body=body, wait=_POLL))
        return (operation if _is_done(operation) else self.wait(operation.id)).result or {}

    # Moves.

    def predict(self, node: str, host: str, bandwidth: str | None = None) -> Prediction:
        """What a move would cost."""
        body = {"node": node, "host": host, "bandwidth": bandwidth, "dry_run": True}
        return Prediction(**self._transport.ask("POST", "/v1/moves", body=body)["predicted"])

    def begin_move(
        self,
        node: str,
        host: str,
        max_rounds: int | None = None,
        fault: str | None = None,
        bandwidth: str | None = None,
        way: dict[str, object] | None = None,
    ) -> Operation:
        """Begins a move; the result has `move`. It sends at most `bandwidth`, for instance `500Mbit/s`, if one is
        given. `way` has what a virtual machine can choose (see `wherry.model.migration_parameters`). `fault` is for
        tests (see `wherry.move.faults`)."""
        body: dict[str, object] = {"node": node, "host": host, "max_rounds": max_rounds, "bandwidth": bandwidth}
        if way is not None:
            body["way"] = way
        headers = {"Wherry-Fault": fault} if fault else {}
        return Operation(**self._transport.ask("POST", "/v1/moves", body=body, headers=headers))

    def move(self, node: str, host: str, progress: Progress = quiet) -> Move:
        """Moves a node and returns the record."""
        return self.moved(self.wait(self.begin_move(node, host).id, progress))

    @staticmethod
    def moved(operation: Operation) -> Move:
        """The record in the result of a move's operation."""
        return Move.model_validate((operation.result or {})["move"])

    def moves(self) -> list[Move]:
        """Oldest first."""
        return [Move(**data) for data in self._get("/v1/moves")]

    # Jobs.

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        return [Job(**data) for data in self._get("/v1/jobs", cluster=cluster)]

    def job(self, id: str) -> Job:
        """One job."""
        return Job(**self._get(f"/v1/jobs/{id}"))

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
    ) -> Job:
        """Starts a program on a cluster; returns when it was started. Its environment is `env`, or ours.

        With `input` it reads what `feed` gives it; without, nothing. `expected` is how many seconds it should take.
        """
        owner = identity.owner()
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
        operation = Operation(**self._transport.ask("POST", "/v1/jobs", body=body))
        return Job.model_validate((self.wait(operation.id, progress).result or {})["job"])

    def feed(self, id: str, read: Callable[[], bytes]) -> None:
        """Gives rank 0 what `read` returns, until that is nothing: the end. WRONG_STATE when the job is over before."""
        offset, ended = 0, False
        while not ended:
            rest = read()
            last = not rest
            while rest or (last and not ended):
                body = {"offset": offset, "data": base64.b64encode(rest).decode(), "end": last}
                taken = self._transport.ask("PUT", f"/v1/jobs/{id}/input", body=body, wait=_POLL)
                rest, offset, ended = rest[taken["next"] - offset :], taken["next"], taken["ended"]

    def output(self, id: str, follow: bool = True, seconds: float = math.inf) -> Iterator[Chunk]:
        """What the job writes, until its end; without `follow` until now. TIMED_OUT when it writes on after `seconds`,
        or is silent then."""
        offset, deadline = 0, time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self._get(f"/v1/jobs/{id}/output", offset=offset, wait=min(_POLL, left) if follow else 0)
            for chunk in found["chunks"]:
                yield chunk["stream"], chunk["time"], base64.b64decode(chunk["data"])
            offset = found["next"]
            if found["end"] or not (follow or found["chunks"]):
                return
            if not left:
                raise Failed(Code.TIMED_OUT, f"{id} did not end within {seconds:g} s", "", f"wherry job cancel {id}")

    def cancel_job(self, id: str, progress: Progress = quiet, seconds: float = math.inf) -> Job:
        """Ends a job and returns it when nothing of it is left. TIMED_OUT when something is after `seconds`."""
        operation = Operation(**self._transport.ask("DELETE", f"/v1/jobs/{id}"))
        return Job.model_validate((self.wait(operation.id, progress, seconds).result or {})["job"])

    # Profiles and balancing.

    def profile(self, job: str, seconds: float = 3.0) -> Profile:
        """What a job does in the next seconds."""
        return Profile(**self._get(f"/v1/jobs/{job}/profile", seconds=seconds))

    def balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> BalancePlan:
        """What would be moved, of one cluster or of all."""
        body = {"cluster": cluster, "seconds": seconds, "remaining": remaining}
        return BalancePlan(**self._transport.ask("POST", "/v1/balance", body=body)["plan"])

    def begin_balance(self, cluster: str | None, seconds: float = 3.0, remaining: float | None = None) -> Operation:
        """Begins to measure, plan and move; the result has `plan` and `moves`."""
        body = {"cluster": cluster, "seconds": seconds, "remaining": remaining, "apply": True}
        return Operation(**self._transport.ask("POST", "/v1/balance", body=body))

    def auto_balance(self, on: bool | None = None) -> bool:
        """Whether the daemon balances by itself; sets it when `on` says so."""
        if on is None:
            return bool(self._get("/v1/balance")["auto"])
        return bool(self._transport.ask("PUT", "/v1/balance", body={"auto": on})["auto"])

    # Events.

    def events(self, after: int = 0, wait: float = 0.0) -> list[Event]:
        """Events after number `after`, as soon as there are some."""
        return [Event(**data) for data in self._get("/v1/events", after=after, wait=wait)]

    def follow_events(self, after: int = 0) -> Iterator[Event]:
        """Every event from `after` on, for ever."""
        while True:
            for event in self.events(after, _POLL):
                after = event.id
                yield event

    def _get(self, path: str, **query: Any) -> Any:
        return self._transport.ask("GET", path, **query)
