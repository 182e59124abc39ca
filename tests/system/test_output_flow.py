"""Ranks' output on its way to the command: ranks wait while it does, so nothing of it fills memory, and each line comes
when it is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from realworld import RealInstance

import waiting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {
    "openmpi": "/usr/bin/mpirun.openmpi",
    "mpich": "/usr/bin/mpiexec.mpich",
    "openmpi5": str(Path(__file__).resolve().parents[2] / "build/openmpi/bin/mpirun"),
}
CHAIN = {"openmpi": "OMPI_MCA_routed_radix", "openmpi5": "PRTE_MCA_rml_base_radix"}
"""Variables that set to how many daemons each one is connected; by default 64."""
RANKS, BLOCKS = 4, 192
MOST = 12 << 10
"""KiB by which a process may grow. Connections and pipes have room for less than half of the output of two ranks."""
STREAM = """
def block(rank, number):
    digits = hashlib.shake_128(b"%d %d" % (rank, number)).hexdigest(32768 - 512)
    first = 65 + 32 * (rank // 2) # so that the outputs of the two ranks of a stream differ
    made = digits.translate({ord(digit): first + value for value, digit in enumerate("0123456789abcdef")})
    # in lines, as Open MPI 5 copies the begin of a line each time that more of it comes
    return "".join(made[begin : begin + 63] + "\\n" for begin in range(0, len(made), 63)).encode()
"""
WRITES = f"""
import hashlib, os, time
{STREAM}
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
open(f"up.{{rank}}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
for number in range({BLOCKS}):
    left = block(rank, number)
    while left:
        left = left[os.write(1 + rank % 2, left):]
    with open(f"at.{{rank}}", "w") as file:
        file.write(str(number + 1))
"""
PRINTS = """
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    char name[] = "seen.0";

    for (; name[5] < '3'; name[5]++) {
        printf("line %c\\n", name[5]);
        while (access(name, F_OK) < 0)
            usleep(10000);
    }
    return 0;
}
"""


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    if not Path(LAUNCHERS[request.param]).exists():
        pytest.skip(f"{LAUNCHERS[request.param]} is not installed")
    return str(request.param)


def status(process: int) -> dict[str, str]:
    """Lines of /proc/PID/status; none when the process has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


class Way:
    """The processes of a job, from its ranks to its holder."""

    def __init__(self, four: RealInstance) -> None:
        job = four.json("job", "list", "four")["jobs"][-1]["id"]
        self.holder = int((four.instance.state / "jobs" / job / "pid").read_text().split()[0])
        children = Path(f"/proc/{self.holder}/task/{self.holder}/children").read_text().split()
        self.launcher = int(children[0])
        mark = f"WHERRY_JOB_ID={job}".encode()
        self.all = [self.launcher]
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in entry.read_bytes().split(b"\0") and entry.parent.name not in children:
                    self.all.append(int(entry.parent.name))
            except OSError:
                continue
        self._names = {one: status(one).get("Name", "") for one in self.all}
        self._idle = self._peaks()

    def _peaks(self) -> dict[int, int]:
        return {one: int(found["VmHWM"].split()[0]) for one in self.all if "VmHWM" in (found := status(one))}

    def growth(self) -> dict[str, int]:
        """KiB that each process has had more than at the beginning."""
        return {f"{self._names[one]} {one}": peak - self._idle[one] for one, peak in self._peaks().items()}

    def stands(self) -> bool:
        """Whether none of them runs or is to run."""
        return all(status(one).get("State", "S")[0] in "ST" for one in self.all)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def assert_whole(made: str, stream: int) -> None:
    for rank in range(stream, RANKS, 2):
        first = 65 + 32 * (rank // 2)
        got = hashlib.sha256(bytes(byte for byte in made.encode() if first <= byte < first + 16)).hexdigest()
        expected, names = hashlib.sha256(), {"hashlib": hashlib}
        exec(STREAM, names)
        for number in range(BLOCKS):
            expected.update(names["block"](rank, number).replace(b"\n", b""))  # type: ignore[operator]
        assert got == expected.hexdigest(), f"the output of rank {rank} differs from the bytes it wrote"


@dataclass(frozen=True)
class Case:
    """The program that is stopped under ranks that write, and whether each daemon is connected to one other only."""

    stopped: str = "holder"
    chained: bool = False


def run(four: RealInstance, flavour: str, case: Case) -> tuple[str, str]:
    """The command's output of ranks that write while nobody reads; they wait then, and no process has it instead."""
    four.file("writes.py", WRITES)
    up, at = ([four.directory / f"{kind}.{rank}" for rank in range(RANKS)] for kind in ("up", "at"))
    for file in (*up, *at, four.directory / "go"):
        file.unlink(missing_ok=True)
    launcher = LAUNCHERS[flavour] if flavour == "openmpi5" else flavour
    ranks = ("-n", str(RANKS), "--map-by", "ppr:1:node" if case.chained else "ppr:2:node")
    with four.start("run", "four", *ranks, "--mpi", launcher, "python3", "writes.py") as client:
        waiting.until(lambda: all(file.exists() for file in up), "all ranks")
        way = Way(four)
        looks = list[list[str]]()

        def no_more_comes() -> bool:
            """Ten looks in a row: all have written something, none has got further, and nothing runs."""
            looks.append([file.read_text() for file in at if file.exists()] if way.stands() else [])
            return len(looks) >= 10 and len(looks[-1]) == RANKS and all(one == looks[-1] for one in looks[-10:])

        with stopped(way.holder if case.stopped == "holder" else way.launcher):
            four.file("go", "")
            waiting.until(no_more_comes, lambda: f"a stop: {looks[-1]}")
            assert all(int(one or 0) < BLOCKS for one in looks[-1]), f"ranks ended: {way.growth()}"
            assert all(more < MOST for more in way.growth().values()), way.growth()
        grown = dict[str, int]()
        with ThreadPoolExecutor() as threads:
            reading = threads.submit(client.communicate, timeout=waiting.bound(300))
            while not reading.done():  # a process that has ended shows its peak no more
                grown.update(way.growth())
                time.sleep(0.05)
            out, err = reading.result()
        assert client.returncode == 0, err[-2000:]
        assert grown and all(more < MOST for more in grown.values()), grown
    return out, err


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(), marks=pytest.mark.smoke, id="holder"),
        pytest.param(Case("launcher"), marks=pytest.mark.thorough, id="launcher"),
        pytest.param(Case(chained=True), marks=pytest.mark.thorough, id="chain"),
    ],
)
def test_ranks_wait_while_their_output_does(
    four: RealInstance, flavour: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write to both streams."""
    if case.chained and flavour not in CHAIN:
        pytest.skip("hydra's daemons are all connected to the launcher")
    if case.chained:
        monkeypatch.setitem(four.environment, CHAIN[flavour], "1")
    out, err = run(four, flavour, case)
    assert_whole(out, 0)
    assert_whole(err.replace("mpirun.openmpi: Forwarding signal 18 to job\n", ""), 1)


@pytest.mark.skipif(not Path(LAUNCHERS["openmpi"]).exists(), reason="Open MPI is not installed")
def test_each_line_comes_when_it_is_printed(four: RealInstance) -> None:
    """Of a program that flushes nothing: Open MPI's ranks have a terminal."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no compiler")
    subprocess.run(
        [compiler, "-o", four.directory / "prints", four.directory / four.file("prints.c", PRINTS)], check=True
    )
    for number in range(3):
        (four.directory / f"seen.{number}").unlink(missing_ok=True)
    with four.start("run", "four", "-n", "1", "--mpi", "openmpi", "./prints") as client, waiting.no_hang():
        assert client.stdout is not None
        for number in range(3):
            assert client.stdout.readline() == f"line {number}\n"
            four.file(f"seen.{number}", "")
        assert client.wait() == 0
