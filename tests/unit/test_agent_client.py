"""The client of a node's agent whose machine its user has changed: all that it says ends in time, in a WireError."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner

HELLO = b"C" + struct.pack(">I", 64) + b"0" * 64
OWNER = Owner(uid=0, gid=0, home="/", cwd="/")


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", len(payload)) + payload


@contextmanager
def agent(say: Callable[[socket.socket], None]) -> Iterator[AgentEndpoint]:
    """One that says this to whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        say(connection)
            except OSError:  # it is over
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield AgentEndpoint("/proc/self/ns/net", "127.0.0.1", "0" * 64, server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    "said",
    [
        frame(b"S", b"") + frame(b"X", b"exit \xff"),
        frame(b"S", b"") + frame(b"X", b"exit " + b"9" * 5000),
        frame(b"S", b"") + frame(b"X", b"exit"),
        frame(b"S", b"\xff") + frame(b"X", b"exit -1"),
        frame(b"\xff", b"\xff"),
        frame(b"P", b"\xff"),
        frame(b"P", b"9" * 5000),
        b"X\xff\xff\xff\xff",
    ],
)
@pytest.mark.parametrize("hello", [HELLO, frame(b"C", b""), frame(b"C", b"\xff" * 64), b""])
def test_what_is_no_answer(hello: bytes, said: bytes) -> None:
    with agent(lambda connection: connection.sendall(hello + said)) as endpoint:
        with pytest.raises(AgentError):
            endpoint.run(["x"], OWNER, {}, 5.0)
        with pytest.raises(AgentError):
            endpoint.ping(0.2)


def test_who_says_a_byte_now_and_then_is_not_waited_for() -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        for byte in HELLO + frame(b"S", b"") + frame(b"O", b"x" * 10_000):
            if over.wait(0.05):
                return
            connection.sendall(bytes([byte]))

    with agent(drip) as endpoint:
        began = time.monotonic()
        with pytest.raises(AgentError, match="no answer within"):
            endpoint.run(["x"], OWNER, {}, 0.5)
        assert time.monotonic() - began < 60  # of 500 s
        over.set()
