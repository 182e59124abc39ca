"""libwherry-mpi: calls of ranks of both MPIs are counted, in C and in Fortran, and can be read while they run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from mpi_programs import LAUNCH, LIBRARY, RANKS, Programs, descendants, environment

from wherry.node import mpi_page
from wherry.node.mpi_page import Page


def counted(page: Page) -> dict[str, tuple[int, int]]:
    """Calls and bytes of each operation."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for cell in page.cells():
        sums[cell.operation][0] += cell.calls
        sums[cell.operation][1] += cell.bytes
    return {name: (calls, size) for name, (calls, size) in sums.items()}


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(request.param, tmp_path_factory.mktemp(request.param))
    made.build("mpicc", "mpi_calls.c", "c")
    made.build("mpicc", "mpi_calls.c", "library.so", "-shared", "-fPIC")
    return made


def check(found: dict[int, Page]) -> None:
    """What mpi_calls.c says."""
    assert sorted(found) == list(range(RANKS))
    for rank, page in found.items():
        calls, peers, after = counted(page), page.peers(), (rank + 1) % RANKS
        assert page.size == RANKS
        assert calls["Isend"] == (3, 3 * 800) and calls["Recv"][0] == 3 + 3 * (rank == RANKS - 1)
        assert calls["Send_init"][0] == 1 and calls["Start"][0] == 6 and calls["Startall"][0] == 2
        assert calls["Start"][1] + calls["Startall"][1] == 5 * 40
        assert calls.get("Send", (0, 0)) == ((1, 24) if rank != RANKS - 1 else (0, 0))
        assert calls["Allreduce"] == (7, 56) and calls["Bcast"] == (1, 4096)
        assert calls["Gather"] == (1, 4) and calls["Allgather"] == (1, 4) and calls["Alltoallv"] == (1, 4 * RANKS)
        assert calls["Iprobe"][0] == 1000 and calls["Comm_split"][0] == 1 and calls["Comm_free"][0] == 1
        assert peers[after].messages == 3 + 5 + (after == RANKS - 1 != rank)
        assert peers[after].bytes == 2400 + 200 + 24 * (after == RANKS - 1 != rank)
        assert peers[(rank - 1) % RANKS].receives == 3
        assert [one.size for one in page.communicators()][:2] == [RANKS, RANKS]
        assert page.now == ("" if rank == 0 else "Barrier")
        assert 0 < page.inside < page.time - page.begun
    assert 1e8 < found[0].rate < 1e10
    page, lists, requests = found[0].bytes - 32 * (RANKS + 1) + 32 * 4097, 512 << 10, 4096 * 32  # objects.c
    assert page + lists + requests < 1 << 20, "a megabyte for 4096 peers"


@pytest.mark.parametrize("threads", ["SINGLE", "MULTIPLE"])
def test_calls_are_counted(programs: Programs, threads: str) -> None:
    with programs.running(str(programs.directory / "c"), **{threads: "1"}) as found:
        check(found)
        assert all(page.flags == (threads == "MULTIPLE") for page in found.values())


def test_what_is_preloaded_beside_it_has_its_turn(programs: Programs) -> None:
    """As `wherry run` does: the library that distinguishes a test from a wait before ours."""
    with programs.running(str(programs.directory / "c"), preload=f"libwherry-wait.so {LIBRARY}") as found:
        check(found)


def test_an_mpi_that_was_loaded_for_one_library_alone(programs: Programs) -> None:
    """RTLD_LOCAL, as Python loads mpi4py."""
    program = f"""
import ctypes, os
library = ctypes.CDLL({str(programs.directory / "library.so")!r})
raise SystemExit(library.mpi_calls(os.environ["READY"].encode(), os.environ["STOP"].encode()))
"""
    with programs.running(sys.executable, "-c", program) as found:
        check(found)


def test_fortran_is_counted_once(programs: Programs) -> None:
    if not shutil.which(f"mpifort.{programs.flavour}"):
        pytest.skip(f"no mpifort.{programs.flavour} on this machine")
    program = programs.build("mpifort", "mpi_calls.f90", "fortran")
    with programs.running(str(program)) as found:
        for rank, page in found.items():
            calls, peers = counted(page), page.peers()
            assert calls["Isend"] == (6, 6 * 800) and calls["Recv"][0] == 6 and calls["Wait"][0] == 6
            assert calls["Comm_dup"][0] == calls["Comm_free"][0] == 1
            assert calls["Allreduce"] == (14, 14 * 8) and calls["Allgather"] == (2, 8)
            assert peers[(rank + 1) % RANKS].messages == 6 and peers[(rank + 1) % RANKS].bytes == 4800


def test_the_page_of_a_child_is_not_one_more_ranks(programs: Programs) -> None:
    """fork() copies the page."""
    with programs.running(str(programs.directory / "c"), FORK="1") as found:
        check(found)
        mine = [pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().strip() == "c"]
        assert len(mine) == 2 * RANKS and sum(mpi_page.read(pid, RANKS) is not None for pid in mine) == RANKS


@pytest.mark.measures("the cost of a call is measured on a machine that others use")
def test_a_call_costs_little(programs: Programs) -> None:
    program = str(programs.build("mpicc", "mpi_cost.c", "cost"))

    def cost(preload: str) -> dict[str, float]:
        words = [*programs.command(preload, 1), program, "30", "20000"]
        done = subprocess.run(words, env={**os.environ, **environment()}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout)
        return found

    without, with_ours = cost(""), cost(LIBRARY)
    added = {name: with_ours[name] - without[name] for name in without}
    print(added)
    assert all(nanoseconds < 65 for nanoseconds in added.values()), (added, without)
