"""The listener that nodes reach: peers that send nonsense, too slowly, too much or too often; and who gets one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside_programs import make_job
from rest_service import Service

import waiting
from wherry.cluster.placements import secret_name
from wherry.job import inside
from wherry.model.records import JobState
from wherry.service import inside_server
from wherry.service.inside_server import InsideServer


@pytest.fixture
def server(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[InsideServer]:
    """A server that listens at this machine's loopback instead of the clusters' heads, and looks for jobs once and at a
    test's call; cluster hello has a job."""
    monkeypatch.setattr(inside_server, "in_netns", lambda _path, _act: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(inside_server, "REQUEST_SECONDS", 3600.0)
    made = InsideServer(service.context, None)
    monkeypatch.setattr(service.context.require_managers().fabric, "port_netns", lambda _port: "/")
    made.every = 3600.0
    make_job(service)
    made.start()
    try:
        made.run_once()
        yield made
    finally:
        made.stop()


def connected(server: InsideServer, source: str = "127.0.0.1") -> socket.socket:
    at = server._listeners["hello"].server.sockets[0].getsockname()
    return socket.create_connection(at, timeout=waiting.bound(), source_address=(source, 0))


def await_connections(server: InsideServer, count: int) -> None:
    waiting.until(lambda: len(server._state.connections) == count, f"{count} connections")


def answer(server: InsideServer, text: bytes, source: str = "127.0.0.1") -> bytes:
    """All that comes until the end of the connection."""
    with connected(server, source) as connection:
        connection.sendall(text)
        found = b""
        try:
            while more := connection.recv(65536):
                found += more
        except ConnectionResetError:
            pass
        return found


def test_a_rank_is_answered_and_the_connection_ends(server: InsideServer, service: Service) -> None:
    node, job = service.context.store.nodes("hello")[0], service.context.store.jobs()[0]
    service.context.store.put_node(node.model_copy(update={"address": "127.0.0.1"}))
    token = inside.token(service.context.store.secret(secret_name("hello")), job.id)
    head = f"GET /v1/self HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {job.id}.{token}\r\nAccept: text/plain\r\n\r\n"
    found = answer(server, head.encode())
    assert found.startswith(b"HTTP/1.1 200 ") and b"\nnode=hello-0\n" in found and b"connection: close" in found
    assert token.encode() not in found
    assert answer(server, head.replace("127.0.0.1", "x").replace(token, "0" * 64).encode()).startswith(b"HTTP/1.1 403 ")


def test_nonsense_is_refused_and_reaches_no_log(server: InsideServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for text in (
        b"\0\1\2\3\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/self/moves HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/self HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        found = answer(server, text)
        assert found[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 404", b""), text
    assert not [record for record in caplog.records if record.name.startswith(("uvicorn", "wherry.rest"))]


def test_who_does_not_finish_a_request_is_cut_off(server: InsideServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside_server, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(inside_server, "ANSWER_SECONDS", 3600.0)
    for begun in (b"", b"GET /v1/self HT", b"POST /v1/self/moves HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
        assert answer(server, begun) == b""


def test_connections_are_bounded(server: InsideServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside_server, "CONNECTIONS_OF_ONE", 4)
    held = [connected(server) for _ in range(4)]
    await_connections(server, 4)
    assert answer(server, b"GET /v1/self HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    for connection in held:
        connection.close()
    await_connections(server, 0)
    assert answer(server, b"GET /v1/self HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 403 ")


def test_one_node_does_not_take_all_connections(server: InsideServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside_server, "CONNECTIONS_OF_NODE", 4)
    text = b"GET /v1/self HTTP/1.1\r\nHost: x\r\n\r\n"
    held = [connected(server) for _ in range(4)]
    await_connections(server, 4)
    assert answer(server, text) == b""
    assert answer(server, text, "127.0.0.2").startswith(b"HTTP/1.1 403 ")
    for connection in held:
        connection.close()


def test_a_listener_stays_while_a_job_is_about_to_start(server: InsideServer, service: Service) -> None:
    """However long ago it was opened."""
    job = service.context.store.jobs()[0]
    service.context.store.put_job(job.model_copy(update={"state": JobState.ENDED}))
    server._listeners["hello"].wanted -= 2 * inside_server.KEPT
    service.context.open_inside("hello")
    first = server._listeners["hello"]
    server.run_once()
    assert server._listeners["hello"] is first


def test_listeners_come_and_go_with_jobs(
    server: InsideServer, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.context.open_inside("hello")
    first = server._listeners["hello"].server
    service.context.require_managers().fabric.port_netns = lambda _port: str(tmp_path)  # type: ignore[method-assign]
    service.context.open_inside("hello")
    assert server._listeners["hello"].server is not first, "the head was made again"
    held = connected(server)
    await_connections(server, 1)
    monkeypatch.setattr(inside_server, "KEPT", 0.0)
    job = service.context.store.jobs()[0]
    service.context.store.put_job(job.model_copy(update={"state": JobState.ENDED}))
    server.run_once()
    assert not server._listeners
    try:
        assert held.recv(1) == b""
    except ConnectionResetError:
        pass
    held.close()
    service.context.open_inside("nowhere")
    assert not server._listeners, "a missing cluster has none"
