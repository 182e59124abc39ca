"""A daemon under load: a fabric in memory, a history, and many clients that ask it over its socket.

Used by `scripts/bench-service` and `scripts/kill-service`. Clients are coroutines of this process that speak HTTP by
themselves, as a library would take more of the processors than the daemon.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wherry.base.paths import Instance
from wherry.model.records import Event, Move, Operation, OperationState, Phase
from wherry.store import Store, tables

_READY_SECONDS = 300.0
_ROWS = 500


def fabric(hosts: int) -> dict[str, Any]:
    """A fabric in memory, of two sites."""
    made = [{"name": f"h{n}", "site": "ab"[n % 2], "cores": 64, "memory": "256GiB"} for n in range(hosts)]
    return {
        "kind": "fabric", "version": 1, "name": "load", "driver": "fake", "sites": [{"name": "a"}, {"name": "b"}],
        "hosts": made, "links": [{"between": ["a", "b"]}],
    }  # fmt: skip


def cluster(name: str, nodes: int) -> dict[str, Any]:
    """A cluster file."""
    return {"name": name, "nodes": nodes, "cpus": 0.5, "memory": "256MiB"}


def add_history(instance: Instance, clusters: int) -> None:
    """Rows as of so many clusters that were made and removed: operations, events, moves. No daemon runs."""
    store, now = Store(instance.database_file, instance.keys_file), time.time()
    operations, events = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(clusters):
        name, at = f"old-{number}", now - (clusters - number) / 1000
        one = Operation(
            id=f"op-old{number}", kind="up", target=name, state=OperationState.DONE, created=at, ended=at, by="ann"
        )
        row = {"state": "done", "created": at, "record": one.model_dump_json(), "number": number + 1, "uid": 0}
        operations.append({"id": one.id, **row, "key": "", "owner": None})
        event = Event(time=at, kind="cluster.up", target=name, text=f"{name} is up: 10 nodes", by="ann")
        events.append({**event.model_dump(exclude={"id", "data"}), "data": "{}"})
    with store.database.write() as connection:
        for table, rows in ((tables.operations, operations), (tables.events, events)):
            for begin in range(0, len(rows), _ROWS):
                connection.execute(table.insert(), rows[begin : begin + _ROWS])
    for number in range(min(clusters, 1000)):
        at = now - 1000 + number
        store.put_move(
            Move(
                id=f"move-old{number}", node=f"old-{number}-0", cluster=f"old-{number}", source="h0", destination="h1",
                phase=Phase.DONE, created=at, ended=at + 1, phases={"freeze": 0.1},
            )
        )  # fmt: skip
    store.close()


@dataclass
class Daemon:
    """A daemon of an instance of its own, as a child of this process."""

    instance: Instance
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts it, and returns the seconds until it answered."""
        begun = time.monotonic()
        environment = {**os.environ, "WHERRY_INSTANCE": self.instance.name}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wherry.service.daemon", "serve"], env=environment, stdin=subprocess.DEVNULL
        )
        while not self.instance.socket.exists() or not self._answers():
            if self.process.poll() is not None or time.monotonic() - begun > _READY_SECONDS:
                raise SystemExit(f"the daemon did not start: {self.instance.state / 'log'}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def _answers(self) -> bool:
        try:
            return asyncio.run(Client(self.instance).ask("GET", "/healthz"))[0] == 200
        except OSError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal."""
        if self.process:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None


@contextmanager
def daemon(name: str) -> Iterator[Daemon]:
    """A daemon's instance; all of it is removed in the end."""
    made = Daemon(Instance(name))
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)
        environment = {**os.environ, "WHERRY_INSTANCE": name}
        subprocess.run([sys.executable, "-P", "-m", "wherry.service.daemon", "sweep"], env=environment, check=False)


class Client:
    """One client: a connection that is kept, and one request at a time."""

    def __init__(self, instance: Instance) -> None:
        self._path = str(instance.socket)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Status and JSON of the answer. OSError when the connection ends before it."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        head += "Content-Type: application/json\r\n" + (f"Idempotency-Key: {key}\r\n" if key else "")
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=1 << 24)
            reader, writer = self._streams
            writer.write(head.encode() + b"\r\n" + data)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(int(line[15:]) for line in answer.split("\r\n") if line.lower().startswith("content-length:"))
            content = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError(str(error)) from None
        return int(answer.split(" ", 2)[1]), json.loads(content) if content.startswith((b"{", b"[")) else content

    async def events(self, seen: Callable[[dict[str, Any]], object]) -> None:
        """Calls `seen` for each event of the stream, until it ends."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 24)
        try:
            writer.write(b"GET /v1/events/stream HTTP/1.1\r\nHost: x\r\n\r\n")
            async for line in reader:
                if line.startswith(b"data: "):
                    seen(json.loads(line[6:]))
        finally:
            writer.close()

    def close(self) -> None:
        """Closes the connection."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


@dataclass
class Samples:
    """Seconds of requests, by their names."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    async def time(self, name: str, asked: Awaitable[tuple[int, Any]]) -> Any:
        """The answer of a request, whose seconds are kept."""
        begun = time.perf_counter()
        status, answer = await asked
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)
        if status >= 400:
            told = f"{name}: {answer.get('code', status) if isinstance(answer, dict) else status}"
            self.refused[told] = self.refused.get(told, 0) + 1
        return answer

    def all(self, reads: bool) -> list[float]:
        """Seconds of all reads, or of all writes, sorted."""
        return sorted(s for name, some in self.seconds.items() if name.startswith("GET") == reads for s in some)


def percentile(values: list[float], share: float) -> float:
    """Of sorted values; 0 without any."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


READS: dict[str, Callable[[random.Random], str]] = {
    "clusters": lambda _: "/v1/clusters?limit=50",
    "nodes": lambda chance: f"/v1/nodes?cluster=c{chance.randrange(100)}",
    "node": lambda chance: f"/v1/nodes/c{chance.randrange(100)}-{chance.randrange(10)}",
    "operations": lambda _: "/v1/operations?newest=true&limit=50",
    "operation": lambda chance: f"/v1/operations/op-old{chance.randrange(10_000)}?trail=true",
    "moves": lambda _: "/v1/moves?newest=true&limit=50",
    "events": lambda _: "/v1/events?newest=true&limit=50",
    "jobs": lambda _: "/v1/jobs?limit=50",
}


@dataclass
class Accepted:
    """Operations that a daemon answered with 202, by their idempotency keys, and requests without an answer."""

    operations: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, tuple[str, str, Any]] = field(default_factory=dict)


async def write_on(instance: Instance, number: int, accepted: Accepted, going: Callable[[], bool]) -> None:
    """One client that makes and removes a cluster, again and again, whatever becomes of the daemon."""
    client, name, count = Client(instance), f"k{number}", 0
    while going():
        count += 1
        key = f"{name}-{count}-{time.monotonic_ns()}"
        asked = [("POST", "/v1/clusters", {"spec": cluster(name, 2)}), ("DELETE", f"/v1/clusters/{name}", None)]
        method, path, body = asked[count % 2 == 0]
        accepted.unanswered[key] = (method, path, body)
        try:
            status, answer = await client.ask(method, path, body, key)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        del accepted.unanswered[key]
        if status == 202:
            accepted.operations[key] = answer["id"]
        await asyncio.sleep(0.01)
    client.close()


async def lost(instance: Instance, accepted: Accepted) -> list[str]:
    """The accepted operations that are not there, have not ended, or are not those of their key."""
    client, wrong = Client(instance), list[str]()
    for key, id in accepted.operations.items():
        status, found = await client.ask("GET", f"/v1/operations/{id}?trail=true&wait=30")
        if status != 200:
            wrong.append(f"{id}: {status}")
        elif found["operation"]["state"] == "running" or found["operation"]["key"] != key:
            wrong.append(f"{id}: {found['operation']['state']}, key {found['operation']['key']}")
        elif [step["kind"] for step in found["trail"]][:: max(1, len(found["trail"]) - 1)] != ["begin", "end"]:
            wrong.append(f"{id}: its trail is not whole")
    client.close()
    return wrong


async def begun_twice(instance: Instance) -> list[str]:
    """Idempotency keys with more than one operation."""
    client, seen, twice, path = Client(instance), set[str](), list[str](), "/v1/operations?limit=10000"
    for one in (await client.ask("GET", path))[1]:
        if one["key"] and one["key"] in seen:
            twice.append(one["key"])
        seen.add(one["key"])
    client.close()
    return twice


def kill_again_and_again(name: str, times: int, clients: int, seed: int, say: Callable[[str], object]) -> Accepted:
    """Kills a daemon under load at random moments and starts the next; AssertionError when an accepted operation is
    lost, or a request that is repeated with its key begins a second one."""
    chance, accepted = random.Random(seed), Accepted()
    with daemon(name) as made:
        made.start()
        client = Client(made.instance)
        answer = asyncio.run(client.ask("PUT", "/v1/fabric", {"spec": fabric(20)}))[1]
        asyncio.run(Client(made.instance).ask("GET", f"/v1/operations/{answer['id']}?wait=30"))
        for number in range(times):
            before, after, pause = len(accepted.operations), chance.randint(1, 40), chance.uniform(0, 0.2)
            asyncio.run(_until_killed(made, clients, before + after, pause, accepted))
            took = made.start()
            wrong = asyncio.run(lost(made.instance, accepted))
            new = len(accepted.operations) - before
            say(f"{number + 1}: {new} accepted, killed; next daemon after {took:.1f} s, lost: {len(wrong)}")
            assert not wrong, wrong
            asyncio.run(_repeat(made.instance, accepted))
        twice = asyncio.run(begun_twice(made.instance))
        assert not twice, twice
        assert not asyncio.run(lost(made.instance, accepted))
        made.end()
    return accepted


async def _until_killed(made: Daemon, clients: int, number: int, pause: float, accepted: Accepted) -> None:
    """Kills it so many seconds after a number of operations were accepted, while the clients ask on."""
    dead = asyncio.Event()
    users = [write_on(made.instance, number, accepted, lambda: not dead.is_set()) for number in range(clients)]
    tasks = [asyncio.create_task(one) for one in users]
    while len(accepted.operations) < number:
        await asyncio.sleep(0.005)
    await asyncio.sleep(pause)
    made.end(signal.SIGKILL)
    dead.set()
    await asyncio.gather(*tasks)


async def _repeat(instance: Instance, accepted: Accepted) -> None:
    """Repeats the requests without an answer, as a client does; their keys find operations that had begun."""
    client = Client(instance)
    for key, (method, path, body) in list(accepted.unanswered.items()):
        status, answer = await client.ask(method, path, body, key)
        del accepted.unanswered[key]
        if status == 202:
            accepted.operations[key] = answer["id"]
    client.close()
