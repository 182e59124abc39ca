"""Hosts by SSH report on their nodes: profiles from inside MPI, maps of sites, and a silent host, which is unknown.

The daemon's machine sees neither their processes nor their cgroups (`sshhosts`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, real_instance, ring_program
from sshhosts import FABRIC, SshLab, rows, temporary_lab
from test_site_collectives import ranks_of

from wherry.node import rank_sites

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(600),
]
NATIVE = Path(__file__).resolve().parents[2] / "native"
SITES = {"h1": "a", "h2": "b"}


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab(blind=True) as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    """A node at each of two hosts, at two sites, and another cluster at the first."""
    with real_instance("tsr", lab.namespaces.enter, below=lab.shared) as created:
        hosts = "".join(rows(host, site=site) for host, site in SITES.items())
        fabric = FABRIC.replace("[{name: lab}]", "[{name: a}, {name: b}]")
        created.json("fabric", "up", created.file("machines.yaml", fabric + hosts))
        created.up("duo", 2, more="placement: {max_per_host: 1}\n")
        created.up("near", 2, more="hosts: [h1]\n")
        yield created


@contextmanager
def job(world: RealInstance, cluster: str, *words: str) -> Iterator[str]:
    """The id of a job of two ranks that runs for long, and ends with the block."""
    started = world("run", cluster, "-n", "2", "--detach", *words)
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    try:
        yield id
    finally:
        assert world("job", "cancel", id).returncode == 0


def ring(world: RealInstance) -> list[str]:
    options = ["--seconds", "600", "--memory", "4", "--size", "16384", "--pause", "5"]
    return [ring_program("mpich", world.directory), *options]


def node_at(world: RealInstance, host: str) -> str:
    return next(node for node, where in world.hosts_of("duo").items() if where == host)


def test_job_is_seen_from_inside_mpi(world: RealInstance) -> None:
    """Each host reads the memory of its own ranks."""
    with job(world, "duo", "--", *ring(world)) as id:
        seen = lambda: len(world.json("job", "profile", id, "--seconds", "500ms")["ranks"])  # noqa: E731
        assert eventually(seen, 2) == 2
        found = world.json("job", "profile", id, "--seconds", "1s")
        assert found["schema"] == "wherry/mpi-profile/1" and not found["unseen"], found["unseen"]
        assert {(flow["source"], flow["target"]) for flow in found["flows"]} == {(0, 1), (1, 0)}
        assert all(rank["calls"] > 10 for rank in found["ranks"])


def test_ranks_go_by_a_new_map_when_a_node_has_moved_to_the_other_site(world: RealInstance) -> None:
    if not shutil.which("mpicc.mpich"):
        pytest.skip("no mpicc.mpich on this machine")
    program = str(world.directory / "exchanges")
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{NATIVE / 'mpi'}", "-o", program]
    source = str(NATIVE / "tests/mpi_exchanges.c")
    subprocess.run(["mpicc.mpich", *options, source], check=True, capture_output=True, timeout=120)
    moved = node_at(world, "h2")
    with job(world, "duo", "--site-collectives", "--", program, "11", "1000000") as id:
        assert eventually(lambda: len(ranks_of(id, 2)), 2) == 2
        for epoch, host, sites in ((1, "h1", 1), (2, "h2", 2)):
            world.move(moved, host)
            assert eventually(lambda: maps(id), {(epoch, sites)}) == {(epoch, sites)}


def test_silent_host_is_unknown_and_quiet(world: RealInstance, lab: SshLab) -> None:
    """Its nodes have no figures, rather than zeros; clusters at other hosts are measured; it is measured when it
    answers again."""
    far = node_at(world, "h2")
    with job(world, "duo", "--", *ring(world)) as id, job(world, "near", "--", *ring(world)) as other:
        assert eventually(lambda: profiled(world, id), (2, "")) == (2, "")
        lab.namespaces.run("ip", "link", "set", "h2", "down")
        try:
            assert eventually(lambda: world.json("node", "show", far)["usage"], None) is None
            refused = world("job", "profile", id, "--outside", "--seconds", "1s")
            assert refused.returncode == 7 and far in refused.stderr and "h2" in refused.stderr, refused.stderr
            verdicts = {one["cluster"]: one for one in world.json("balance", "--seconds", "1s")["plan"]["verdicts"]}
            assert verdicts["duo"]["kind"] == "unknown" and "h2" in verdicts["duo"]["text"]
            assert verdicts["near"]["kind"] != "unknown" and profiled(world, other) == (2, "")
        finally:
            lab.namespaces.run("ip", "link", "set", "h2", "up")
        assert eventually(lambda: profiled(world, id), (2, "")) == (2, "")
    assert "Traceback" not in (world.instance.state / "log").read_text()


def maps(job: str) -> set[tuple[int, int]]:
    """The epochs of the maps that the job's ranks have, and how many sites are in each."""
    found = (rank_sites.heard(pid, 2) for pid in ranks_of(job, 2))
    return {(one.epoch, len(set(one.sites))) for one in found if one}


def profiled(world: RealInstance, job: str) -> tuple[int, str]:
    """How many ranks of a job are measured, and why its messages are not counted."""
    done = world("job", "profile", job, "--outside", "--seconds", "500ms", "-o", "json")
    found = json.loads(done.stdout) if done.returncode == 0 else {"ranks": [], "uncounted": done.stderr}
    return len(found["ranks"]), found["uncounted"]
