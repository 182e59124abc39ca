"""The client of a node's agent whose machine its user has changed: every call ends in time, in a WireError."""

from __future__ import annotations

import hmac
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from types import SimpleNamespace

import pytest
from fakeclock import Clock

import waiting
from ports import reserved
from wherry.base.errors import Code, Failed
from wherry.job import agent_client
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.job.sealed_frames import Seal
from wherry.model.owner import Owner

KEY = "0" * 64
NONCE = b"0" * 32
CHALLENGE = b"\3" + NONCE
OWNER = Owner(uid=0, gid=0, home="/", cwd="/")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "time", Clock())


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack(">I", len(payload)) + payload


def derived(secret: bytes, info: str) -> bytes:
    return hmac.digest(secret, f"wherry 3 {info}".encode() + b"\1", "sha256")


def greet(connection: socket.socket) -> Seal:
    """The agent's part of the handshake (native/include/wherry/handshake.h); how it seals from then on."""
    connection.sendall(frame(b"C", CHALLENGE))
    hello = connection.recv(5 + 65, socket.MSG_WAITALL)
    secret = hmac.digest(NONCE + hello[6:38], KEY.encode(), "sha256")
    assert hello[:6] == b"H" + struct.pack(">I", 65) + b"\3" and hello[38:] == derived(secret, "client proof")
    connection.sendall(frame(b"A", derived(secret, "agent proof")))
    return Seal(derived(secret, "agent to client"))


@contextmanager
def agent(say: Callable[[socket.socket], None]) -> Iterator[AgentEndpoint]:
    """An agent that answers each connection by `say`."""
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
        yield AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def refused(say: Callable[[socket.socket], None], reason: str | None = None) -> None:
    with agent(say) as endpoint:
        with pytest.raises(AgentError, match=reason):
            endpoint.run(["x"], OWNER, {}, 5.0)
        with pytest.raises(AgentError, match=reason):
            endpoint.ping(0.2)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "said",
    [
        [(b"S", b""), (b"X", b"exit \xff")],
        [(b"S", b""), (b"X", b"exit " + b"9" * 5000)],
        [(b"S", b""), (b"X", b"exit")],
        [(b"S", b"\xff"), (b"X", b"exit -1")],
        [(b"\xff", b"\xff")],
        [(b"P", b"\xff")],
        [(b"P", b"9" * 5000)],
        b"X\xff\xff\xff\xff",
        frame(b"P", b"1") + bytes(16),
    ],
)
def test_what_is_no_answer(said: list[tuple[bytes, bytes]] | bytes) -> None:
    def say(connection: socket.socket) -> None:
        seal = greet(connection)
        connection.sendall(said if isinstance(said, bytes) else b"".join(seal.close(*words) for words in said))

    refused(say)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (frame(b"C", b""), "another version"),
        (frame(b"C", b"\xff" * 64), "another version"),
        (frame(b"C", b"\4" + NONCE), "another version"),
        (frame(b"F", b"no"), "no"),
        (frame(b"C", CHALLENGE) + frame(b"A", bytes(32)), "does not know the node's key"),
        (frame(b"C", CHALLENGE) + frame(b"P", b"1"), "1"),
        (b"C\xff\xff\xff\xff", "frame of 4294967295 bytes"),
        (b"", "closed the connection|no answer"),
    ],
)
def test_who_is_not_the_node(hello: bytes, reason: str) -> None:
    def say(connection: socket.socket) -> None:
        connection.sendall(hello)
        connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            connection.recv(5 + 65, socket.MSG_WAITALL)

    refused(say, reason)


@pytest.mark.usefixtures("clock")
def test_who_says_a_byte_now_and_then_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes at each look at the clock, and a byte comes before most of them."""
    over, looks = threading.Event(), itertools.count()

    def drip(connection: socket.socket) -> None:
        seal = greet(connection)
        for byte in seal.close(b"S", b"") + seal.close(b"O", b"x" * 10_000):
            if over.wait(0.001):
                return
            connection.sendall(bytes([byte]))

    with agent(drip) as endpoint:
        monkeypatch.setattr(agent_client, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))
        with pytest.raises(AgentError, match="no answer within 50 s"):
            endpoint.run(["x"], OWNER, {}, 50.0)
        assert next(looks) < 60
        over.set()


@pytest.mark.usefixtures("clock")
def test_no_text_about_an_endpoint_has_its_key() -> None:
    assert KEY not in repr(AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY))


# A wait for a node's agent is cancelled at once, whatever the agent does or leaves undone meanwhile.


LARGE = 64 << 20  # bytes: more than a connection that nobody reads takes
said, over = threading.Event(), threading.Event()


@pytest.fixture
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


@pytest.mark.usefixtures("looks_often")
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


@pytest.mark.usefixtures("looks_often")
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


@pytest.mark.usefixtures("looks_often")
def test_a_refused_connection_has_its_reason() -> None:
    with reserved() as port, pytest.raises(AgentError, match="Connection refused"):
        AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, port).run(["x"], OWNER, {}, 5.0)
