"""The client: problems become errors, versions are compared, users are identified."""

from __future__ import annotations

import http.client
import itertools
import os
import pwd
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from rest_service import CLUSTER, Service

import waiting
import wherry.client.transport
from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.client import Client, Row, identity
from wherry.client.transport import send
from wherry.model.records import OperationState


def test_a_cluster_and_a_move(service: Service) -> None:
    lines: list[str] = []
    with Client(service.place) as client:
        result = client.wait(client.up(CLUSTER).id, lines.append).result or {}
        assert result["cluster"]["name"] == "hello" and lines
        node = client.nodes("hello")[0]
        target = next(host.name for host in client.hosts() if host.name != node.host)
        assert client.move(node.name, target).destination == target
        assert [move.node for move in client.moves()] == [node.name]
        job = client.run("hello", ["prog", "1"], 2, env={})
        assert [data for _, _, data in client.output(job.id)] == [b"out\n", b"err\n"]
        assert client.job(job.id).exit_code == 1
        client.wait(client.down("hello").id)
        assert client.clusters() == []


def test_input_is_fed_to_its_end(service: Service) -> None:
    parts = [b"one\n", b"a longer line\n", b""]
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        job = client.run("hello", ["sleep"], 2, env={}, input=True)
        client.feed(job.id, lambda: parts.pop(0))
    assert service.jobs.inputs[job.id] == b"one\na longer line\n" and not parts


def test_a_problem_becomes_its_error(service: Service) -> None:
    with Client(service.place) as client, pytest.raises(Refused) as caught:
        client.down("none")
    assert caught.value.code == Code.NOT_FOUND and caught.value.next


def test_the_error_of_an_operation_is_raised(service: Service) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        with pytest.raises(WherryError) as caught:
            client.wait(client.fabric_down().id)
    assert caught.value.code == Code.WRONG_STATE


def test_a_service_of_another_version_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wherry.client.transport, "__version__", "9.9.9")
    with Client(service.place) as client, pytest.raises(LostContact) as caught:
        client.clusters()
    assert caught.value.code == Code.VERSION_MISMATCH and "wherry daemon stop" in caught.value.next


def test_without_a_daemon_it_says_so(service: Service, tmp_path: Path) -> None:
    other = type(service.place)("test", tmp_path / "other")
    with pytest.raises(LostContact) as caught:
        Client(other, start=False)
    assert caught.value.code == Code.UNREACHABLE


@pytest.mark.parametrize(
    ("lived", "error", "asked"),
    [(0.1, ConnectionResetError, 5), (9.0, http.client.RemoteDisconnected, 21), (90.0, TimeoutError, 5)],
)
def test_a_question_is_asked_again_when_the_daemon_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch, lived: float, error: type[OSError], asked: int
) -> None:
    """For as long as it takes, unless the question may be the cause of the end, or no answer comes."""
    times, send = [0.0], wherry.client.transport.send

    def mortal(*words: Any) -> wherry.client.transport.Answer:
        times.append(times[-1] + lived)
        if len(times) <= 21:
            raise error("gone")
        return send(*words)

    monkeypatch.setattr(wherry.client.transport, "monotonic", lambda: times[-1])
    monkeypatch.setattr(wherry.client.transport, "send", mortal)
    with Client(service.place) as client:
        if asked == 21:
            assert client.clusters() == []
        else:
            with pytest.raises(LostContact, match="does not answer"):
                client.clusters()
    assert len(times) - 1 == asked


def test_a_daemon_that_is_stopped_is_none_of_another_version(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own answer to a request that it gives up has no version; the next daemon is asked."""
    answers, send = (
        [wherry.client.transport.Answer(500, "unknown", b"Internal Server Error")],
        wherry.client.transport.send,
    )
    monkeypatch.setattr(wherry.client.transport, "send", lambda *words: answers.pop() if answers else send(*words))
    with Client(service.place) as client:
        assert client.clusters() == [] and not answers


def test_sudo_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(nobody.pw_uid))
    monkeypatch.setenv("SUDO_GID", str(nobody.pw_gid))
    monkeypatch.setenv("HOME", "/root")
    owner = identity.owner()
    assert (owner.uid, owner.gid, owner.home, owner.cwd) == (nobody.pw_uid, nobody.pw_gid, nobody.pw_dir, os.getcwd())
    variables = identity.environment(owner)
    assert variables["HOME"] == nobody.pw_dir and variables["USER"] == "nobody" and "SUDO_UID" not in variables


def test_who_measures_is_this_process_whoever_called_sudo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the directory is the named one: nothing is handed over by the process's own state."""
    monkeypatch.setenv("SUDO_UID", str(pwd.getpwnam("nobody").pw_uid))
    owner = identity.process_owner(tmp_path)
    assert (owner.uid, owner.gid, owner.cwd) == (os.getuid(), os.getgid(), str(tmp_path))
    assert identity.owner(tmp_path).cwd == str(tmp_path) and identity.owner().cwd == os.getcwd()


def hold_until_cancelled(service: Service, free: int = 0) -> None:
    """All that is asked of a driver, but for its first calls, waits until an operation has been cancelled."""
    calls, operations = itertools.count(), service.context.operations

    def cancelled() -> bool:
        return any(operations.cancelled(one.id) for one in operations.all(running=True))

    def hold(name: str) -> None:
        if next(calls) >= free:
            waiting.until(cancelled, f"{name}: the operation is cancelled")

    driver: Any = service.context.require_managers().drivers["container"]
    driver.on_call = hold


@pytest.mark.parametrize("where", ["while a line is printed", "between two questions"])
def test_ctrl_c_cancels_an_operation_wherever_it_strikes(
    service: Service, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    lines: list[str] = []

    def strikes_once(line: str) -> None:
        lines.append(line)
        if len(lines) == 1 and where == "while a line is printed":
            raise KeyboardInterrupt

    def made(values: dict[str, Any]) -> Row:
        if where == "between two questions" and struck and struck.pop():
            raise KeyboardInterrupt
        return Row(values)

    hold_until_cancelled(service, free=1)
    with Client(service.place) as client:
        begun, struck = client.up(CLUSTER | {"nodes": 6, "cpus": 0.2}).id, [True]
        monkeypatch.setattr("wherry.client.requests.Row", made)
        with pytest.raises(WherryError) as caught:
            client.wait(begun, strikes_once)
        assert caught.value.code == Code.CANCELLED and any("Ctrl-C again" in line for line in lines)
        assert [cluster["state"] for cluster in client.clusters()] == ["partly"]


def test_an_interrupt_while_a_request_is_served_cancels_what_it_begins(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning a move asks its hosts, so Ctrl-C may strike before the operation has an id."""
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        node = client.nodes("hello")[0]
        target = next(host.name for host in client.hosts() if host.name != node.host)
        moves = service.context.require_managers().moves
        plan = moves.plan

        def struck(*words: Any, **more: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return plan(*words, **more)

        monkeypatch.setattr(moves, "plan", struck)
        hold_until_cancelled(service)
        with pytest.raises(KeyboardInterrupt):
            client.begin_move(node.name, target)
        # the request is served to its end, whatever its client does
        (move,) = waiting.until(lambda: [found for found in client.operations() if found.kind == "move"], "the move")
        assert service.context.operations.wait(move.id, waiting.bound()).state == OperationState.CANCELLED
        assert client.nodes("hello")[0].host == node.host


# Requests to the daemon, one connection each.


LARGE = b"x" * (8 << 20)
"""More than a socket's buffer takes."""
ANSWER = b"HTTP/1.1 503 Service Unavailable\r\nWherry-Version: 1\r\nContent-Length: 4\r\n\r\nbusy"


def test_an_answer_that_comes_before_the_body_was_read_is_the_answer(tmp_path: Path) -> None:
    """As a standby answers, which reads no body."""
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(ANSWER)

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        answer = send(path, "POST", "/v1/clusters", LARGE, {})
    finally:
        thread.join()
        listener.close()
    assert (answer.status, answer.version, answer.body) == (503, "1", b"busy")
