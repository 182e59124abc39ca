"""Helpers of system tests: the real command line on an instance of its own, jobs, and the instance's resources on the
machine. Invariant: all resources are identified by the instance's name, so tests, demos and users' clusters can run at
the same time. No time limit here is a measurement: each is sufficient for a loaded machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import forked
import pytest
from kept import Kept

from names import own_name
from wherry.base.errors import Refused
from wherry.base.paths import Instance, native_program
from wherry.client import Client
from wherry.fabric import named_netns
from wherry.fabric.cgroup import Cgroup
from wherry.model.network import HEAD_INDEX
from wherry.model.records import NodeState, OperationState
from wherry.node.container.mounts import mounted

WHERRY = Path(sys.executable).parent / "wherry"
SECONDS = 240
"""Time limit of one command on a loaded machine."""
_UNLIMITED = 36_000
Value = TypeVar("Value")
Completed = subprocess.CompletedProcess[str]


class Ring:
    """A `wherry run` of wherry-ring, which checks every byte of its messages and of its memory."""

    def __init__(self, client: subprocess.Popen[str]) -> None:
        self._client = client
        first = self._first_line()
        assert first.startswith(b"iteration"), (first, self._rest())

    def _first_line(self) -> bytes:
        """Reads exactly one line: `communicate` would lose the bytes that a file object has buffered."""
        assert self._client.stdout
        line, descriptor = b"", self._client.stdout.fileno()
        while not line.endswith(b"\n") and (more := os.read(descriptor, 1)):
            line += more
        return line

    def running(self) -> bool:
        return self._client.poll() is None

    def result(self) -> dict[str, Any]:
        """Ends its input (`communicate`) and returns its JSON result, which must be correct."""
        out, err = self._rest()
        assert self._client.returncode == 0, (out[-500:], err)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert result["errors"] == 0 and result["checked_bytes"] > 0, (result, err)
        return result

    def output_tail(self) -> str:
        """The last 2000 characters of an ended ring's output."""
        return " ".join(self._rest())[-2000:]

    def _rest(self) -> tuple[str, str]:
        try:
            return self._client.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:  # it prints a line a second while it runs
            lines = (error.output or b"").splitlines()
            raise AssertionError(
                f"it did not end in {SECONDS} s; it printed {len(lines)} lines: {lines[-3:]}"
            ) from error

    def interrupt(self) -> None:
        """Ends it as Ctrl-C does."""
        if self.running():
            self._client.send_signal(signal.SIGINT)
            self._rest()


@dataclass
class HeldMove:
    """A move that waits at the end of a phase until it is released."""

    operation: str
    _file: Path

    def release(self) -> None:
        self._file.unlink(missing_ok=True)


class RealInstance:
    """A Wherry instance and its command line. Commands run in `directory`, which nodes see. `enter`: command prefix
    that enters namespaces, if commands are to run in some."""

    def __init__(self, name: str, directory: Path, enter: tuple[str, ...] = (), **environment: str) -> None:
        self.instance = Instance(name)
        self.directory = directory
        self._enter = enter
        self.command = (*enter, "env", f"--chdir={directory}", str(WHERRY)) if enter else (str(WHERRY),)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("WHERRY_", "SUDO_"))}
        self.environment = {**inherited, "WHERRY_INSTANCE": name, **environment}
        self.kept = Kept(self)

    # Commands.

    def __call__(self, *words: str, **more: str) -> Completed:
        """Runs one command, whatever its exit code."""
        if not self._enter:
            return forked.run(words, self.directory, {**self.environment, **more}, SECONDS)
        return subprocess.run(
            [*self.command, *words],
            cwd=self.directory,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def json(self, *words: str) -> dict[str, Any]:
        """Runs a command that must succeed; returns its JSON document."""
        done = self(*words, "-o", "json")
        assert done.returncode == 0, (words, done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def start(self, *words: str, stdin: int = subprocess.DEVNULL, nohup: bool = False) -> subprocess.Popen[str]:
        """Starts a command in the background. A signal has its default effect on it, however the tests were
        started; with `nohup` it ignores a hang-up."""
        signals = ["env", "--default-signal=HUP,INT,TERM", *(["--ignore-signal=HUP"] if nohup else [])]
        return subprocess.Popen(
            [*signals, *self.command, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def file(self, name: str, text: str) -> str:
        """Writes a file in the directory; returns its name, as an argument of commands."""
        (self.directory / name).write_text(text)
        return name

    def cluster_file(self, name: str, nodes: int, memory: str = "128MiB", more: str = "", cpus: float = 0.25) -> str:
        text = f"kind: container\nversion: 1\nname: {name}\nnodes: {nodes}\ncpus: {cpus}\nmemory: {memory}\n{more}"
        return self.file(f"{name}.yaml", text)

    def build_image(self, *words: str) -> Completed:
        """`wherry image build`, once no other instance of this machine builds or removes one."""
        while "another instance on this machine" in (done := self("image", "build", *words)).stderr:
            time.sleep(2)
        return done

    def up(self, name: str, nodes: int, memory: str = "128MiB", more: str = "", cpus: float = 0.25) -> None:
        self.json("up", self.cluster_file(name, nodes, memory, more, cpus))

    def move(self, node: str, host: str) -> dict[str, Any]:
        """Moves a node, which must succeed; returns the move's record."""
        return self.json("move", node, "--to", host)

    def begin_move(self, node: str, host: str, fault: str | None = None) -> str:
        """Begins a move, optionally with a fault; returns the operation's id. Needs a running daemon."""
        with Client(self.instance, start=False) as client:
            return client.begin_move(node, host, fault=fault).id

    @contextmanager
    def held_move(self, node: str, host: str, phase: str) -> Iterator[HeldMove]:
        """Begins a move that is held at the end of a phase, and waits until it is. It continues when it is released, at
        the latest at the end of the block. Needs a running daemon that takes faults."""
        file = self.directory / f"held-{node}"
        move = HeldMove(self.begin_move(node, host, f"{phase}:pause:{file}"), file)
        try:
            reached = lambda: file.exists() or self.ended(move.operation)  # noqa: E731
            assert eventually(reached, True, SECONDS, 0.01) and file.exists(), self("op", "show", move.operation)
            yield move
        finally:
            move.release()

    def ended(self, operation: str) -> bool:
        """Whether an operation of the running daemon has ended."""
        with Client(self.instance, start=False) as client:
            return client.operation(operation).state != OperationState.RUNNING

    def kill_daemon(self) -> None:
        """Kills the daemon by SIGKILL."""
        os.kill(int((self.instance.run / "lock").read_text()), signal.SIGKILL)

    def start_daemon(self) -> None:
        """Starts the next daemon; the killed one takes a moment to end, in which it seems to answer."""

        def start() -> int:
            return self("daemon", "start").returncode or self("status").returncode

        assert eventually(start, 0) == 0

    # Jobs.

    @contextmanager
    def ring(
        self,
        cluster: str,
        flavour: str,
        *,
        ranks: int = 4,
        seconds: int | None = None,
        memory: int = 4,
        pause: int = 0,
    ) -> Iterator[Ring]:
        """Runs a ring for `seconds`, or until `result` is called; it is interrupted at the end of the block. `memory`:
        MiB for each rank. Without a `pause` (ms in each iteration) it uses all of its nodes' CPU and nearly always has
        a message in flight; tests that do not need that leave the CPU to the tests that run beside them."""
        options = ["--seconds", str(seconds or _UNLIMITED), "--memory", str(memory), "--size", "16384"]
        options += ["--pause", str(pause)] if pause else []
        options += [] if seconds else ["--input"]
        words = ("run", cluster, "-n", str(ranks), "--", ring_program(flavour, self.directory), *options)
        ring = Ring(self.start(*words, stdin=subprocess.DEVNULL if seconds else subprocess.PIPE))
        try:
            yield ring
        finally:
            ring.interrupt()

    def run_under_ring(self, cluster: str, flavour: str, action: Callable[[], object], **more: int) -> dict[str, Any]:
        """Runs `action` while a ring runs; the ring's result must be correct."""
        with self.ring(cluster, flavour, **more) as ring:
            action()
            assert ring.running(), ring.output_tail()
            return ring.result()

    # State of the machine.

    def hosts_of(self, cluster: str) -> dict[str, str]:
        """Node -> host; all nodes must be running."""
        with Client(self.instance) as client:
            nodes = client.nodes(cluster)
        assert {node.state for node in nodes} == {NodeState.RUNNING}, nodes
        return {node.name: node.host for node in nodes}

    def hosts(self) -> list[str]:
        """Names of the fabric's hosts."""
        with Client(self.instance) as client:
            return [host.name for host in client.hosts()]

    def assert_one_copy(self, cluster: str) -> dict[str, str]:
        """Asserts that each node has exactly one placement, init process and plugged port, on the host of its record,
        and that no images or processes of a move are left. Returns node -> host."""
        where = self.hosts_of(cluster)
        problems = eventually(lambda: self._inconsistencies(cluster, where), [])
        assert problems == [], problems
        return where

    def _inconsistencies(self, cluster: str, where: dict[str, str]) -> list[str]:
        prefix, hosts, problems = self.instance.prefix, self.hosts(), list[str]()
        with Client(self.instance) as client:
            (number,) = (c["network"] for c in client.clusters() if c["name"] == cluster)
        links = {host: self.links(host) for host in hosts}
        placements = {path.name for path in (self.instance.run / "nodes").glob(f"{cluster}-*@*")}
        if placements != {f"{node}@{host}" for node, host in where.items()}:
            problems.append(f"places: {sorted(placements)}")
        for node, host in where.items():
            port = f"p{number}.{node.rpartition('-')[2]}"
            groups = [other for other in hosts if Cgroup(f"{prefix}/{other}/{node}").exists()]
            namespaces = [other for other in hosts if named_netns.exists(f"{prefix}-{other}-{node}")]
            copies = [pid for other in groups for pid in _first_processes(f"{prefix}/{other}/{node}")]
            ports = [other for other in hosts if links[other].get(port) == f"c{number}"]
            if not groups == namespaces == ports == [host] or len(copies) != 1:
                problems.append(f"{node} on {host}: {groups=} {namespaces=} {ports=} {copies=}")
        problems += [f"mount {point}" for point in self.mounts() if point.endswith("/images")]
        return problems + [f"process {words}" for words in self.move_processes().values()]

    def links(self, host: str) -> dict[str, str]:
        """Interfaces of a host -> the bridge that each is attached to."""
        done = subprocess.run(
            ["ip", "-n", f"{self.instance.prefix}-{host}", "-j", "link"],
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        return {link["ifname"]: link.get("master", "") for link in json.loads(done.stdout)}

    def fabric(self) -> dict[str, dict[str, str]]:
        """Interfaces of all hosts except those of nodes: the part that moves do not change."""
        return {host: {k: v for k, v in self.links(host).items() if not _belongs_to_node(k)} for host in self.hosts()}

    def mounts(self) -> list[str]:
        """Mount points of this instance."""
        placements = (f"{self.instance.run}/", f"/run/netns/{self.instance.prefix}-")
        return [point for point, _, _ in mounted() if point.startswith(placements)]

    def processes(self) -> dict[int, str]:
        """Processes of this instance: those with its environment variable, and those in its cgroups or namespaces."""
        mark = f"WHERRY_INSTANCE={self.instance.name}\0".encode()
        inside = set(Cgroup(self.instance.prefix).pids())
        for name in named_netns.names(self.instance.prefix):
            inside |= set(named_netns.processes(name) if named_netns.exists(name) else [])
        problems = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) in inside or mark in (entry / "environ").read_bytes():
                    problems[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has ended
                continue
        return problems

    def move_processes(self) -> dict[int, str]:
        """Processes that exist only during a move."""
        signs = ("criu", "tar --extract", "tar --create", "wherry-hold", "wherry-pager", "--rpc")
        return {pid: words for pid, words in self.processes().items() if any(sign in words for sign in signs)}

    def all_resources(self) -> dict[str, list[str]]:
        """All resources of the instance on this machine, and the machine's own interfaces."""
        prefix = self.instance.prefix
        roots = sorted({Path(point) for point, kind, _ in mounted() if kind in ("cgroup", "cgroup2")})
        paths = [Path(path) for root in roots for path, *_ in os.walk(root)]  # those of others come and go meanwhile
        groups = [path for path in paths if path.name in (prefix, f"{prefix}-head")]
        return {
            "processes": sorted(self.processes().values()),
            "namespaces": named_netns.names(prefix),
            "mounts": self.mounts(),
            "interfaces": sorted(name for _, name in socket.if_nameindex()),
            "cgroups": sorted(map(str, groups)),
            "directories": [str(path) for path in (self.instance.run, self.instance.state) if path.exists()],
        }


@contextmanager
def real_instance(
    role: str, enter: tuple[str, ...] = (), below: Path | None = None, **environment: str
) -> Iterator[RealInstance]:
    """An instance that is removed before and after the block; its files are in a directory, `below` another one. Its
    name differs between checkouts and test workers."""
    name = own_name(role)
    with tempfile.TemporaryDirectory(prefix=f"wherry-{name}-", dir=below) as directory:
        os.chmod(directory, 0o755)
        created = RealInstance(name, Path(directory), enter, **environment)
        if any(found for kind, found in created.all_resources().items() if kind != "interfaces"):
            created("down", "--all", "--yes")
        try:
            yield created
        finally:
            down = created("down", "--all", "--yes")
        assert down.returncode == 0, down.stderr


def missing_for_vms(programs: Iterable[str]) -> str:
    """Reason why this machine cannot run VMs; empty if it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in programs if not shutil.which(name, path=path)]
    missing += [] if importlib.util.find_spec("libvirt") else ["libvirt's Python binding"]
    return f"there is no {', no '.join(missing)} (make setup-vm)" if missing else ""


def ring_program(flavour: str, directory: Path) -> str:
    """Path of wherry-ring for an MPI, copied into a directory that nodes see. Skips the test where it is not built."""
    try:
        built = native_program(f"wherry-ring-{flavour}")
    except Refused:
        pytest.skip(f"wherry-ring-{flavour} is not built: no mpicc of {flavour}")
    copy = directory / built.name  # the checkout may be below /tmp, which nodes have a private version of
    if not copy.exists():
        shutil.copy(built, copy)
    return str(copy)


def eventually(probe: Callable[[], Value], expected: Value, seconds: float = 60.0, pause: float = 0.2) -> Value:
    """Polls `probe` until it returns `expected` or the time is up; returns its last value."""
    deadline = time.monotonic() + seconds
    while (value := probe()) != expected and time.monotonic() < deadline:
        time.sleep(pause)
    return value


def _belongs_to_node(link: str) -> bool:
    return link.startswith("p") and not link.endswith(f".{HEAD_INDEX}")


def _first_processes(cgroup: str) -> list[int]:
    """Processes in a cgroup that are PID 1 of a PID namespace."""
    problems = []
    for pid in Cgroup(cgroup).pids():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        (ids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
        if len(ids) > 1 and ids[-1] == "1":
            problems.append(pid)
    return problems
