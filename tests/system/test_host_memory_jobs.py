"""`wherry run --host-memory`: messages are right while nodes part and meet; nothing is left of them at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
NATIVE = Path(__file__).resolve().parents[2] / "native"
FABRIC = """\
kind: fabric
version: 1
name: near
sites: [{name: a}]
hosts:
  - {name: a1, site: a, cores: 4, memory: 2GiB}
  - {name: a2, site: a, cores: 4, memory: 2GiB}
"""
RANKS = 6


@pytest.fixture(scope="module")
def near() -> Iterator[RealInstance]:
    """Three nodes at two hosts, two ranks on each."""
    with real_instance("thom", WHERRY_FAULTS="1") as created:
        created.kept.make(lambda: make(created))
        yield created


def make(near: RealInstance) -> None:
    near.json("fabric", "up", near.file("near.yaml", FABRIC))
    near.up("three", 3, memory="256MiB")


def built(near: RealInstance, flavour: str) -> str:
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    program = str(near.directory / f"shared-{flavour}")
    words = [f"mpicc.{flavour}", "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program]
    subprocess.run([*words, str(NATIVE / "tests" / "mpi_shared.c")], check=True, capture_output=True, timeout=120)
    return program


def place(near: RealInstance, **hosts: str) -> None:
    for node, host in hosts.items():
        if near.hosts_of("three")[f"three-{node[1:]}"] != host:
            near.move(f"three-{node[1:]}", host)


@contextlib.contextmanager
def job(near: RealInstance, flavour: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The random messages of mpi_shared, until there is a file `stop`."""
    stop = near.directory / "stop"
    stop.unlink(missing_ok=True)
    program = [built(near, flavour), "11", "10000000", str(stop)]
    words = ["run", "three", "-n", str(RANKS), "--map-by", "ppr:2:node", "--host-memory", "--", *program]
    with near.start(*words) as process:
        try:
            yield process, eventually(lambda: running(near))
        finally:
            stop.touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.terminate()


def running(near: RealInstance) -> dict[str, Any] | None:
    jobs = [job for job in near.json("job", "list")["jobs"] if job["state"] == "running"]
    return jobs[-1] if jobs else None


def memory(near: RealInstance, host: str) -> Path:
    return near.instance.run / "shared" / f"three@{host}" / "memory"


def received(near: RealInstance, host: str, job: dict[str, Any], between: tuple[str, str] | None = None) -> int:
    """Messages for ranks at a host, by its memory; those of ranks of one node for ranks of another one."""
    nodes, sum = job["rank_nodes"], 0
    for file in (memory(near, host) / job["id"]).glob("*/*.*"):
        with contextlib.suppress(OSError, ValueError, struct.error):
            sender, receiver = int(file.name.partition(".")[0]), int(file.parent.name)
            if between is None or {nodes[sender], nodes[receiver]} == set(between):
                sum += struct.unpack_from("=Q", file.read_bytes(), 24)[0]
    return sum


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_messages_are_right_while_nodes_part_and_meet(near: RealInstance, flavour: str) -> None:
    place(near, n0="a1", n1="a1", n2="a2")
    with job(near, flavour) as (process, found):
        first, third = ("three-0", "three-1"), ("three-1", "three-2")
        eventually(lambda: received(near, "a1", found, first) > 10)
        assert received(near, "a2", found, third) == 0
        near.move("three-1", "a2")  # parted from the first, met the third
        eventually(lambda: received(near, "a2", found, third) > 10)
        before = received(near, "a1", found, first)
        time.sleep(1)
        assert received(near, "a1", found, first) == before
        near.move("three-1", "a1")
        eventually(lambda: received(near, "a1", found, first) > before + 10)
        for host in ("a2", "a1") * 3:  # while messages are under way, whatever they are
            near.move("three-1", host)
        assert process.poll() is None
        (near.directory / "stop").touch()
        said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert said.startswith("0 wrong"), (said, complaints)
    assert "lost" not in complaints
    nothing_is_left(near)


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_move_that_is_taken_back_loses_nothing(near: RealInstance, flavour: str) -> None:
    place(near, n0="a1", n1="a1", n2="a2")
    with job(near, flavour) as (process, found):
        for fault in ("freeze:fail", "restore:fail", "transfer:kill"):
            eventually(lambda: received(near, "a1", found, ("three-0", "three-1")) > 10)
            assert near("op", "wait", near.begin_move("three-1", "a2", fault)).returncode != 0
            assert near.assert_one_copy("three")["three-1"] == "a1"
        (near.directory / "stop").touch()
        said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert said.startswith("0 wrong"), (said, complaints)
    nothing_is_left(near)


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_killed_rank_leaves_nothing_in_the_hosts_memory(near: RealInstance, flavour: str) -> None:
    place(near, n0="a1", n1="a1", n2="a2")
    with job(near, flavour) as (process, found):
        eventually(lambda: received(near, "a1", found) > 10)
        os.kill(ranks_of(found["id"])[0], signal.SIGKILL)
        process.communicate(timeout=120)
    assert process.returncode
    nothing_is_left(near)


def test_down_removes_it(near: RealInstance) -> None:
    near.json("up", near.cluster_file("one", 1))
    directory = near.instance.run / "shared" / f"one@{near.hosts_of('one')['one-0']}"
    assert os.path.ismount(directory / "memory")
    assert near("down", "one").returncode == 0
    assert not directory.exists()


def nothing_is_left(near: RealInstance) -> None:
    """Neither in the memory of hosts nor among the nodes' own files."""

    def left() -> list[Path]:
        kept = [path for path in (near.instance.run / "nodes").glob("three-*/private/run/wherry/kept/*")]
        return [*kept, *memory(near, "a1").iterdir(), *memory(near, "a2").iterdir()]

    eventually(lambda: not left())


def ranks_of(job: str) -> list[int]:
    mark, found = f"WHERRY_JOB_ID={job}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and b"shared-" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def eventually(found: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value
