"""A wherry-init in a PID namespace, as built and with ASan and UBSan, and a client for its protocol. Invariant of every
test: the node ends on SIGTERM with exit code 0 and without a sanitizer report."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import waiting
from ports import reserved
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.job import sealed_frames

KEY = "0123456789abcdef" * 4
ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin", "GREETING=a b  c"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="PID namespaces are root's")


@pytest.fixture(scope="session", params=["as built", "sanitized"])
def programs(request: pytest.FixtureRequest) -> Path:
    """The directory of the native programs."""
    if request.param == "as built":
        return native_program("wherry-init").parent
    return sanitized("wherry-init", "wherry-rsh", "test_wire", "test_queues", "test_guest") / "bin"


def children(pid: int) -> list[int]:
    """Descendants of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def names(pid: int) -> list[str]:
    """Command lines of the descendants of a process."""
    found = []
    for child in children(pid):
        try:
            found.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def silent(port: int, source: str = "127.0.0.1") -> socket.socket:
    """An open connection without any traffic."""
    return socket.create_connection(("127.0.0.1", port), timeout=waiting.bound(), source_address=(source, 0))


class Client:
    """A client connection to the init."""

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

    def run(
        self, *argv: str, cwd: str = "/", uid: int = 0, groups: str = "", gid: int | None = None, inherited: str = ""
    ) -> None:
        strings = [
            str(uid),
            str(uid if gid is None else gid),
            groups,
            cwd,
            inherited,
            str(len(argv)),
            *argv,
            *ENVIRONMENT,
        ]
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
        """Type -> concatenated payloads of all frames up to the end."""
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

    def __init__(self, programs: Path, directory: Path, port: int, user: str) -> None:
        self.programs, self.directory, self.port = programs, directory, port
        (directory / "key").write_text(KEY + "\n")
        init = [f"{self.programs}/wherry-init", "--listen", f"127.0.0.1:{self.port}"]
        init += ["--key-file", f"{self.directory}/key", "--user", user]
        self.unshare = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", *init],
            env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": f"log_path={self.directory}/sanitizer"},
        )

    @property
    def pid(self) -> int:
        return children(self.unshare.pid)[0]

    def answers(self) -> bool:
        try:
            with Client(self.port) as client:
                client.send("P")
                return client.receive()[0] == "P"
        except OSError:
            return False

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        assert self.unshare.wait(waiting.bound()) == 0
        assert not list(self.directory.glob("sanitizer*"))

    def rsh(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {"WHERRY_JOB": self.job()}
        return subprocess.run(
            self.agent(*words), env=environment, input=data, capture_output=True, timeout=waiting.bound()
        )

    def agent(self, *words: str) -> list[str]:
        return [str(self.programs / "wherry-rsh"), *words]

    def job(self, cwd: str = "/", port: int | None = None) -> str:
        lines = ["user 0 0 4,24", f"cwd {cwd}", f"node t-0 127.0.0.1 {port or self.port} {KEY}"]
        file = self.directory / "job"
        file.write_text("".join(f"{line}\0" for line in [*lines, *(f"env {variable}" for variable in ENVIRONMENT)]))
        return str(file)


@contextmanager
def node_process(programs: Path, directory: Path, user: str = "0:0:") -> Iterator[NodeProcess]:
    """A node process that answers; killed at the end of the block, if it has not ended."""
    with reserved() as port:
        made = NodeProcess(programs, directory, port, user)
        with made.unshare:
            try:
                waiting.until(lambda: made.unshare.poll() is not None or made.answers(), "the start of the init")
                assert made.unshare.poll() is None
                yield made
            finally:
                made.unshare.kill()


@pytest.fixture
def node(programs: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    with node_process(programs, tmp_path) as made:
        yield made
        made.end()
