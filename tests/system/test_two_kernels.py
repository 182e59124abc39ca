"""Moves between machines with two kernels, which the daemon reaches by SSH alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelhosts import ADDRESSES, PROGRAMS, KernelLab, kernel_lab, missing_images
from realworld import RealInstance, eventually, real_instance

from wherry.base.two_kernels import SWITCH

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif("WHERRY_LONG_TESTS" not in os.environ, reason="it boots three machines: make test-hosts"),
    pytest.mark.timeout(3600),
]
FABRIC = """\
kind: fabric
version: 1
name: kernels
driver: ssh
sites: [{name: lab}]
hosts:
"""
SMALL = {"h3": 0.2}
"""Cores of a host that no node fits on, as it has other files than the rest."""


@pytest.fixture(scope="module")
def lab() -> Iterator[KernelLab]:
    """The machines, whose files are removed with the directory."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"there is no {', no '.join(missing)}")
    if missing := missing_images():
        pytest.skip(f"there is no {', no '.join(missing)} (make test-hosts)")
    with tempfile.TemporaryDirectory(prefix="wherry-kernels-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        with kernel_lab(Path(directory)) as created:
            yield created


@pytest.fixture(scope="module")
def world(lab: KernelLab) -> Iterator[RealInstance]:
    """A cluster of two nodes, on the two hosts with the same files."""
    with real_instance("tk", lab.namespaces.enter, below=lab.shared, **{SWITCH: "1"}) as created:
        rows = [
            f"  - {{name: {host}, site: lab, cores: {SMALL.get(host, 2)}, memory: 1GiB, uri: 'ssh://root@{address}'}}\n"
            for host, address in ADDRESSES.items()
        ]
        created.json("fabric", "up", created.file("kernels.yaml", FABRIC + "".join(rows)))
        created.up("pair", 2)
        yield created
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.left(h, created.instance.name), []) == []


def elsewhere(world: RealInstance, node: str) -> str:
    """The other host with the same files."""
    return "h2" if world.hosts_of("pair")[node] == "h1" else "h1"


def test_the_hosts_have_two_kernels(world: RealInstance) -> None:
    hosts = {host["name"]: host["facts"] for host in world.json("host", "list")["hosts"]}
    assert hosts["h1"]["kernel"] != hosts["h2"]["kernel"] == hosts["h3"]["kernel"]
    assert all(facts["criu"] for facts in hosts.values())


def test_job_runs_while_a_node_goes_to_the_other_kernel_and_back(world: RealInstance) -> None:
    """Twice, the second time by post-copy. The job itself checks every byte of its messages and memory."""

    def move() -> None:
        for mode in ("pre-copy", "pre-copy", "post-copy", "post-copy"):
            there = elsewhere(world, "pair-1")
            record = world.json("move", "pair-1", "--to", there, "--mode", mode)
            assert (record["phase"], record["error"]) == ("done", None)
            assert world.hosts_of("pair")["pair-1"] == there

    world.run_under_ring("pair", "mpich", move, ranks=2, pause=2)


def test_the_clocks_of_a_node_go_on(world: RealInstance) -> None:
    """None goes back, and the time of the moves is in them: the machines have booted at other times."""
    loop = "while cut -d ' ' -f 1 /proc/uptime; do sleep 0.1; done"
    began = time.monotonic()
    reading = world.start("exec", "pair-1", "--", "sh", "-c", loop)
    assert reading.stdout
    try:
        first = float(reading.stdout.readline())
        for _ in range(2):
            assert world.move("pair-1", elsewhere(world, "pair-1"))["error"] is None
        ended = time.monotonic()
        told = [first]
        while told[-1] - first < ended - began and time.monotonic() < ended + 60:
            told.append(float(reading.stdout.readline()))
    finally:
        reading.kill()
        reading.communicate()
    assert told == sorted(told) and 0 <= told[-1] - first - (ended - began) < 30


def test_timers_of_a_node_are_due_when_they_would_have_been(world: RealInstance) -> None:
    """A sleep that a move interrupts, and a sleep that begins at an absolute time."""
    wait = (
        "import time; began = time.monotonic(); time.sleep(20); slept = time.monotonic() - began; "
        "print('slept', slept, flush=True)"
    )
    waiting = world.start("exec", "pair-1", "--", "python3", "-c", wait)
    time.sleep(2)
    assert world.move("pair-1", elsewhere(world, "pair-1"))["error"] is None
    said, _ = waiting.communicate(timeout=600)
    word, slept = said.split()
    assert word == "slept" and 20 <= float(slept) < 40


def test_a_host_with_other_files_is_refused_by_their_names(world: RealInstance) -> None:
    """Debian 13 has other libraries than Debian 12, which the job has mapped; no node is frozen for it."""
    running = world.start("exec", "pair-0", "--", "python3", "-c", "import time; time.sleep(600)")
    try:
        time.sleep(5)
        done = world("move", "pair-0", "--to", "h3")
        assert done.returncode != 0 and "at host h3" in done.stderr and "there" in done.stderr, done.stderr
    finally:
        running.kill()
        running.communicate()


def test_a_host_is_drained_to_the_other_kernel(world: RealInstance) -> None:
    world.json("host", "drain", "h1")
    assert set(world.hosts_of("pair").values()) == {"h2"}
    world.json("host", "restore", "h1")


def test_all_is_taken_down(world: RealInstance, lab: KernelLab) -> None:
    assert world("down", "--all", "--yes").returncode == 0
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.left(h, world.instance.name), []) == []
