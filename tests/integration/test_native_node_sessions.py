"""Sessions with wherry-init: the handshake, sealed frames, a relay in between, silent peers, users."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from nodeprocess import KEY, Client, NodeProcess, as_root, names, node, node_process, programs, silent

import waiting
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner

__all__ = ["node", "programs"]  # fixtures


@as_root
@pytest.mark.parametrize("first", ["wrong answer", "the key", "another's", "request first", "nonsense"])
def test_strangers_are_sent_away(node: NodeProcess, first: str) -> None:
    with Client(node.port) as other:
        other.send("P")
        assert other.receive()[0] == "P"
    bytes_of = {
        "wrong answer": b"H\0\0\0\x41\3" + b"f" * 64,
        "the key": b"H\0\0\0\x41\3" + KEY.encode(),
        "another's": b"H\0\0\0\x41" + other.hello.answer,
        "request first": b"R\0\0\0\5",
        "nonsense": b"GET / HTTP/1.1\r\n",
    }
    with socket.create_connection(("127.0.0.1", node.port), timeout=waiting.bound()) as stranger:
        assert stranger.recv(5 + 33, socket.MSG_WAITALL)[:6] == b"C\0\0\0\x21\3"
        stranger.sendall(bytes_of[first])
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass


@as_root
@pytest.mark.parametrize("hello", [b"0" * 64, b"", b"\4" + bytes(64)])
def test_another_version_is_told_so(node: NodeProcess, hello: bytes) -> None:
    with Client(node.port, answered=False) as client:
        client.send("H", hello)
        assert client.receive() == ("F", b"the node's agent speaks version 3 of its protocol only")
        assert client.receive()[0] == ""


def sleepers(port: int) -> int:
    """Programs that sleep for so long."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += file.read_bytes() == f"sleep\0{port}.25\0".encode()
    return found


@as_root
def test_what_a_job_left_is_killed_by_the_agent_itself(programs: Path, tmp_path: Path) -> None:
    """Its own processes and no others, as the owner, however many processes the node has."""
    with node_process(programs, tmp_path, "65534:65533:") as node:
        endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, node.port)
        with Client(node.port) as one, Client(node.port) as other:
            for client, job in ((one, "job-1"), (other, "job-12")):
                sleep = f"sleep {node.port}.25"
                script = f"WHERRY_JOB_ID={job} {sleep} & WHERRY_JOB_ID={job} setsid {sleep} & wait; echo over"
                client.run("sh", "-c", script, uid=65534, gid=65533)
                assert client.receive()[0] == "S"
            waiting.until(lambda: sleepers(node.port) == 4, "four programs")
            assert endpoint.kill_job("job-1", waiting.bound()) == 2
            assert one.rest()["O"] == b"over\n" and sleepers(node.port) == 2
            assert endpoint.kill_job("job-1", waiting.bound()) == 0
            assert endpoint.ping(waiting.bound()) >= 1 and endpoint.kill_job("job-12", waiting.bound()) == 2
            with pytest.raises(AgentError):
                endpoint.kill_job("a job", waiting.bound())
        node.end()


@as_root
@pytest.mark.parametrize("what", ["changed", "its header", "twice", "in clear", "left out", "of another session"])
def test_a_frame_that_is_not_the_clients_ends_the_session(node: NodeProcess, what: str) -> None:
    with Client(node.port) as client, Client(node.port) as other:
        client.run("cat")
        assert client.receive()[0] == "S"
        frame = client.frame("I", b"one")
        sent = {
            "changed": frame[:5] + bytes([frame[5] ^ 1]) + frame[6:],
            "its header": b"P" + frame[1:],
            "twice": frame + frame,
            "in clear": b"I\0\0\0\3one" + bytes(16),
            "left out": client.frame("I", b"two"),
            "of another session": other.frame("I", b"one"),
        }[what]
        client.socket.sendall(sent)
        try:
            said = client.rest()
        except ConnectionResetError:
            said = {}
        assert "X" not in said and said.get("O", b"") in (b"", b"one" if what == "twice" else b"")
    waiting.until(lambda: not names(node.pid), "the hangup of the program")


class Relay:
    """Relays between a client and the node, and records the bytes."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port, self.said, self._to, self._change = self.server.getsockname()[1], b"", port, change
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self.server.accept()
        far = silent(self._to)
        threading.Thread(target=self._pass, args=(near, far, bytes), daemon=True).start()
        self._pass(far, near, self._change)

    def _pass(self, source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.said += data
                sink.sendall(change(data))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@as_root
def test_who_stands_between_reads_nothing(node: NodeProcess) -> None:
    relay = Relay(node.port)
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, relay.port)
    secret, environment = "what-nobody-must-read", {"PATH": os.environ["PATH"]}
    root = Owner(uid=0, gid=0, home="/", cwd="/")
    ended = endpoint.run(["cat"], root, {**environment, "TOKEN": secret}, waiting.bound(), io.BytesIO(secret.encode()))
    assert ended.stdout.decode() == secret
    assert secret.encode() not in relay.said and b"TOKEN" not in relay.said and KEY.encode() not in relay.said
    agent = Relay(node.port)
    said = subprocess.run(
        node.agent("t-0", "cat"), env={"WHERRY_JOB": node.job(port=agent.port)}, input=secret.encode(),
        capture_output=True, timeout=waiting.bound(),
    )  # fmt: skip
    assert said.stdout.decode() == secret
    assert secret.encode() not in agent.said and b"GREETING" not in agent.said


@as_root
@pytest.mark.parametrize("asks", ["the daemon", "rsh"])
@pytest.mark.parametrize("kind", [b"A", b"S", b"O", b"X"])
def test_who_stands_between_changes_nothing(node: NodeProcess, asks: str, kind: bytes) -> None:
    def change(data: bytes) -> bytes:
        at = data.find(kind + b"\0\0\0")
        return data if at < 0 else data[: at + 5] + bytes([data[at + 5] ^ 1]) + data[at + 6 :]

    relay = Relay(node.port, change)
    if asks == "rsh":
        words = node.agent("-n", "t-0", "echo out")
        said = subprocess.run(
            words, env={"WHERRY_JOB": node.job(port=relay.port)}, capture_output=True, timeout=waiting.bound()
        )
        assert said.returncode == 255 and said.stderr.startswith(b"wherry-rsh: ")
        assert said.stdout == (b"out\n" if kind == b"X" else b"")
        return
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, relay.port)
    with pytest.raises(AgentError):
        endpoint.run(
            ["echo", "out"], Owner(uid=0, gid=0, home="/", cwd="/"), {"PATH": os.environ["PATH"]}, waiting.bound()
        )


@as_root
def test_who_does_not_know_the_key_is_not_taken_for_the_node(node: NodeProcess) -> None:
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", "f" * 64, node.port)
    with pytest.raises(AgentError):
        endpoint.ping(0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"C\0\0\0\x21\3" + bytes(32))
                    connection.recv(5 + 65, socket.MSG_WAITALL)
                    connection.sendall(b"A\0\0\0\x20" + bytes(32))
                    assert connection.recv(1) == b"", "it went on"

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(AgentError, match="does not know the node's key"):
            AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, port).run(
                ["true"], Owner(uid=0, gid=0, home="/", cwd="/"), {}, waiting.bound()
            )
        said = subprocess.run(
            node.agent("t-0", "true"),
            env={"WHERRY_JOB": node.job(port=port)},
            capture_output=True,
            timeout=waiting.bound(),
        )
        assert said.returncode == 255 and b"does not have the key of node t-0" in said.stderr
        thread.join(waiting.bound())


@as_root
@pytest.mark.measures("an answer within four seconds, when silent clients are disconnected after five")
def test_who_says_nothing_keeps_nobody_out(node: NodeProcess) -> None:
    with ExitStack() as open_, Client(node.port) as proved:
        proved.run("cat")
        assert proved.receive()[0] == "S"
        slow = open_.enter_context(Client(node.port, source="127.0.0.9", answered=False))
        for number in range(300):
            open_.enter_context(silent(node.port, f"127.0.0.{2 + number % 2}"))
        began = time.monotonic()
        with Client(node.port) as late:
            late.send("P")
            assert late.receive()[0] == "P"
        assert time.monotonic() - began < 4, "it waited for the deadline of others"
        slow.prove()
        slow.send("P")
        assert slow.receive()[0] == "P", "it was pushed out by another address"
        proved.send("I", b"still here")
        proved.send("I")
        assert proved.rest() == {"O": b"still here", "X": b"exit 0"}


@as_root
@pytest.mark.thorough
def test_who_says_nothing_is_sent_away_soon(node: NodeProcess) -> None:
    with silent(node.port) as stranger:
        began = time.monotonic()
        while stranger.recv(100):
            pass
        assert 3 < time.monotonic() - began


@as_root
def test_a_user_that_has_the_key_runs_nobody_else(programs: Path, tmp_path: Path) -> None:
    foreign: list[dict[str, Any]] = [
        {"uid": 0},
        {"uid": 0, "gid": 65533},
        {"uid": 1, "gid": 65533},
        {"uid": 65534, "gid": 0},
        {"uid": 65534, "gid": 65533, "groups": "4,0"},
    ]
    with node_process(programs, tmp_path, "65534:65533:4,24") as node:
        for who in foreign:
            with Client(node.port) as client:
                client.run("id", **who)
                assert client.rest() == {"F": b"this node runs programs of its cluster's user only: uid 65534"}
        for gid, groups, shown in ((65533, "", b"65533\n"), (24, "4,65533", b"24 4 65533\n")):
            with Client(node.port) as client:
                client.run("id", "-G", uid=65534, gid=gid, groups=groups)
                assert client.rest()["O"] == shown
        node.end()


@as_root
@pytest.mark.parametrize("user", ["", "0", "0:0", "0:0:x", "-1:0:", "4294967295:0:", "1000:4294967295:", "0:0:1,"])
def test_a_user_that_is_none_is_refused(programs: Path, user: str) -> None:
    init = [f"{programs}/wherry-init", "--listen", "127.0.0.1:1", "--key-file", "/dev/null", "--user", user]
    done = subprocess.run(init, capture_output=True, timeout=waiting.bound())
    assert done.returncode == 2 and done.stderr.startswith(b"usage: wherry-init")


FLOOD = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as stranger:
    stranger.recv(100)
    stranger.sendall(b"H" + bytes([0, 0, 0, 65]) + b"3" + bytes(64))  # another version: its answer is the last frame
    bulk = bytes(1 << 20)
    while True:
        stranger.sendall(bulk)
"""


@as_root
@pytest.mark.measures("answers in five seconds while four others send: fewer where they get all processors")
def test_who_sends_without_end_keeps_nobody_waiting(node: NodeProcess) -> None:
    """Bytes after the last frame are thrown away, a part in each turn of the loop."""
    with ExitStack() as cleanup:
        for _ in range(4):
            words = [sys.executable, "-c", FLOOD, str(node.port)]
            flood = cleanup.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            cleanup.callback(flood.kill)
        answers, deadline = 0, time.monotonic() + 5
        while time.monotonic() < deadline:
            with Client(node.port) as client:
                client.send("P")
                assert client.receive()[0] == "P"
            answers += 1
        assert answers > 200  # 40 to 150 when each of them is read until it has nothing, 700 and more otherwise
