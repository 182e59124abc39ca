"""`wherry run --site-collectives`: results over two sites are the library's own, also when a node moves meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance, real_instance

from wherry.job import rank_sites
from wherry.job.rank_sites import RankSites, site_numbers, site_runs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
NATIVE = Path(__file__).resolve().parents[2] / "native"
FABRIC = """\
kind: fabric
version: 1
name: far
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 2, memory: 1GiB}
  - {name: b1, site: b, cores: 2, memory: 1GiB}
  - {name: b2, site: b, cores: 2, memory: 1GiB}
links:
  - {between: [a, b], latency: 10ms}
"""


@pytest.fixture(scope="module")
def far() -> Iterator[RealInstance]:
    """Four nodes at two sites, 10 ms apart."""
    with real_instance("tsco") as created:
        created.json("fabric", "up", created.file("far.yaml", FABRIC))
        created.up("four", 4, more="placement: spread\n")
        yield created


def built(far: RealInstance, flavour: str, source: str) -> str:
    """The path of a test's program, built for an MPI."""
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    program = str(far.directory / f"{Path(source).stem}-{flavour}")
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{NATIVE / 'mpi'}", "-o", program]
    words = [f"mpicc.{flavour}", *options, str(NATIVE / "tests" / source)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return program


@pytest.mark.parametrize(
    ("flavour", "source", "cases", "right"),
    [
        ("openmpi", "mpi_collectives.c", "60", "0 wrong, by levels\n"),
        pytest.param("mpich", "mpi_collectives.c", "60", "0 wrong, by levels\n", marks=pytest.mark.thorough),
        pytest.param("openmpi", "mpi_nonblocking.c", "100", "0 wrong, 3 of 3 by sites\n", marks=pytest.mark.thorough),
        ("mpich", "mpi_nonblocking.c", "100", "0 wrong, 3 of 3 by sites\n"),
    ],
)
@pytest.mark.smoke
def test_collectives_by_sites_are_right_while_a_node_moves(
    far: RealInstance, flavour: str, source: str, cases: str, right: str
) -> None:
    program = built(far, flavour, source)
    with far.start("run", "four", "-n", "8", "--site-collectives", "--", program, "11", cases) as job:
        await_ranks(far, 8)
        assert job.poll() is None
        host = far.hosts_of("four")["four-3"]
        far.move("four-3", "b1" if host != "b1" else "b2")
        said, complaints = job.communicate(timeout=180)
    assert (job.returncode, said) == (0, right), complaints


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_ranks_go_by_a_new_map_when_a_node_has_crossed_the_link(far: RealInstance, flavour: str) -> None:
    program = built(far, flavour, "mpi_exchanges.c")
    with far.start("run", "four", "-n", "8", "--site-collectives", "--", program, "11", "1000000") as job:
        try:
            shown = await_ranks(far, 8)
            id, rank_nodes = shown["id"], shown["rank_nodes"]
            eventually(lambda: [rank_sites.used(pid, 8) for pid in ranks_of(id)] == [0] * 8)
            hosts = far.hosts_of("four")
            node = next(name for name, host in hosts.items() if host.startswith("b"))
            maps = set()
            for epoch, target in ((1, "a1"), (2, hosts[node])):
                far.move(node, target)
                eventually(lambda epoch=epoch: [rank_sites.used(pid, 8) for pid in ranks_of(id)] == [epoch] * 8)
                sites = [far.hosts_of("four")[name][0] for name in rank_nodes]
                there = RankSites(epoch, site_numbers(site_runs(sites)))
                # A rank may use the map that another one has heard of before it hears of it.
                eventually(lambda there=there: {rank_sites.heard(pid, 8) for pid in ranks_of(id)} == {there})
                maps.add(there.sites)
            assert len(maps) == 2
            assert job.poll() is None
            far("job", "cancel", id)
            job.communicate(timeout=60)
        finally:
            job.terminate()  # else a failure waits for the end of a job that takes hours


def await_ranks(far: RealInstance, count: int) -> dict[str, Any]:
    """The running job, once so many of its ranks know the sites: they have initialized MPI."""
    jobs = eventually(lambda: [job for job in far.json("job", "list")["jobs"] if job["state"] == "running"])
    eventually(lambda: len(ranks_of(jobs[-1]["id"])) == count)
    found: dict[str, Any] = jobs[-1]
    return found


def ranks_of(job: str) -> list[int]:
    """The processes of a job's ranks that go by maps."""
    mark, found = f"WHERRY_JOB_ID={job}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and rank_sites.heard(int(entry.name), 8) is not None:
                    found.append(int(entry.name))
    return found


def eventually(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value
