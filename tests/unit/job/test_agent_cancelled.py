"""A wait for a node's agent is cancelled at once, whatever the agent does or leaves undone meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Container
from io import BytesIO

import pytest
from test_agent_client import KEY, OWNER, agent, greet

import waiting
from ports import reserved
from wherry.base.errors import Code, Failed
from wherry.job import agent_client
from wherry.job.agent_client import AgentEndpoint, AgentError

LARGE = 64 << 20  # bytes: more than a connection that nobody reads takes
said, over = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "_CHECK_SECONDS", 0.01)
    said.clear()
    over.clear()


def cancelled_when_it_stands(done: Callable[[], int] = lambda: 0) -> Callable[[], None]:
    """A check that raises at the tenth look in a row, after the agent's last word, that finds no more done."""
    looks: list[int] = []

    def check() -> None:
        if said.is_set():
            looks.append(done())
        if len(looks) >= 10 and len(set(looks[-10:])) == 1:
            raise Failed(Code.CANCELLED, "run was cancelled")

    return check


def silent(_connection: socket.socket) -> None:
    said.set()
    over.wait()


def starts_and_never_ends(connection: socket.socket) -> None:
    connection.sendall(greet(connection).close(b"S", b""))
    said.set()
    while connection.recv(1 << 20):
        continue


def starts_and_never_reads(connection: socket.socket) -> None:
    connection.sendall(greet(connection).close(b"S", b""))
    said.set()
    over.wait()


@pytest.mark.parametrize(
    ("say", "size", "taken"),
    [(silent, 1, [0]), (starts_and_never_ends, 1 << 20, [1 << 20]), (starts_and_never_reads, LARGE, range(1, LARGE))],
)
def test_it_is_cancelled_at_once(say: Callable[[socket.socket], None], size: int, taken: Container[int]) -> None:
    data = BytesIO(bytes(size))
    with agent(say) as endpoint:
        try:
            with pytest.raises(Failed, match="run was cancelled"):
                endpoint.run(["x"], OWNER, {}, waiting.bound(), data, cancelled_when_it_stands(data.tell))
        finally:
            over.set()
    assert data.tell() in taken


def test_a_node_that_does_not_accept_is_given_up_at_once() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queued = [socket.socket() for _ in range(4)]
        said.set()
        try:
            for one in queued:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, full.getsockname()[1])
            with pytest.raises(Failed, match="run was cancelled"):
                endpoint.run(["x"], OWNER, {}, waiting.bound(), check=cancelled_when_it_stands())
            with pytest.raises(AgentError, match="no answer within 0 s"):
                endpoint.run(["x"], OWNER, {}, 0.05)
        finally:
            for one in queued:
                one.close()


def test_a_refused_connection_has_its_reason() -> None:
    with reserved() as port, pytest.raises(AgentError, match="Connection refused"):
        AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, port).run(["x"], OWNER, {}, 5.0)
