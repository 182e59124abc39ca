"""`wherry run --site-collectives`: results over two sites are the library's own, also when a node moves meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance

from wherry.node import rank_sites
from wherry.node.rank_sites import RankSites, site_numbers, site_runs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
NATIVE = Path(__file__).resolve().parents[2] / "native"


def apart(four: RealInstance, latency: str) -> None:
    """Two nodes at each of two sites."""
    four.json("site", "link", "set", "a", "b", "--latency", latency)


def built(four: RealInstance, flavour: str, source: str) -> str:
    """The path of a test's program, built for an MPI."""
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    program = str(four.directory / f"{Path(source).stem}-{flavour}")
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{NATIVE / 'mpi'}", "-o", program]
    words = [f"mpicc.{flavour}", *options, str(NATIVE / "tests" / source)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return program


@pytest.mark.parametrize(
    ("flavour", "source", "latency", "cases", "right"),
    [
        ("openmpi", "mpi_collectives.c", "2ms", "60", "0 wrong, by levels\n"),
        ("mpich", "mpi_collectives.c", "10ms", "60", "0 wrong, by levels\n"),
        ("openmpi", "mpi_nonblocking.c", "10ms", "100", "0 wrong, 3 of 3 by sites\n"),
        ("mpich", "mpi_nonblocking.c", "10ms", "100", "0 wrong, 3 of 3 by sites\n"),
    ],
)
def test_collectives_by_sites_are_right_while_a_node_moves(
    four: RealInstance, flavour: str, source: str, latency: str, cases: str, right: str
) -> None:
    apart(four, latency)
    program = built(four, flavour, source)
    with four.start("run", "four", "-n", "8", "--site-collectives", "--", program, "11", cases) as job:
        await_ranks(four, 8)
        assert job.poll() is None
        host = four.hosts_of("four")["four-3"]
        four.move("four-3", "b1" if host != "b1" else "b2")
        said, complaints = job.communicate(timeout=180)
    assert (job.returncode, said) == (0, right), complaints


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_ranks_go_by_a_new_map_when_a_node_has_crossed_the_link(four: RealInstance, flavour: str) -> None:
    apart(four, "10ms")
    program = built(four, flavour, "mpi_exchanges.c")
    with four.start("run", "four", "-n", "8", "--site-collectives", "--", program, "11", "1000000") as job:
        try:
            shown = await_ranks(four, 8)
            id, rank_nodes = shown["id"], shown["rank_nodes"]
            eventually(lambda: [rank_sites.used(pid, 8) for pid in ranks_of(id)] == [0] * 8)
            hosts = four.hosts_of("four")
            node = next(name for name, host in hosts.items() if host.startswith("b"))
            maps = set()
            for epoch, target in ((1, "a1"), (2, hosts[node])):
                four.move(node, target)
                eventually(lambda epoch=epoch: [rank_sites.used(pid, 8) for pid in ranks_of(id)] == [epoch] * 8)
                sites = [four.hosts_of("four")[name][0] for name in rank_nodes]
                there = RankSites(epoch, site_numbers(site_runs(sites)))
                # A rank may use the map that another one has received before it receives it itself.
                eventually(lambda there=there: {rank_sites.heard(pid, 8) for pid in ranks_of(id)} == {there})
                maps.add(there.sites)
            assert len(maps) == 2
            assert job.poll() is None
            four("job", "cancel", id)
            job.communicate(timeout=60)
        finally:
            job.terminate()  # else a failure waits for the end of a job that takes hours


def await_ranks(four: RealInstance, count: int) -> dict[str, Any]:
    """The running job, once so many of its ranks know the sites: they have initialized MPI."""
    jobs = eventually(lambda: [job for job in four.json("job", "list")["jobs"] if job["state"] == "running"])
    eventually(lambda: len(ranks_of(jobs[-1]["id"])) == count)
    found: dict[str, Any] = jobs[-1]
    return found


def ranks_of(job: str, count: int = 8) -> list[int]:
    """The processes of the ranks that go by maps, of a job with so many."""
    mark, found = f"WHERRY_JOB_ID={job}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and rank_sites.heard(int(entry.name), count) is not None:
                    found.append(int(entry.name))
    return found


def eventually(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value
