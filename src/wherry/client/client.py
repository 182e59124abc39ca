"""The service's nouns as Python: every method is one request, or one operation waited for.

Records come back as records. Clusters, fabrics and plans come back as the JSON they travel as, as a spec inside
refuses the bare numbers that it is written with there.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from wherry.base.errors import Code, Failed, Refused, from_dict
from wherry.base.paths import Instance, instance
from wherry.client import who
from wherry.client.transport import Transport
from wherry.model.balance import BalancePlan
from wherry.model.objects import Event, Host, Image, Job, Move, Node, Operation, OperationState, Prediction
from wherry.model.owner import Owner
from wherry.model.profile import Profile

Progress = Callable[[str], None]
_POLL = 20.0
"""Seconds of one long poll."""
Chunk = tuple[str, float, bytes]
"""Stream (`stdout` or `stderr`), seconds since the epoch, bytes."""


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
                if operation.state == OperationState.DONE:
                    return operation
                if operation.state != OperationState.RUNNING:
                    raise from_dict(operation.error or {})
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = self.interrupted = True
                progress("cancelling; Ctrl-C again leaves it running")
                self._cancel_quietly(id, progress)
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
        body = {"spec": spec, "source": source, "dry_run": True, "owner": who.owner().model_dump()}
        found: dict[str, Any] = self._transport.ask("POST", "/v1/clusters", body=body)
        return found

    def up(self, spec: dict[str, Any], source: str = "the cluster file", owner: Owner | None = None) -> Operation:
        """Begins to make, change or repair a cluster; the result has `cluster`, `nodes`, `plan`.

        It belongs to `owner`, by default to the user of this process, and its nodes may write to the owner's `cwd`.
        """
        body = {"spec": spec, "source": source, "owner": (owner or who.owner()).model_dump()}
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

    # Tiles.

    def tiles(self) -> dict[str, Any]:
        """The tiles and their processes. NOT_FOUND when none are up."""
        found: dict[str, Any] = self._get("/v1/tiles")
        return found

    def tiles_up(self, spec: dict[str, Any], source: str) -> dict[str, Any]:
        """Starts tiles as a file says."""
        body = {"spec": spec, "source": source}
        found: dict[str, Any] = self._transport.ask("PUT", "/v1/tiles", body=body)
        return found

    def tiles_down(self) -> dict[str, Any]:
        """Ends them; what there was."""
        found: dict[str, Any] = self._transport.ask("DELETE", "/v1/tiles")
        return found

    def start_on_tile(self, program: str, words: list[str], tile: int | None = None) -> dict[str, Any]:
        """Starts a program, an absolute path at the service; its process."""
        body = {"program": program, "words": words, "tile": tile}
        found: dict[str, Any] = self._transport.ask("POST", "/v1/tiles/processes", body=body)
        return found

    def move_tile_process(self, process: int, tile: int, mode: str = "precopy") -> dict[str, Any]:
        """Moves a process; what it cost, durations in nanoseconds."""
        body = {"tile": tile, "mode": mode}
        found: dict[str, Any] = self._transport.ask("POST", f"/v1/tiles/processes/{process}/moves", body=body)
        return found

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
        given. `way` has what a virtual machine can choose (see `wherry.model.way`). `fault` is for tests (see
        `wherry.move.faults`)."""
        body: dict[str, object] = {"node": node, "host": host, "max_rounds": max_rounds, "fault": fault}
        body["bandwidth"] = bandwidth
        if way is not None:
            body["way"] = way
        return Operation(**self._transport.ask("POST", "/v1/moves", body=body))

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
        owner: Owner | None = None,
    ) -> Job:
        """Starts a program on a cluster; returns when it was started. Its environment is `env`, or ours.

        With `input` it reads what `feed` gives it; without, nothing. `expected` is how many seconds it should take.
        Its ranks run as `owner`, by default the user of this process, in the owner's `cwd`.
        """
        owner = owner or who.owner()
        body = {
            "cluster": cluster,
            "argv": argv,
            "ranks": ranks,
            "mpi": mpi,
            "env": who.environment(owner) if env is None else env,
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
                taken = self._transport.ask("PUT", f"/v1/jobs/{id}/input", body=body, again=True, wait=_POLL)
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
