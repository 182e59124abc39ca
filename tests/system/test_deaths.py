"""Each program of a container's move is killed in each phase: the node runs at its source again at once, or after the
commit is reported lost. The times from the kill are printed at the end; the bound only distinguishes them from a time
limit that ran out."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
from realworld import RealInstance, Ring, eventually, real_instance

from wherry.client import Client
from wherry.fabric.cgroup import Cgroup
from wherry.model.records import OperationState

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

NODE, SOURCE, DESTINATION = "two-1", "a2", "b1"
BOUND = 10
"""Seconds from a death until the move's end is reported, on any machine; the node runs 0.1 after it on an idle one."""
PROGRAMS = {
    "send": "wherry-pager send",
    "receive": "wherry-pager receive",
    "dump": "--rpc",
    "restore": "--rpc",
    "tree": "wherry-tree receive",
    "tree send": "wherry-tree send",
    "images": f"tar --extract {DESTINATION}/images",
    "digest": "wherry-verify digest",
    "compare": "wherry-verify compare",
    "hold": "wherry-hold",
}
"""Words in the command line of each program; CRIU's are distinguished by the network namespace of their host."""
AT_HOST = {"dump": SOURCE, "restore": DESTINATION}
WAITING = tuple(PROGRAMS)
CASES = [
    *(("prepare", name) for name in WAITING),
    *(("rounds", name) for name in WAITING),
    *(("freeze", name) for name in WAITING),
    *(("transfer", name) for name in ("send", "receive", "restore", "digest", "compare", "hold")),
    *(("restore", name) for name in ("send", "receive", "hold", "first process")),
]


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    with real_instance("tdth", WHERRY_FAULTS="1") as created:
        created.kept.make(lambda: created.up("two", 2))
        yield created


@pytest.fixture(scope="module")
def rings(two: RealInstance) -> Iterator[list[Ring]]:
    """The job that runs through all deaths before the commit; another one when all was made anew."""
    with ExitStack() as stack:
        begun = list[Ring]()

        def begin() -> None:
            stack.close()
            begun[:] = [stack.enter_context(two.ring("two", "openmpi", ranks=2, memory=16, pause=4))]

        two.kept.make(begin)
        yield begun
        for ring in begun:
            ring.result()


@pytest.fixture
def job(rings: list[Ring]) -> Ring:
    return rings[0]


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, list[tuple[float, float]]]]:
    """Seconds from a kill until the node ran, and until the move's end was reported, by phase."""
    by_phase: dict[str, list[tuple[float, float]]] = {}
    yield by_phase
    for phase, times in by_phase.items():
        runs, told = ([1e3 * one[n] for one in times] for n in (0, 1))
        print(
            f"\n{phase}: {len(times)} deaths, node runs after {median(runs):.0f} ms (most {max(runs):.0f}), "
            f"reported after {median(told):.0f} ms (most {max(told):.0f})"
        )


def group(two: RealInstance, host: str) -> Cgroup:
    return Cgroup(f"{two.instance.prefix}/{host}/{NODE}")


def images(two: RealInstance, host: str) -> Path:
    return two.instance.run / "nodes" / f"{NODE}@{host}" / "images"


def network_of(pid: int) -> int:
    """The inode of its network namespace; 0 when it has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def programs(two: RealInstance, name: str) -> list[int]:
    """PIDs of a program of the move."""
    if name == "first process":
        pids = group(two, DESTINATION).pids()
        return [pid for pid in pids if b"\nNSpid:\t%d\t1\n" % pid in Path(f"/proc/{pid}/status").read_bytes()]
    words = PROGRAMS[name].split()
    found = [pid for pid, said in two.processes().items() if all(word in said for word in words)]
    if name in AT_HOST:
        network = os.stat(f"/run/netns/{two.instance.prefix}-{AT_HOST[name]}").st_ino
        found = [pid for pid in found if network_of(pid) == network]
    if name == "receive":  # the other one is its guard
        found = [pid for pid in found if len(os.listdir(f"/proc/{pid}/task")) > 1 or len(found) == 1]
    return found


def strike(two: RealInstance, pids: list[int], operation: str) -> tuple[float, float]:
    """Kills processes; seconds until the source's copy runs, and until the operation has ended."""
    source, runs = group(two, SOURCE), -1.0
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with Client(two.instance, start=False) as client:
        while time.monotonic() < began + 4 * BOUND:
            if runs < 0 and not source.frozen():
                runs = time.monotonic() - began
            if client.operation(operation).state != OperationState.RUNNING:
                return runs, time.monotonic() - began
            time.sleep(0.001)
    raise AssertionError("the move has not ended")


def test_a_node_whose_memory_can_no_more_arrive_is_lost_and_told(two: RealInstance) -> None:
    """The program that fills it dies after the commit: the node is killed before it misses any page. It is frozen until
    the pause ends, and dies when it is thawed."""
    with two.held_move(NODE, DESTINATION, "commit") as move:  # it fills by itself a second after the restore
        receivers, destination = programs(two, "receive"), group(two, DESTINATION)
        for pid in receivers:
            os.kill(pid, signal.SIGKILL)
    done = two("op", "wait", move.operation)
    assert not eventually(lambda: bool(destination.pids()), False, BOUND, pause=0.001)
    assert done.returncode == 1 and f"{NODE} ended while it was moved" in done.stderr, done.stderr
    two.up("two", 2)
    assert two.assert_one_copy("two")
    two.run_under_ring("two", "openmpi", lambda: two.move(NODE, SOURCE), ranks=2)


@pytest.mark.parametrize("seed", range(10))
def test_death_at_any_moment_leaves_one_copy(two: RealInstance, seed: int) -> None:
    """Whatever dies when: the move ends soon, and one copy runs."""
    chance = random.Random(seed)
    name = chance.choice(WAITING)
    operation = two.begin_move(NODE, DESTINATION)
    found, until = list[int](), time.monotonic() + 20
    while not found and time.monotonic() < until and not two.ended(operation):
        found = programs(two, name)
    time.sleep(chance.uniform(0, 0.1))
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has done its work
            continue
    assert eventually(lambda: two.ended(operation), True, pause=0.005)
    if lost(two):  # the program that fills it, after the commit
        assert name == "receive"
        two.up("two", 2)
    assert two.assert_one_copy("two")


def lost(two: RealInstance) -> bool:
    with Client(two.instance, start=False) as client:
        return any(node.state == "lost" for node in client.nodes("two"))


@pytest.mark.parametrize(("phase", "name"), CASES)
def test_death_of_a_waiting_program_takes_the_move_back_at_once(
    two: RealInstance, job: Ring, measured: dict[str, list[tuple[float, float]]], phase: str, name: str
) -> None:
    with two.held_move(NODE, DESTINATION, phase) as move:
        found = programs(two, name)
        assert found, (two("op", "show", move.operation).stdout, two.processes())
        runs, told = strike(two, found, move.operation)
    with Client(two.instance, start=False) as client:
        done = client.operation(move.operation)
    assert done.state == OperationState.FAILED and done.error, done
    assert f"{NODE} was not moved; it runs on {SOURCE} as before" in done.error["what"], done.error
    assert two.assert_one_copy("two")[NODE] == SOURCE and job.running()
    measured.setdefault(phase, []).append((runs, told))
    assert told < BOUND, (runs, told, done.error)
