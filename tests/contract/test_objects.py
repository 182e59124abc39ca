"""What a move carries of the kernel objects that a container's processes hold, and what it refuses: tests/objects."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_node import Stand

from wherry.base.errors import Refused
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver, Placement

pytestmark = [
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs that hold the objects"),
]
SOURCES = Path(__file__).parent.parent / "objects"
_ROOT = Owner(uid=0, gid=0, home="/", cwd="/tmp")  # noqa: S108 - the node's own


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/objects."""
    binary = tmp_path_factory.mktemp("objects") / "objects"
    sources = map(str, sorted(SOURCES.glob("*.c")))
    words = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(binary), *sources, "-lrt"]
    subprocess.run(words, check=True)
    return binary


class Objects:
    """A node whose processes hold objects, one process and one object for each case."""

    def __init__(self, stand: Stand, program: Path) -> None:
        self.stand, self._program = stand, program
        driver = stand.driver
        assert isinstance(driver, ContainerDriver)
        self._layout = driver.layout

    def directory(self, place: Placement) -> Path:
        return self._layout(place).private / "tmp"

    def run(self, *words: str) -> None:
        place = self.stand.here
        node = AgentEndpoint(place.netns, place.node.address, place.key.get_secret_value())
        ended = node.run(list(words), _ROOT, {"PATH": "/usr/bin:/bin"}, 60)
        assert ended.code == 0, ended

    def make(self, *cases: str) -> bool:
        """Starts the cases; returns when each has its object. False when this kernel has none of an optional kind."""
        directory = self.directory(self.stand.here)
        shutil.copy(self._program, directory / "objects")
        self.run("/tmp/objects", "/tmp", *cases)  # noqa: S108
        made = {case: _said(directory / f"{case}.ready") for case in cases}
        assert not any(why for case, why in made.items() if case not in OPTIONAL), made
        return not any(made.values())

    def check(self, *cases: str) -> dict[str, str]:
        """What is wrong with each case's object by now."""
        place = self.stand.there if self.stand.driver.alive(self.stand.there) else self.stand.here
        directory = self.directory(place)
        (directory / "go").touch()
        return {case: said for case in cases if (said := _said(directory / f"{case}.result"))}

    def move(self) -> None:
        """Stop and copy."""
        mover = self.stand.mover()
        for step in self.stand.steps(mover):
            step()
        self.stand.finish(mover)
        self.stand.assert_runs_at(self.stand.there)

    def move_and_take_back(self) -> None:
        mover = self.stand.mover()
        for step in self.stand.steps(mover):
            step()
        self.stand.take_back(mover)
        self.stand.assert_runs_at(self.stand.here)


def _said(file: Path) -> str:
    deadline = time.monotonic() + 40
    while not file.exists():
        if time.monotonic() > deadline:
            return "it did not answer"
        time.sleep(0.02)
    return file.read_text()


@pytest.fixture
def objects(nodes: tuple[NodeDriver, Fabric], program: Path) -> Iterator[Objects]:
    stand = Stand(*nodes)
    try:
        stand.driver.start(stand.here)
        if reason := stand.driver.move_obstacle(stand.here, stand.there):
            pytest.skip(reason)
        yield Objects(stand, program)
    finally:
        for place in (stand.here, stand.there):
            if Cgroup(place.cgroup).exists():
                Cgroup(place.cgroup).thaw()
        stand.remove()


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
"""Kinds that a kernel may be built or told to do without."""
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
    stand, group = objects.stand, Cgroup(objects.stand.here.cgroup)
    before = group.pids()
    for case, word in REFUSED.items():
        if not objects.make(case):
            continue
        said = stand.driver.move_obstacle(stand.here, stand.there)
        assert word in said and ("(objects)" in said or case == "multicast"), (case, said)
        with pytest.raises(Refused, match="cannot be moved"):
            stand.mover().prepare()
        assert not Cgroup(stand.there.cgroup).exists(), "nothing is made before the refusal"
        ended = set(group.pids()) - set(before)
        for pid in ended:
            os.kill(pid, signal.SIGKILL)
        while set(group.pids()) & ended:
            time.sleep(0.01)
    assert not stand.driver.move_obstacle(stand.here, stand.there)
