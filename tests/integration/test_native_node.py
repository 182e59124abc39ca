"""wherry-init and wherry-rsh for real, in a PID namespace, as built and with ASan and UBSan; the C unit tests.

Invariant of every test: the node ends by SIGTERM with exit code 0 and no sanitizer had anything to say.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.job import sealed_frames
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner

TOP = Path(__file__).resolve().parents[2]
KEY = "0123456789abcdef" * 4
WAIT = 30.0  # seconds for what takes milliseconds, on a loaded machine
ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin", "GREETING=a b  c"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="PID namespaces are root's")


@pytest.fixture(scope="session", params=["as built", "sanitized"])
def programs(request: pytest.FixtureRequest) -> Path:
    """The directory of the native programs."""
    if request.param == "as built":
        return native_program("wherry-init").parent
    return sanitized("wherry-init", "wherry-rsh", "test_wire", "test_queues") / "bin"


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Processes below a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def names(pid: int) -> list[str]:
    """Command lines of the processes below a process."""
    found = []
    for child in children(pid):
        try:
            found.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def silent(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection over which nothing is said."""
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT, source_address=(source, 0))


class Client:
    """A connection to the init."""

    def __init__(self, port: int, key: str = KEY, source: str = "127.0.0.1", answered: bool = True) -> None:
        self.socket = silent(port, source)
        self.session: sealed_frames.Session | None = None
        kind, challenge = self.receive()
        assert kind == "C"
        self.hello = sealed_frames.answer(key, challenge)
        if answered:
            self.prove()

    def prove(self) -> None:
        self.send("H", self.hello.answer)
        kind, proof = self.receive()
        assert kind == "A"
        self.hello.require(proof)
        self.session = self.hello

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, kind: str, payload: bytes = b"") -> None:
        self.socket.sendall(self.frame(kind, payload))

    def frame(self, kind: str, payload: bytes = b"") -> bytes:
        if self.session:
            return self.session.to_agent.close(kind.encode(), payload)
        return struct.pack(">cI", kind.encode(), len(payload)) + payload

    def run(self, *argv: str, cwd: str = "/", uid: int = 0, groups: str = "", gid: int | None = None) -> None:
        strings = [str(uid), str(uid if gid is None else gid), groups, cwd, str(len(argv)), *argv, *ENVIRONMENT]
        self.send("R", "".join(f"{text}\0" for text in strings).encode())

    def receive(self) -> tuple[str, bytes]:
        """The next frame; ("", b"") at the end of the connection."""
        header = self._exactly(5)
        if not header:
            return "", b""
        kind, length = struct.unpack(">cI", header)
        rest = self._exactly(length + (sealed_frames.TAG if self.session else 0))
        return kind.decode(), self.session.to_client.open(header, rest) if self.session else rest

    def rest(self) -> dict[str, bytes]:
        """All payloads up to the end, joined by type."""
        found: dict[str, bytes] = {}
        while (frame := self.receive())[0]:
            found[frame[0]] = found.get(frame[0], b"") + frame[1]
        return found

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                return b""
            parts += part
        return parts


class NodeProcess:
    """An init in a PID namespace of its own, reachable at a port of the loopback interface."""

    def __init__(self, programs: Path, directory: Path, user: str = "0:0:") -> None:
        self.programs, self.directory = programs, directory
        (directory / "key").write_text(KEY + "\n")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        init = [f"{programs}/wherry-init", "--listen", f"127.0.0.1:{self.port}", "--key-file", f"{directory}/key"]
        init += ["--user", user]
        self.unshare = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", *init],
            env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": f"log_path={directory}/sanitizer"},
        )
        wait_until(self._answers, "the start of the init")

    @property
    def pid(self) -> int:
        return children(self.unshare.pid)[0]

    def _answers(self) -> bool:
        assert self.unshare.poll() is None
        try:
            with Client(self.port) as client:
                client.send("P")
                return client.receive()[0] == "P"
        except OSError:
            return False

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        assert self.unshare.wait(WAIT) == 0
        assert not list(self.directory.glob("sanitizer*"))

    def rsh(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {"WHERRY_JOB": self.job()}
        return subprocess.run(self.agent(*words), env=environment, input=data, capture_output=True, timeout=WAIT)

    def agent(self, *words: str) -> list[str]:
        return [str(self.programs / "wherry-rsh"), *words]

    def job(self, cwd: str = "/", port: int | None = None) -> str:
        lines = ["user 0 0 4,24", f"cwd {cwd}", f"node t-0 127.0.0.1 {port or self.port} {KEY}"]
        file = self.directory / "job"
        file.write_text("\n".join([*lines, *(f"env {variable}" for variable in ENVIRONMENT)]) + "\n")
        return str(file)


@pytest.fixture
def node(programs: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(programs, tmp_path)
    with ExitStack() as cleanup:
        cleanup.callback(made.unshare.wait)
        cleanup.callback(made.unshare.kill)
        yield made
        made.end()


def test_the_parsers_and_queues(programs: Path) -> None:
    for name in ("test_wire", "test_queues"):
        subprocess.run([programs.parent / "tests" / name], check=True, timeout=WAIT)


@as_root
def test_it_holds_nothing_of_the_host(node: NodeProcess) -> None:
    links = list[str]()
    for entry in Path(f"/proc/{node.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the node just answered who looked whether it is there
            links.append(os.readlink(entry))
    assert sorted({link.split(":")[0] for link in links}) == ["/dev/null", "pipe", "socket"]


@as_root
@pytest.mark.parametrize("first", ["wrong answer", "the key", "another's", "request first", "nonsense"])
def test_strangers_are_sent_away(node: NodeProcess, first: str) -> None:
    with Client(node.port) as other:
        other.send("P")
        assert other.receive()[0] == "P"
    bytes_of = {
        "wrong answer": b"H\0\0\0\x41\2" + b"f" * 64,
        "the key": b"H\0\0\0\x41\2" + KEY.encode(),
        "another's": b"H\0\0\0\x41" + other.hello.answer,
        "request first": b"R\0\0\0\5",
        "nonsense": b"GET / HTTP/1.1\r\n",
    }
    with socket.create_connection(("127.0.0.1", node.port), timeout=WAIT) as stranger:
        assert stranger.recv(5 + 33, socket.MSG_WAITALL)[:6] == b"C\0\0\0\x21\2"
        stranger.sendall(bytes_of[first])
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass


@as_root
@pytest.mark.parametrize("hello", [b"0" * 64, b"", b"\3" + bytes(64)])
def test_another_version_is_told_so(node: NodeProcess, hello: bytes) -> None:
    with Client(node.port, answered=False) as client:
        client.send("H", hello)
        assert client.receive() == ("F", b"the node's agent speaks version 2 of its protocol only")
        assert client.receive()[0] == ""


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
    wait_until(lambda: not names(node.pid), "the hangup of the program")


class Relay:
    """Stands between a client and the node, and remembers what goes by."""

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
    ended = endpoint.run(["cat"], root, {**environment, "TOKEN": secret}, WAIT, io.BytesIO(secret.encode()))
    assert ended.stdout.decode() == secret
    assert secret.encode() not in relay.said and b"TOKEN" not in relay.said and KEY.encode() not in relay.said
    agent = Relay(node.port)
    said = subprocess.run(
        node.agent("t-0", "cat"), env={"WHERRY_JOB": node.job(port=agent.port)}, input=secret.encode(),
        capture_output=True, timeout=WAIT,
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
        said = subprocess.run(words, env={"WHERRY_JOB": node.job(port=relay.port)}, capture_output=True, timeout=WAIT)
        assert said.returncode == 255 and said.stderr.startswith(b"wherry-rsh: ")
        assert said.stdout == (b"out\n" if kind == b"X" else b"")
        return
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, relay.port)
    with pytest.raises(AgentError):
        endpoint.run(["echo", "out"], Owner(uid=0, gid=0, home="/", cwd="/"), {"PATH": os.environ["PATH"]}, WAIT)


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
                    connection.sendall(b"C\0\0\0\x21\2" + bytes(32))
                    connection.recv(5 + 65, socket.MSG_WAITALL)
                    connection.sendall(b"A\0\0\0\x20" + bytes(32))
                    assert connection.recv(1) == b"", "it went on"

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(AgentError, match="does not know the node's key"):
            AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, port).run(
                ["true"], Owner(uid=0, gid=0, home="/", cwd="/"), {}, WAIT
            )
        said = subprocess.run(
            node.agent("t-0", "true"), env={"WHERRY_JOB": node.job(port=port)}, capture_output=True, timeout=WAIT
        )
        assert said.returncode == 255 and b"does not know the key of node t-0" in said.stderr
        thread.join(WAIT)


@as_root
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
def test_who_says_nothing_is_sent_away_soon(node: NodeProcess) -> None:
    with silent(node.port) as stranger:
        began = time.monotonic()
        while stranger.recv(100):
            pass
        assert 3 < time.monotonic() - began < 8


@as_root
def test_a_program_has_its_streams_its_user_and_its_end(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run(
            "sh", "-c", 'cat; id -u; id -G; pwd; echo "$GREETING" >&2; exit 7', cwd="/tmp", uid=65534, groups="4,24"
        )
        kind, pid = client.receive()
        assert kind == "S" and int(pid) > 1
        client.send("I", b"in\n")
        client.send("I")
        assert client.rest() == {"O": b"in\n65534\n65534 4 24\n/tmp\n", "E": b"a b  c\n", "X": b"exit 7"}


@as_root
@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["nothing-of-this-name"], "/", b"cannot run nothing-of-this-name: No such file or directory"),
        (["/etc/passwd"], "/", b"cannot run /etc/passwd: Permission denied"),
        (["true"], "/not/there", b"cannot enter the directory /not/there: No such file or directory"),
    ],
)
def test_what_cannot_start_says_why(node: NodeProcess, argv: list[str], cwd: str, reason: bytes) -> None:
    with Client(node.port) as client:
        client.run(*argv, cwd=cwd)
        assert client.rest() == {"F": reason}


@as_root
def test_a_user_that_has_the_key_runs_nobody_else(programs: Path, tmp_path: Path) -> None:
    node = NodeProcess(programs, tmp_path, "65534:65533:4,24")
    foreign: list[dict[str, Any]] = [
        {"uid": 0},
        {"uid": 0, "gid": 65533},
        {"uid": 1, "gid": 65533},
        {"uid": 65534, "gid": 0},
        {"uid": 65534, "gid": 65533, "groups": "4,0"},
    ]
    try:
        for who in foreign:
            with Client(node.port) as client:
                client.run("id", **who)
                assert client.rest() == {"F": b"this node runs programs of its cluster's user only: uid 65534"}
        for gid, groups, shown in ((65533, "", b"65533\n"), (24, "4,65533", b"24 4 65533\n")):
            with Client(node.port) as client:
                client.run("id", "-G", uid=65534, gid=gid, groups=groups)
                assert client.rest()["O"] == shown
        node.end()
    finally:
        node.unshare.kill()
        node.unshare.wait()


@as_root
@pytest.mark.parametrize("user", ["", "0", "0:0", "0:0:x", "-1:0:", "4294967295:0:", "1000:4294967295:", "0:0:1,"])
def test_a_user_that_is_none_is_refused(programs: Path, user: str) -> None:
    init = [f"{programs}/wherry-init", "--listen", "127.0.0.1:1", "--key-file", "/dev/null", "--user", user]
    done = subprocess.run(init, capture_output=True, timeout=WAIT)
    assert done.returncode == 2 and done.stderr.startswith(b"usage: wherry-init")


@as_root
def test_a_malformed_request_and_a_second_one(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.send("R", b"0\0")
        assert list(client.rest()) == ["F"]
    with Client(node.port) as client:
        client.run("sleep", "300")
        assert client.receive()[0] == "S"
        client.run("true")
        assert client.receive()[0] == ""
    wait_until(lambda: not names(node.pid), "the end of the program whose client misbehaved")


@as_root
def test_it_reaps_and_counts_what_is_left_behind(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "setsid sleep 300 </dev/null >/dev/null 2>&1 & (sleep 0.1 &) ; exit 0")
        assert client.rest()["X"] == b"exit 0"
    wait_until(lambda: names(node.pid) == ["sleep 300"], "the reaping of the second")
    with Client(node.port) as client:
        client.send("P")
        assert client.receive() == ("P", b"1")


@as_root
def test_the_end_is_told_though_a_descendant_keeps_the_pipes(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "echo out; sleep 300 & exit 3")
        assert {k: v for k, v in client.rest().items() if k != "S"} == {"O": b"out\n", "X": b"exit 3"}
    assert names(node.pid) == ["sleep 300"], "and it lives on"


@as_root
def test_a_program_whose_client_leaves_gets_hangup(node: NodeProcess) -> None:
    mark = node.directory / "mark"
    with Client(node.port) as client:
        client.run("sh", "-c", f"trap 'echo hup >{mark}; exit' HUP; echo ready; while :; do sleep 0.05; done")
        assert client.receive()[0] == "S"
        assert client.receive() == ("O", b"ready\n")
    wait_until(lambda: mark.exists() and mark.read_text() == "hup\n", "the hangup")


@as_root
def test_a_session_is_signalled_as_a_whole(node: NodeProcess) -> None:
    with Client(node.port) as client, Client(node.port) as other:
        client.run("bash", "-c", "set -m; sleep 300 & echo ready; wait")
        pid = client.receive()[1].decode()
        assert client.receive() == ("O", b"ready\n")
        other.send("K", b"999999 15")
        assert other.receive()[0] == "F"
        other.send("K", f"{pid} 9".encode())
        assert other.receive()[0] == "P"
        assert client.rest() == {"X": b"signal 9"}
    wait_until(lambda: not names(node.pid), "the end of the other process group")


@as_root
def test_no_byte_is_lost_when_both_sides_are_slow(node: NodeProcess) -> None:
    data = random.Random(1).randbytes(8 << 20)
    with Client(node.port) as client:
        client.run("cat")
        assert client.receive()[0] == "S"
        client.socket.setblocking(False)
        sent, received = memoryview(b"".join(_frames(client, data))), b""
        deadline = time.monotonic() + WAIT
        while sent and time.monotonic() < deadline:
            try:
                sent = sent[client.socket.send(sent) :]
            except BlockingIOError:  # all buffers between here and cat are full
                client.socket.settimeout(WAIT)
                kind, payload = client.receive()
                assert kind == "O"
                received += payload
                client.socket.setblocking(False)
        client.socket.settimeout(WAIT)
        rest = client.rest()
        assert received + rest["O"] == data and rest["X"] == b"exit 0"


def _frames(client: Client, data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data) + 1, 1 << 20):
        yield client.frame("I", data[at : at + (1 << 20)])


@as_root
def test_output_in_the_pipe_at_the_end_is_not_lost_to_a_slow_client(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "head -c 12000000 /dev/zero; sleep 300 >/dev/null 2>&1 & exit 5")
        time.sleep(0.5)
        rest = client.rest()
        assert len(rest["O"]) == 12000000 and rest["X"] == b"exit 5"


@as_root
def test_the_daemon_feeds_a_program_and_takes_no_flood(node: NodeProcess) -> None:
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, node.port)
    root = Owner(uid=0, gid=0, home="/", cwd="/")
    environment = {"PATH": os.environ["PATH"]}
    data = os.urandom(5 << 20)
    ended = endpoint.run(["sha256sum"], root, environment, WAIT, io.BytesIO(data))
    assert (ended.code, ended.stdout.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())
    assert endpoint.run(["head", "-c", "10"], root, environment, WAIT, io.BytesIO(data)).stdout == data[:10]
    with pytest.raises(AgentError, match="wrote more than"):
        endpoint.run(["yes"], root, environment, WAIT)


def test_rsh_relays_and_passes_the_exit_code(node: NodeProcess) -> None:
    data = random.Random(2).randbytes(3 << 20)
    said = node.rsh("-x", "-l", "nobody", "t-0", "cat;", "echo", '"$GREETING"', ">&2;", "exit", "9", data=data)
    assert (said.stdout, said.stderr, said.returncode) == (data, b"a b  c\n", 9)
    assert node.rsh("127.0.0.1", "-n", "cat; kill -15 $$").returncode == 128 + 15


@as_root
def test_rsh_says_what_is_wrong_in_one_line(node: NodeProcess) -> None:
    assert node.rsh("t-1", "true").stderr == b"wherry-rsh: no node t-1 in this job\n"
    environment = {"WHERRY_JOB": node.job(port=1)}
    dead = subprocess.run(node.agent("t-0", "true"), env=environment, capture_output=True, timeout=WAIT)
    assert dead.returncode == 255 and dead.stderr.startswith(b"wherry-rsh: cannot reach node t-0 at 127.0.0.1:1: ")
    environment = {"WHERRY_JOB": node.job(cwd="/not/there")}
    dead = subprocess.run(node.agent("t-0", "true"), env=environment, capture_output=True, timeout=WAIT)
    assert dead.returncode == 255 and dead.stderr.startswith(b"wherry-rsh: node t-0: cannot enter the directory /not")
    none = subprocess.run(node.agent("t-0", "true"), env={}, capture_output=True, timeout=WAIT)
    assert none.returncode == 255 and none.stderr.startswith(b"wherry-rsh: WHERRY_JOB is not set")


@as_root
def test_rsh_names_the_node_that_was_lost(programs: Path, tmp_path: Path) -> None:
    node = NodeProcess(programs, tmp_path)
    try:
        running = subprocess.Popen(
            node.agent("-n", "t-0", "sleep 300"), env={"WHERRY_JOB": node.job()}, stderr=subprocess.PIPE
        )
        wait_until(lambda: names(node.pid), "the start of the command")
        node.unshare.kill()
        said = running.communicate(timeout=WAIT)[1]
        assert running.returncode == 255
        assert said == f"wherry-rsh: lost the connection to node t-0 (127.0.0.1:{node.port})\n".encode()
    finally:
        node.unshare.kill()
        node.unshare.wait()
