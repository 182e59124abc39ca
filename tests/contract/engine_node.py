"""A container whose processes are active all the time, moved between two hosts of a site and to another site.

Invariant of `attempt`: whatever a step or a fault does, afterwards one copy runs, with nothing of a move left anywhere;
if it cannot, the test fails.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract_names import INSTANCE
from node_objects import Objects
from test_node import NodeUnderTest

import waiting
from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.mounts import mounted
from wherry.node.container.mover import ContainerMover
from wherry.node.netns_socket import listen_in
from wherry.node.protocol import NodeDriver, Placement

HOSTS = ("a1", "a2", "b1")
"""The first two are of one site."""
BUSY = (
    *("busy_private", "busy_freed", "busy_memfd", "busy_dev_shm", "busy_file_shared", "busy_file_private"),
    *("busy_anon_shared", "busy_deleted_file", "busy_pipe", "busy_unix", "busy_tcp", "busy_unix_dgram"),
    *("busy_unix_packets", "busy_signals", "busy_epoll", "busy_appended", "busy_forks", "busy_threads", "busy_ending"),
    *("busy_vforks", "busy_churn", "busy_sysv", "busy_resized", "busy_remapped", "busy_sealed", "busy_removed"),
    *("busy_sysv_removed", "busy_parts"),
)
TELLING = ("busy_private", "busy_anon_shared", "busy_memfd", "busy_tcp", "busy_pipe", "busy_threads", "busy_appended")
"""Of each kind one, for cells that there are many of."""
STEPS = ("prepare", "round", "freeze", "transfer", "restore")
MEMORY = 384 << 20
_HOST_MEMORY = 1 << 30
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Mode:
    """How a node is moved: rounds before the freeze, if there can be any, the rate in bit/s, and its parameters."""

    rounds: int = 0
    rate: float | None = None
    parameters: MigrationParameters | None = None

    @property
    def post_copy(self) -> bool:
        return self.parameters is not None and self.parameters.may_post_copy


class EchoPeer:
    """A program in another node: it sends all bytes back. On the network it is a node as any other."""

    def __init__(self, netns: str, address: str) -> None:
        self._listener = listen_in(netns, address, 600)
        self.place = f"{address} {self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self._start(lambda end=end: self._echo(end))  # type: ignore[misc]

    def _echo(self, end: socket.socket) -> None:
        with end, suppress(OSError):
            while data := end.recv(_BLOCK):
                end.sendall(data)

    def _start(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, daemon=True, name="echo").start()


class EngineNode(Objects):
    """The node; it runs at `source`."""

    def __init__(self, node_under_test: NodeUnderTest, program: Path, writer: Path, disk: int = 0) -> None:
        super().__init__(node_under_test, program)
        self._writer, self._disk = writer, disk
        head = node_under_test.head
        self._peer = EchoPeer(node_under_test.fabric.port_netns(head), head.address)
        node_under_test.source = self.place("a1")
        node_under_test.driver.start(node_under_test.source)
        self.aim("b1")

    def close(self) -> None:
        self._peer.close()
        for host in HOSTS:
            place = self.place(host)
            if Cgroup(place.cgroup).exists():
                Cgroup(place.cgroup).thaw()
            self.node_under_test.driver.stop(place)
            self.node_under_test.fabric.port_down(self.node_under_test.port(place))

    def place(self, host: str) -> Placement:
        made = self.node_under_test._placement(host)
        return made.model_copy(update={"node": made.node.model_copy(update={"memory": MEMORY, "disk": self._disk})})

    @property
    def host(self) -> str:
        """Where it runs."""
        return self.node_under_test.source.host

    def aim(self, host: str) -> None:
        """The next move goes there."""
        self.node_under_test.destination = self.place(host)

    def begin(self, *cases: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts activities and objects, and waits until each activity has made a lap."""
        writer = self.directory(self.node_under_test.source) / "memory_writer"
        writer.write_bytes(self._writer.read_bytes())
        writer.chmod(0o755)
        self.make(*cases, environment={"PEER": self._peer.place, **(environment or {})})
        self.await_laps(*(case for case in cases if case.startswith("busy_")))

    def attempt(self, mode: Mode, strike: Callable[[str, ContainerMover], None] | None = None) -> str:
        """One move to where it is aimed; `strike` is called after each step before the commit. Empty when the node has
        moved, else why it was rolled back."""
        node = self.node_under_test
        mover = node.mover(mode.parameters)
        assert isinstance(mover, ContainerMover)
        try:
            self._steps(mover, mode, strike)
        except Failed as error:
            assert error.code in (Code.MOVE_FAILED, Code.TIMED_OUT, Code.UNREACHABLE, Code.FAILED), error
            node.roll_back(mover)
            self.assert_one_copy(node.source)
            return str(error)
        except BaseException:
            node.roll_back(mover)
            raise
        node.finish(mover)
        node.source, node.destination = node.destination, node.source
        self.assert_one_copy(node.source)
        return ""

    def _steps(self, mover: ContainerMover, mode: Mode, strike: Callable[[str, ContainerMover], None] | None) -> None:
        mover.limit_rate(mode.rate)
        prepare, freeze, transfer, restore = self.node_under_test.steps(mover, mode.post_copy)

        def rounds() -> None:
            for number in range(1, mode.rounds + 1 if mover.can_round() else 1):
                mover.round(number)

        for name, step in zip(STEPS, (prepare, rounds, freeze, transfer, restore), strict=True):
            step()
            if strike:
                strike(name, mover)
        if problem := mover.problem():
            raise Failed(Code.MOVE_FAILED, problem)

    def assert_one_copy(self, place: Placement | None) -> None:
        """Nothing of the node or of a move is anywhere but at `place`; None: nowhere."""
        node, expected = self.node_under_test, [place.host] if place else []
        places = [self.place(host) for host in HOSTS]
        local = {each.host: self._hosts.of(each.host) for each in places}
        left = {
            "copies": [each.host for each in places if node.driver.alive(each)],
            "cgroups": [each.host for each in places if Cgroup(each.cgroup).exists()],
            "directories": [each.host for each in places if local[each.host].layout(each).directory.exists()],
        }
        assert left == dict.fromkeys(left, expected)
        assert not [each.host for each in places if local[each.host].engine_group(each).pids()], "CRIU still runs"
        assert not [each.host for each in places if local[each.host].pager_group(each).pids()], "the pager still runs"
        images = [point for point, _, _ in mounted() if point.startswith(f"{INSTANCE.run}/") and "/images" in point]
        assert not images

    # Faults.

    def link(self, host: str, word: str) -> None:
        """Cuts a host off silently (`down`), or joins it again (`up`)."""
        subprocess.run(
            ["ip", "-n", f"{INSTANCE.prefix}-{host}", "link", "set", "up0", word], check=True, timeout=waiting.bound()
        )

    def starve(self, host: str) -> None:
        """Leaves a host hardly any memory beyond the memory in use that it cannot give back."""
        group = Cgroup(self.node_under_test.fabric.cgroup(host))
        for memory in range(8 << 20, _HOST_MEMORY, 8 << 20):
            with suppress(Failed):  # cgroup v1: it is in use
                group.limit(None, memory)
                return

    def fill(self, host: str) -> None:
        """Fills the file system of a move's images at a host."""
        images = self._hosts.of(host).layout(self.place(host)).images
        room = os.statvfs(images)
        size = (room.f_blocks - room.f_bfree) * room.f_frsize or room.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={size}", str(images)], check=True, timeout=waiting.bound())

    def fill_files(self, host: str) -> None:
        """Fills the file system of the node's files at a host."""
        directory = self._hosts.of(host).layout(self.place(host)).directory
        room = os.statvfs(directory)
        size = (room.f_blocks - room.f_bfree) * room.f_frsize or room.f_frsize
        subprocess.run(["mount", "-o", f"remount,size={size}", str(directory)], check=True, timeout=waiting.bound())

    def mend(self) -> None:
        """Takes all of these back."""
        for host in HOSTS:
            self.link(host, "up")
            Cgroup(self.node_under_test.fabric.cgroup(host)).limit(None, _HOST_MEMORY)


@contextmanager
def engine_node(driver: NodeDriver, fabric: Fabric, program: Path, writer: Path, disk: int = 0) -> Iterator[EngineNode]:
    """A node that runs and that this machine can move, with so many bytes of disk for its /tmp."""
    under_test = NodeUnderTest(driver, fabric)
    made: EngineNode | None = None
    try:
        made = EngineNode(under_test, program, writer, disk)
        if reason := driver.move_obstacle(under_test.source, under_test.destination):
            pytest.skip(reason)
        yield made
    finally:
        if made:
            made.mend()
            made.close()
        under_test.remove()
