"""The whole system as a user has it: the real command line on an instance of its own, its jobs, what is on the machine.

Invariant: everything is told apart by the instance's name, so tests, demos and users' clusters can be up at the same
time. No limit here is a measurement: each is long enough for a loaded machine.
"""

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
from pathlib import Path
from typing import Any, TypeVar

import forked
import pytest

from names import own_name
from wherry.base.errors import Refused
from wherry.base.paths import Instance, native_program
from wherry.client import Client
from wherry.fabric import named_netns
from wherry.fabric.cgroup import Cgroup
from wherry.model.network import HEAD_INDEX
from wherry.model.records import NodeState
from wherry.node.container.mounts import mounted

WHERRY = Path(sys.executable).parent / "wherry"
SECONDS = 240
"""For one command, on a loaded machine."""
_FOR_EVER = 36_000
Value = TypeVar("Value")
Completed = subprocess.CompletedProcess[str]


class Ring:
    """A `wherry run` of wherry-ring, which checks every byte of its messages and of its memory."""

    def __init__(self, client: subprocess.Popen[str]) -> None:
        self._client = client
        first = self._first_line()
        assert first.startswith(b"iteration"), (first, self._rest())

    def _first_line(self) -> bytes:
        """Not a byte more: `communicate` knows nothing of what a file object has read ahead."""
        assert self._client.stdout
        line, descriptor = b"", self._client.stdout.fileno()
        while not line.endswith(b"\n") and (more := os.read(descriptor, 1)):
            line += more
        return line

    def running(self) -> bool:
        return self._client.poll() is None

    def result(self) -> dict[str, Any]:
        """What it says at its end, which must be right; its last line is JSON. Its input ends here (`communicate`)."""
        out, err = self._rest()
        assert self._client.returncode == 0, (out[-500:], err)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert result["errors"] == 0 and result["checked_bytes"] > 0, (result, err)
        return result

    def said(self) -> str:
        """The end of what one that has ended said."""
        return " ".join(self._rest())[-2000:]

    def _rest(self) -> tuple[str, str]:
        try:
            return self._client.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as hung:  # whether it stands or goes on: it says a line a second
            lines = (hung.output or b"").splitlines()
            raise AssertionError(f"it did not end in {SECONDS} s; it said {len(lines)} lines: {lines[-3:]}") from hung

    def end(self) -> None:
        """As Ctrl-C does."""
        if self.running():
            self._client.send_signal(signal.SIGINT)
            self._rest()


class World:
    """One instance. `directory` is where commands are given; nodes see it. `enter` are words that bring a command into
    namespaces of its own, if it is to be run in some.
    """

    def __init__(self, name: str, directory: Path, enter: tuple[str, ...] = (), **environment: str) -> None:
        self.instance = Instance(name)
        self.directory = directory
        self._enter = enter
        self._wherry = (*enter, "env", f"--chdir={directory}", str(WHERRY)) if enter else (str(WHERRY),)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WHERRY_", "SUDO_"))}
        self.environment = {**kept, "WHERRY_INSTANCE": name, **environment}

    # Commands.

    def __call__(self, *words: str, **more: str) -> Completed:
        """One command, whatever becomes of it."""
        if not self._enter:
            return forked.run(words, self.directory, {**self.environment, **more}, SECONDS)
        return subprocess.run(
            [*self._wherry, *words],
            cwd=self.directory,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def json(self, *words: str) -> dict[str, Any]:
        """The document of a command that must go well."""
        done = self(*words, "-o", "json")
        assert done.returncode == 0, (words, done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """A command that goes on."""
        return subprocess.Popen(
            [*self._wherry, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def file(self, name: str, text: str) -> str:
        """A file in the directory; its name, as a command takes it."""
        (self.directory / name).write_text(text)
        return name

    def cluster_file(self, name: str, nodes: int, memory: str = "128MiB", more: str = "") -> str:
        text = f"kind: container\nversion: 1\nname: {name}\nnodes: {nodes}\ncpus: 0.25\nmemory: {memory}\n{more}"
        return self.file(f"{name}.yaml", text)

    def up(self, name: str, nodes: int, memory: str = "128MiB", more: str = "") -> None:
        self.json("up", self.cluster_file(name, nodes, memory, more))

    def move(self, node: str, host: str) -> dict[str, Any]:
        """The record of a move that must go well."""
        return self.json("move", node, "--to", host)

    def begin_move(self, node: str, host: str, fault: str | None = None) -> str:
        """Begins a move, with a fault if one is named; the operation. Needs a daemon that runs."""
        with Client(self.instance, start=False) as client:
            return client.begin_move(node, host, fault=fault).id

    def kill_daemon(self) -> None:
        """As `kill -9` does."""
        os.kill(int((self.instance.run / "lock").read_text()), signal.SIGKILL)

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
        """A ring that runs for so long, or until its result is asked for; else it is ended.

        `memory` is MiB for each rank. Without a `pause`, of so many ms in each iteration, it uses all of its nodes' CPU
        and has nearly always a message under way; what is not about that leaves the CPU to the tests beside it.
        """
        options = ["--seconds", str(seconds or _FOR_EVER), "--memory", str(memory), "--size", "16384"]
        options += ["--pause", str(pause)] if pause else []
        options += [] if seconds else ["--input"]
        words = ("run", cluster, "-n", str(ranks), "--", ring_program(flavour, self.directory), *options)
        ring = Ring(self.start(*words, stdin=subprocess.DEVNULL if seconds else subprocess.PIPE))
        try:
            yield ring
        finally:
            ring.end()

    def under_a_ring(self, cluster: str, flavour: str, act: Callable[[], object], **more: int) -> dict[str, Any]:
        """Does `act` while a ring runs, which must be right at its end."""
        with self.ring(cluster, flavour, **more) as ring:
            act()
            assert ring.running(), ring.said()
            return ring.result()

    # What is there.

    def hosts_of(self, cluster: str) -> dict[str, str]:
        """The host of each node, all of which run."""
        with Client(self.instance) as client:
            nodes = client.nodes(cluster)
        assert {node.state for node in nodes} == {NodeState.RUNNING}, nodes
        return {node.name: node.host for node in nodes}

    def hosts(self) -> list[str]:
        """The hosts of the fabric."""
        with Client(self.instance) as client:
            return [host.name for host in client.hosts()]

    def assert_one_copy(self, cluster: str) -> dict[str, str]:
        """Each node has one place, one first process and one plugged port, at the host of its row; returns the hosts.

        Nothing of a move is left: no images, no program of its.
        """
        where = self.hosts_of(cluster)
        found = eventually(lambda: self._troubles(cluster, where), [])
        assert found == []
        return where

    def _troubles(self, cluster: str, where: dict[str, str]) -> list[str]:
        prefix, hosts, found = self.instance.prefix, self.hosts(), list[str]()
        with Client(self.instance) as client:
            (number,) = (c["network"] for c in client.clusters() if c["name"] == cluster)
        places = {path.name for path in (self.instance.run / "nodes").glob(f"{cluster}-*@*")}
        if places != {f"{node}@{host}" for node, host in where.items()}:
            found.append(f"places: {sorted(places)}")
        for node, host in where.items():
            port = f"p{number}.{node.rpartition('-')[2]}"
            groups = [other for other in hosts if Cgroup(f"{prefix}/{other}/{node}").exists()]
            spaces = [other for other in hosts if named_netns.exists(f"{prefix}-{other}-{node}")]
            copies = [pid for other in groups for pid in _first_processes(f"{prefix}/{other}/{node}")]
            ports = [other for other in hosts if self.links(other).get(port) == f"c{number}"]
            if not groups == spaces == ports == [host] or len(copies) != 1:
                found.append(f"{node} on {host}: {groups=} {spaces=} {ports=} {copies=}")
        found += [f"mount {point}" for point in self.mounts() if point.endswith("/images")]
        return found + [f"process {words}" for words in self.movers().values()]

    def links(self, host: str) -> dict[str, str]:
        """The interfaces of a host, each with the bridge that it is plugged at."""
        done = subprocess.run(
            ["ip", "-n", f"{self.instance.prefix}-{host}", "-j", "link"],
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        return {link["ifname"]: link.get("master", "") for link in json.loads(done.stdout)}

    def fabric(self) -> dict[str, dict[str, str]]:
        """Each host's interfaces but those of nodes: what no move changes."""
        return {host: {k: v for k, v in self.links(host).items() if not _of_a_node(k)} for host in self.hosts()}

    def mounts(self) -> list[str]:
        """Mount points of this instance."""
        places = (f"{self.instance.run}/", f"/run/netns/{self.instance.prefix}-")
        return [point for point, _, _ in mounted() if point.startswith(places)]

    def processes(self) -> dict[int, str]:
        """Processes of this instance: started with its environment, or in its cgroups or namespaces."""
        mark = f"WHERRY_INSTANCE={self.instance.name}\0".encode()
        inside = set(Cgroup(self.instance.prefix).pids())
        for name in named_netns.names(self.instance.prefix):
            inside |= set(named_netns.processes(name) if named_netns.exists(name) else [])
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) in inside or mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has ended
                continue
        return found

    def movers(self) -> dict[int, str]:
        """Those processes that exist only while a move is under way."""
        signs = ("criu", "tar --extract", "tar --create", "wherry-hold")
        return {pid: words for pid, words in self.processes().items() if any(sign in words for sign in signs)}

    def everything(self) -> dict[str, list[str]]:
        """All that there is of the instance on this machine, and the machine's own interfaces."""
        prefix = self.instance.prefix
        roots = sorted({Path(point) for point, kind, _ in mounted() if kind in ("cgroup", "cgroup2")})
        groups = [
            path for root in roots for path in root.rglob(f"{prefix}*") if path.name in (prefix, f"{prefix}-head")
        ]
        return {
            "processes": sorted(self.processes().values()),
            "namespaces": named_netns.names(prefix),
            "mounts": self.mounts(),
            "interfaces": sorted(name for _, name in socket.if_nameindex()),
            "cgroups": sorted(map(str, groups)),
            "directories": [str(path) for path in (self.instance.run, self.instance.state) if path.exists()],
        }


@contextmanager
def world(role: str, enter: tuple[str, ...] = (), **environment: str) -> Iterator[World]:
    """An instance that is gone before and after, whatever happened to it. Another checkout's has another name."""
    name = own_name(role)
    with tempfile.TemporaryDirectory(prefix=f"wherry-{name}-") as directory:
        os.chmod(directory, 0o755)
        made = World(name, Path(directory), enter, **environment)
        if any(there for kind, there in made.everything().items() if kind != "interfaces"):
            made("down", "--all")
        try:
            yield made
        finally:
            down = made("down", "--all")
        assert down.returncode == 0, down.stderr


def no_machines(programs: Iterable[str]) -> str:
    """What virtual machines need and this machine lacks; empty when it has all."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in programs if not shutil.which(name, path=path)]
    missing += [] if importlib.util.find_spec("libvirt") else ["libvirt's Python binding"]
    return f"there is no {', no '.join(missing)} (make setup-vm)" if missing else ""


def ring_program(flavour: str, directory: Path) -> str:
    """The ring of an MPI family, in a directory that nodes see; skips the test where it is not built."""
    try:
        built = native_program(f"wherry-ring-{flavour}")
    except Refused:
        pytest.skip(f"wherry-ring-{flavour} is not built: no mpicc of {flavour}")
    copy = directory / built.name  # the checkout may lie below /tmp, which a node has of its own
    if not copy.exists():
        shutil.copy(built, copy)
    return str(copy)


def eventually(look: Callable[[], Value], wanted: Value, seconds: float = 60.0, pause: float = 0.2) -> Value:
    """What `look` sees when that is `wanted`, or when the time is up: some things end a little after they are told."""
    deadline = time.monotonic() + seconds
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(pause)
    return seen


def _of_a_node(link: str) -> bool:
    return link.startswith("p") and not link.endswith(f".{HEAD_INDEX}")


def _first_processes(cgroup: str) -> list[int]:
    """Processes that are the first of a PID namespace of their own."""
    found = []
    for pid in Cgroup(cgroup).pids():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        (ids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
        if len(ids) > 1 and ids[-1] == "1":
            found.append(pid)
    return found
