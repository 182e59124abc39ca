"""Kernel objects of a container's processes that a move carries or refuses; the program is in tests/objects."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_names import INSTANCE
from test_node import NodeUnderTest, movable_node

from wherry.base.errors import Refused
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.container.local_host import LocalHosts
from wherry.node.protocol import NodeDriver, Placement

pytestmark = [
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs that hold the objects"),
]
SOURCES = Path(__file__).parent.parent / "objects"
_ROOT = Owner(uid=0, gid=0, home="/", cwd="/tmp")  # noqa: S108 - the node's own


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the program of tests/objects."""
    binary = tmp_path_factory.mktemp("objects") / "objects"
    sources = map(str, sorted(SOURCES.glob("*.c")))
    arguments = [
        "gcc",
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-o",
        str(binary),
        *sources,
        "-lrt",
    ]
    subprocess.run(arguments, check=True)
    return binary


class Objects:
    """A node with one process and one kernel object for each case."""

    def __init__(self, node_under_test: NodeUnderTest, program: Path) -> None:
        self.node_under_test, self._program = node_under_test, program
        self._hosts = LocalHosts(INSTANCE, node_under_test.fabric)

    def directory(self, placement: Placement) -> Path:
        return self._hosts.of(placement.host).layout(placement).private / "tmp"

    def run(self, *arguments: str) -> None:
        placement = self.node_under_test.source
        node = AgentEndpoint(placement.netns, placement.node.address, placement.key.get_secret_value())
        ended = node.run(list(arguments), _ROOT, {"PATH": "/usr/bin:/bin"}, 60)
        assert ended.code == 0, ended

    def make(self, *cases: str) -> bool:
        """Starts the cases and waits until each has its object. Returns False if the kernel lacks an optional kind."""
        directory = self.directory(self.node_under_test.source)
        shutil.copy(self._program, directory / "objects")
        self.run("/tmp/objects", "/tmp", *cases)  # noqa: S108
        problems_by_case = {case: _report_of(directory / f"{case}.ready") for case in cases}
        assert not any(why for case, why in problems_by_case.items() if case not in OPTIONAL), problems_by_case
        return not any(problems_by_case.values())

    def check(self, *cases: str) -> dict[str, str]:
        """Case -> what is wrong with its object."""
        placement = (
            self.node_under_test.destination
            if self.node_under_test.driver.alive(self.node_under_test.destination)
            else self.node_under_test.source
        )
        directory = self.directory(placement)
        (directory / "go").touch()
        return {case: obstacle for case in cases if (obstacle := _report_of(directory / f"{case}.result"))}

    def move(self) -> None:
        """A stop-and-copy move."""
        mover = self.node_under_test.mover()
        for step in self.node_under_test.steps(mover):
            step()
        self.node_under_test.finish(mover)
        self.node_under_test.assert_runs_only_at(self.node_under_test.destination)

    def move_and_take_back(self) -> None:
        mover = self.node_under_test.mover()
        for step in self.node_under_test.steps(mover):
            step()
        self.node_under_test.roll_back(mover)
        self.node_under_test.assert_runs_only_at(self.node_under_test.source)


def _report_of(file: Path) -> str:
    deadline = time.monotonic() + 40
    while not file.exists():
        if time.monotonic() > deadline:
            return "it did not answer"
        time.sleep(0.02)
    return file.read_text()


@pytest.fixture
def objects(nodes: tuple[NodeDriver, Fabric], program: Path) -> Iterator[Objects]:
    with movable_node(*nodes) as node_under_test:
        try:
            yield Objects(node_under_test, program)
        finally:
            for placement in (node_under_test.source, node_under_test.destination):
                if Cgroup(placement.cgroup).exists():
                    Cgroup(placement.cgroup).thaw()


TIMERS = (
    *("mono20", "mono20b", "mono100", "mono1000", "mono1", "real20", "real100", "real1000", "boot20", "boot100"),
    *("mono4300abs", "once_mono", "once_abs", "once_real_abs", "once_cancel", "expired", "disarmed", "read"),
    *("itimer_real", "itimer_virtual", "itimer_prof", "itimer_pending", "alarm"),
    *("posix_mono", "posix_real", "posix_boot", "posix_cpu", "posix_thread_cpu", "posix_none"),
    *("posix_pending", "clocks"),
)


CARRIED = (
    *("pending", "scheduling", "affinity", "ionice", "slack", "limits", "prctl", "subreaper", "stack", "shared"),
    *("advice", "membarrier", "pipe", "pipe_full", "fifo", "eventfd", "shm", "shm_removed", "shm_unattached", "sem"),
    *("msg", "shm_posix", "deleted", "memfd", "append", "directory", "signalfd", "inotify", "inotify_shared"),
    *("tmpfile", "epoll", "unix_stream", "unix_dgram", "unix_packets", "unix_rights", "udp", "tcp"),
    *("tcp_half_closed", "fanotify", "pidfd", "raw", "packet", "netlink", "proc_file", "device"),
)
OPTIONAL = ("io_uring", "userfaultfd", "perf", "landlock")
"""Kinds that a kernel may be built or configured without."""
REFUSED = {
    "io_uring": "io_uring",
    "userfaultfd": "userfaultfd",
    "perf": "perf_event",
    "landlock": "landlock",
    "pipe_packets": "packet mode",
    "mq": "message queue /a-queue",
    "inotify_queued": "unread events",
    "eventfd_semaphore": "semaphore mode",
    "multicast": "239.1.2.3",
    "posix_thread": "SIGEV_THREAD_ID",
}


def test_periodic_timers_keep_ticking_after_a_move(objects: Objects) -> None:
    objects.make(*TIMERS)
    objects.move()
    assert objects.check(*TIMERS) == {}


def test_timers_keep_their_remaining_time(objects: Objects) -> None:
    objects.make(*TIMERS)
    objects.move_and_take_back()
    assert objects.check(*TIMERS) == {}


def test_kernel_objects_move_with_their_state(objects: Objects) -> None:
    objects.make(*CARRIED)
    objects.move()
    assert objects.check(*CARRIED) == {}


def test_objects_that_a_move_would_lose_are_refused_by_name(objects: Objects) -> None:
    node_under_test, group = objects.node_under_test, Cgroup(objects.node_under_test.source.cgroup)
    before = group.pids()
    for case, expected in REFUSED.items():
        if not objects.make(case):
            continue
        obstacle = node_under_test.driver.move_obstacle(node_under_test.source, node_under_test.destination)
        assert expected in obstacle and ("(objects)" in obstacle or case == "multicast"), (case, obstacle)
        with pytest.raises(Refused, match="cannot be moved"):
            node_under_test.mover().prepare()
        assert not Cgroup(node_under_test.destination.cgroup).exists(), "nothing is made before the refusal"
        ended = set(group.pids()) - set(before)
        for pid in ended:
            os.kill(pid, signal.SIGKILL)
        while set(group.pids()) & ended:
            time.sleep(0.01)
    assert not node_under_test.driver.move_obstacle(node_under_test.source, node_under_test.destination)
