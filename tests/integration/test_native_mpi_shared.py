"""libwherry-mpi: messages of some size between ranks of one host go through its memory, and arrive as they were sent.

A directory stands for a host, and another one for the own files of each rank's node. A rank is moved while it is
stopped, by the code of moves (`HostMemory`), and then finds itself at another host.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mpi_programs import LAUNCH, LIBRARY, Programs, environment

from properties import examples
from wherry.model.host_memory import KEPT
from wherry.model.owner import Owner
from wherry.node.container.host_memory import HostMemory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a host's memory is mounted")
SECRET = "5a" * 32
JOB = "job-test"

BY_RANK = f"""#!/bin/sh
rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}
echo $$ >$HOSTS/node$rank/pid
WHERRY_MPI_SHARED=$HOSTS/node$rank/host/{JOB} WHERRY_MPI_KEPT=$HOSTS/node$rank{KEPT}/{JOB} \\
WHERRY_MPI_SECRET={SECRET} exec "$@"
"""


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_shared.c", "shared")
    made.build("mpicc", "mpi_shared.c", "probing", "-DPROBED")
    return made


class Hosts:
    """So many hosts with ranks on them in turn, each in a node of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "by-rank"
        self.script.write_text(BY_RANK)
        self.script.chmod(0o755)

    def make(self, ranks: int, count: int) -> None:
        for host in range(count):
            self.memory(host).join()
        for rank in range(ranks):
            (self.node(rank) / KEPT.strip("/")).mkdir(parents=True)
            self.place(rank, rank % count)

    def remove(self) -> None:
        for host in range(2):
            self.memory(host).leave()

    def node(self, rank: int) -> Path:
        return self.directory / f"node{rank}"

    def memory(self, host: int) -> HostMemory:
        owner = Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd="/")
        return HostMemory(self.directory / f"host{host}", "node", owner, 1 << 28)

    def place(self, rank: int, host: int) -> None:
        link = self.node(rank) / "host"
        link.with_suffix(".new").symlink_to(self.memory(host).outside)
        link.with_suffix(".new").rename(link)

    def where(self, rank: int) -> HostMemory:
        directory = (self.node(rank) / "host").resolve().parent
        return self.memory(int(directory.name.removeprefix("host")))

    def left(self) -> list[Path]:
        kept = [path for path in self.directory.glob(f"node*{KEPT}/*") if not path.is_symlink()]
        return [*kept, *self.directory.glob("host*/memory/*")]

    def move(self, rank: int, host: int) -> bool:
        """False when the rank was within a call that has a file open, or does not run."""
        pid = int((self.node(rank) / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            while not stands(pid):
                time.sleep(0.0001)
            here = self.where(rank)
            here.take_home(self.node(rank))
            if here.user_of([pid]) is not None:
                return False
            self.place(rank, host)
            return True
        finally:
            os.kill(pid, signal.SIGCONT)


def stands(pid: int) -> bool:
    states = [path.read_bytes().rpartition(b")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) <= {b"T", b"t", b"Z"}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.remove()


def run(programs: Programs, hosts: Hosts, *words: str, ranks: int = 4, count: int = 1, program: str = "shared") -> str:
    """Its output, with ranks in turn at so many hosts."""
    if not hosts.node(0).exists():
        hosts.make(ranks, count)
    command = programs.command(f"libwherry-wait.so {LIBRARY}", ranks)
    if programs.flavour == "openmpi":
        command += ["-x", "HOSTS"]
    command += [str(hosts.script), str(programs.directory / program), *words]
    env = {**os.environ, **environment(), "HOSTS": str(hosts.directory)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "wherry" not in done.stderr
    return done.stdout


def check(printed: str, ranks: int = 4) -> list[int]:
    """Messages through files, by their receivers."""
    wrong, _, files = printed.strip().partition(" wrong, files ")
    assert wrong == "0"
    assert len(files.split()) == ranks
    return list(map(int, files.split()))


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.thorough)])
def test_messages_at_one_host(programs: Programs, hosts: Hosts, seed: str) -> None:
    found = check(run(programs, hosts, seed, str(examples(40))))
    assert min(found) > examples(40)
    assert hosts.left() == []


def test_ranks_at_two_hosts_share_memory_with_those_of_theirs_alone(programs: Programs, hosts: Hosts) -> None:
    assert min(check(run(programs, hosts, "3", str(examples(40)), ranks=5, count=2), 5)) > 0
    assert hosts.left() == []


def test_ranks_that_are_alone_at_their_hosts_use_the_network(programs: Programs, hosts: Hosts) -> None:
    assert check(run(programs, hosts, "3", "5", ranks=2, count=2), 2) == [0, 0]


def test_a_receive_that_is_too_small_has_the_librarys_error(programs: Programs, hosts: Hosts) -> None:
    assert check(run(programs, hosts, "truncate", ranks=2), 2) == [0, 2]


def test_more_messages_than_there_is_room_for(programs: Programs, hosts: Hosts) -> None:
    assert check(run(programs, hosts, "many", ranks=2), 2) == [0, 8]


def test_a_program_that_asks_for_sizes_gets_all_by_the_library(programs: Programs, hosts: Hosts) -> None:
    assert check(run(programs, hosts, "4", "10", program="probing")) == [0, 0, 0, 0]


@contextmanager
def moving(hosts: Hosts, ranks: int, count: int) -> Iterator[list[int]]:
    """While ranks are moved between hosts, or stay where they are, in any moment; how often, and how often not."""
    stop, times, draw = threading.Event(), [0, 0], random.Random(1)  # noqa: S311 - no secret

    def move() -> None:
        while not stop.is_set():
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                times[not hosts.move(draw.randrange(ranks), draw.randrange(count))] += 1
            time.sleep(draw.choice((0.001, 0.05, 0.3)))

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def test_ranks_that_are_moved_at_any_moment_lose_and_repeat_nothing(programs: Programs, hosts: Hosts) -> None:
    hosts.make(4, 2)
    with moving(hosts, 4, 2) as times:
        while times[0] <= 10:  # a busy machine leaves few moments in which a rank can be moved
            check(run(programs, hosts, "5", str(examples(120))))


def test_ranks_that_meet_share_memory(programs: Programs, hosts: Hosts) -> None:
    """Both are at hosts of their own at first."""
    hosts.make(2, 2)
    moved = list[bool]()

    def move() -> None:
        while not hosts.memory(0).outside.joinpath(JOB, "0").exists():
            time.sleep(0.01)
        while not (done := hosts.move(1, 0)):
            pass
        moved.append(done)

    thread = threading.Thread(target=move)
    thread.start()
    found = check(run(programs, hosts, "7", str(examples(150)), ranks=2, count=2), 2)
    thread.join()
    assert moved
    assert min(found) > 0


def test_without_the_directory_all_goes_by_the_library(programs: Programs, hosts: Hosts) -> None:
    hosts.make(4, 1)
    hosts.memory(0).leave()
    assert check(run(programs, hosts, "6", "5")) == [0, 0, 0, 0]


def test_a_host_whose_memory_is_full(programs: Programs, hosts: Hosts) -> None:
    hosts.make(4, 1)
    subprocess.run(["mount", "-o", "remount,size=300k", str(hosts.memory(0).outside)], check=True)
    check(run(programs, hosts, "8", str(examples(20))))


@pytest.mark.parametrize("names", ["old", "new"])
def test_fortran(programs: Programs, hosts: Hosts, names: str) -> None:
    """MPICH's mpi_f08 calls names that we do not wrap, so nothing comes to it by memory."""
    compiler, flags = shutil.which(f"mpifort.{programs.flavour}"), ["-cpp", *(["-DNEW"] if names == "new" else [])]
    if not compiler:
        pytest.skip("no Fortran on this machine")
    programs.build("mpifort", "mpi_shared.F90", f"fortran-{names}", "-O1", *flags)
    wrong, _, files = run(programs, hosts, ranks=3, program=f"fortran-{names}").partition("\n")
    assert wrong.strip() == "0 wrong"
    seen = names == "old" or programs.flavour == "openmpi"
    found = {file.rpartition(".")[0] for file in files.split()}
    assert found == ({"0/2", "1/0", "2/1"} if seen else set())
    assert hosts.left() == []
