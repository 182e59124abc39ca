"""Whoever waits for a node's agent is cancelled at once, whatever the agent does or leaves undone meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from io import BytesIO

import pytest
from test_agent_client import KEY, OWNER, agent, greet

from wherry.base.errors import Code, Failed
from wherry.job.agent_client import AgentEndpoint, AgentError

over = threading.Event()


def silent(_connection: socket.socket) -> None:
    over.wait(20)


def starts_and_never_ends(connection: socket.socket) -> None:
    connection.sendall(greet(connection).close(b"S", b""))
    while not over.wait(0.01) and connection.recv(1 << 16):
        continue


def starts_and_never_reads(connection: socket.socket) -> None:
    connection.sendall(greet(connection).close(b"S", b""))
    over.wait(20)


@pytest.mark.parametrize("say", [silent, starts_and_never_ends, starts_and_never_reads])
def test_it_is_cancelled_at_once(say) -> None:
    over.clear()
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.5:
            raise Failed(Code.CANCELLED, "run was cancelled")

    with agent(say) as endpoint:
        try:
            with pytest.raises(Failed, match="run was cancelled"):
                endpoint.run(["x"], OWNER, {}, 15.0, BytesIO(bytes(64 << 20)), check)
            assert time.monotonic() - began < 5
        finally:
            over.set()


def test_a_node_that_does_not_accept_is_given_up_at_once() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, full.getsockname()[1])
            began = time.monotonic()

            def check() -> None:
                if time.monotonic() - began > 0.5:
                    raise Failed(Code.CANCELLED, "run was cancelled")

            with pytest.raises(Failed, match="run was cancelled"):
                endpoint.run(["x"], OWNER, {}, 15.0, check=check)
            with pytest.raises(AgentError, match="no answer within 0 s"):
                endpoint.run(["x"], OWNER, {}, 0.2)
        finally:
            for one in waiting:
                one.close()


def test_a_refused_connection_has_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(AgentError, match="Connection refused"):
        AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, port).run(["x"], OWNER, {}, 5.0)
