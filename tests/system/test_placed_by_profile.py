"""Run briefly, remember, place: measurements of a program's run decide where the ranks of its next one are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance, real_instance

from wherry.fabric.cgroup import Cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
FABRIC = """\
kind: fabric
version: 1
name: pairs
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 0.5, memory: 1GiB}
  - {name: a2, site: a, cores: 0.5, memory: 1GiB}
  - {name: b1, site: b, cores: 0.5, memory: 1GiB}
  - {name: b2, site: b, cores: 0.5, memory: 1GiB}
links:
  - {between: [a, b], latency: 10ms}
"""
CLUSTER = "kind: container\nversion: 1\nname: four\nnodes: 4\ncpus: 0.25\nmemory: 128MiB\n"


@pytest.fixture(scope="module")
def wherry() -> Iterator[RealInstance]:
    """Four nodes on four hosts of two sites."""
    with real_instance("tpro") as created:
        created.kept.make(lambda: make(created))
        yield created


def make(wherry: RealInstance) -> None:
    wherry.json("fabric", "up", wherry.file("pairs.yaml", FABRIC))
    wherry.json("up", wherry.file("four.yaml", CLUSTER))


@pytest.fixture(scope="module")
def pairs(wherry: RealInstance) -> str:
    """The program, compiled into a directory that nodes see."""
    compiler = shutil.which("mpicc.openmpi")
    if compiler is None:
        pytest.skip("there is no mpicc of openmpi")
    path = wherry.directory / "pairs"
    subprocess.run([compiler, "-O1", "-o", path, Path(__file__).with_name("pairs.c")], check=True)
    return str(path)


def ran(wherry: RealInstance, program: str, *words: str, seconds: str = "10") -> tuple[dict[str, Any], int]:
    """The job of a run, and how often its rank 0 exchanged messages."""
    done = wherry("run", "four", "-n", "4", *words, "--", program, seconds)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" exchanged ") for line in done.stdout.splitlines())
    job: dict[str, Any] = wherry.json("job", "list")["jobs"][-1]
    return job, int(said["0"])


def sites(wherry: RealInstance, job: dict[str, Any]) -> str:
    """The site of each rank."""
    hosts = wherry.hosts_of("four")
    return "".join(hosts[node][0] for node in job["rank_nodes"] or [f"four-{rank}" for rank in range(4)])


def test_the_second_run_has_ranks_that_talk_at_one_site(wherry: RealInstance, pairs: str) -> None:
    first, slow = ran(wherry, pairs)
    assert sites(wherry, first) == "aabb" and first["rank_nodes"] == []
    (profile,) = wherry.json("job", "profile", "--program")["programs"]
    assert profile["kind"] == "network-bound" and profile["runs"] == 1 and profile["program"]["name"] == "pairs", (
        profile
    )
    assert {(flow["source"], flow["target"]) for flow in profile["flows"]} >= {(0, 2), (2, 0), (1, 3), (3, 1)}
    second, quick = ran(wherry, pairs)
    assert sites(wherry, second) in ("abab", "baba") and profile["key"] in second["placed"], second
    assert quick > 2 * slow
    profile = wherry.json("job", "profile", "--program", "pairs")
    assert profile["runs"] == 2 and profile["kind"] == "network-bound", "it is so wherever its ranks are"

    other, _ = ran(wherry, pairs, "--no-profile", seconds="1")
    assert sites(wherry, other) == "aabb" and other["program"] is None
    by_hand, _ = ran(wherry, pairs, "--hosts", "four-3,four-2,four-1,four-0", seconds="1")
    assert sites(wherry, by_hand) == "bbaa", "the user's choice comes first"

    assert wherry("job", "profile", "--program", "pairs", "--forget").returncode == 0
    assert wherry.json("job", "profile", "--program")["programs"] == []
    assert sites(wherry, ran(wherry, pairs)[0]) == "aabb"


def test_other_arguments_are_another_class(wherry: RealInstance, pairs: str) -> None:
    ran(wherry, pairs, seconds="10")
    job, _ = ran(wherry, pairs, seconds="1.5")
    assert job["placed"] == "" and sites(wherry, job) == "aabb"
    assert "--forget" in wherry("job", "profile", "--forget").stderr
    assert wherry("job", "profile", "--program", "nothing").returncode != 0


@pytest.mark.measures("a host's load is the CPU time of its processes, and programs beside them leave them little")
def test_a_new_cluster_leaves_out_the_host_on_which_others_compute(wherry: RealInstance) -> None:
    file = wherry.file("one.yaml", CLUSTER.replace("four", "one").replace("nodes: 4", "nodes: 1"))

    def planned() -> str:
        return str(wherry.json("up", file, "--dry-run")["text"].splitlines()[0])

    assert "create one-0 on a1" in planned()
    group = Cgroup(f"{wherry.instance.prefix}/a1/others")
    group.create()
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for process in burning:
            group.add(process.pid)
        time.sleep(6)  # an earlier measurement is used for five seconds
        line = planned()
        assert "create one-0 on a2" in line and "of 0.5 CPUs in use" in line, line
    finally:
        for process in burning:
            process.kill()
            process.wait()
        group.remove()
