"""Fault injection into moves under a running job: afterwards one copy runs, nothing is left, the job's result is
correct. Faults (WHERRY_FAULTS, see wherry.move.faults) fail a phase, kill the daemon at its end, or pause it so that
the test can break something."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

from wherry.fabric.cgroup import Cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

BEFORE = ["prepare", "rounds", "freeze", "transfer", "restore"]
AFTER = ["commit", "thaw"]
"""The phases before and after the commit."""
PADDING = 8
NODE, SOURCE, DESTINATION = "two-1", "a2", "b1"
RANK = 16
"""MiB of memory that a rank checks."""
PAUSE = 4
"""Milliseconds that a rank sleeps in each iteration, in tests that do not need messages in flight."""


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    """Two nodes on a1 and a2, of which the second is moved."""
    with real_instance("tflt", WHERRY_FAULTS="1") as created:
        created.up("two", 2)
        yield created


def where(two: RealInstance) -> str:
    return two.hosts_of("two")[NODE]


def go_home(two: RealInstance) -> None:
    """Moves the node back to its initial host if it is elsewhere."""
    if where(two) != SOURCE:
        two.move(NODE, SOURCE)


@pytest.fixture(autouse=True)
def at_home(two: RealInstance, request: pytest.FixtureRequest) -> None:
    """The node is at its initial host, and runs, whatever a test before has left."""
    two.remade_after_failure(request, lambda: two.up("two", 2))
    go_home(two)


@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        ("fail", ("prepare", "transfer", "thaw")),
        ("kill", ("freeze", "restore", "commit")),
        pytest.param("fail", ("rounds", "freeze", "restore", "commit"), marks=pytest.mark.thorough),
        pytest.param("kill", ("prepare", "rounds", "transfer", "thaw"), marks=pytest.mark.thorough),
    ],
)
@pytest.mark.smoke
def test_fault_in_each_phase_under_a_job(two: RealInstance, kind: str, phases: tuple[str, ...]) -> None:
    """After `fail` at a phase or `kill` of the daemon the node is at the source before the commit, else at the
    destination."""

    def each_phase() -> None:
        for phase in phases:
            go_home(two)
            operation = two.begin_move(NODE, DESTINATION, f"{phase}:{kind}")
            done = two("op", "wait", operation)
            assert (done.returncode == 0) == (phase in AFTER), (phase, done.stderr)
            at = two.assert_one_copy("two")[NODE]
            assert at == (DESTINATION if phase in AFTER else SOURCE), phase
            if phase in BEFORE:
                assert done.stderr.splitlines()[-3].startswith("error "), done.stderr
                (*_, record) = two.json("node", "show", NODE)["moves"]
                assert record["phase"] == "rolled-back" and record["error"]["code"] == "MOVE_FAILED"

    two.run_under_ring("two", "openmpi", each_phase, ranks=2, memory=RANK)


def images(two: RealInstance, host: str) -> Path:
    return two.instance.run / "nodes" / f"{NODE}@{host}" / "images"


def move_processes(two: RealInstance, sign: str, host: str = "") -> list[int]:
    """Processes of the move whose command line contains `sign`, optionally only in a host's network namespace."""
    pids = [pid for pid, words in two.move_processes().items() if sign in words]
    if not host:
        return pids
    network = os.stat(f"/run/netns/{two.instance.prefix}-{host}").st_ino
    return [pid for pid in pids if os.stat(f"/proc/{pid}/ns/net").st_ino == network]


def kill(pids: list[int]) -> None:
    assert pids, "there is nothing to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def fill_destination(two: RealInstance) -> None:
    """Makes the file system of the images full."""
    words = ["mount", "-o", "remount,size=2M", str(images(two, DESTINATION))]
    subprocess.run(words, check=True, timeout=SECONDS)


def starve_destination(two: RealInstance) -> None:
    """Occupies the destination's memory."""
    Cgroup(f"{two.instance.prefix}/{DESTINATION}").limit(None, 8 << 20)


def lose_destination(two: RealInstance, word: str = "down") -> None:
    """Cuts the destination off silently."""
    words = ["ip", "-n", f"{two.instance.prefix}-{DESTINATION}", "link", "set", "up0", word]
    subprocess.run(words, check=True, timeout=SECONDS)


def corrupt_image(two: RealInstance) -> None:
    files = list(images(two, DESTINATION).glob("*/core-*.img"))
    assert files
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))


def rank_at(two: RealInstance, host: str) -> int:
    """PID of the rank on the moving node."""
    node = Cgroup(f"{two.instance.prefix}/{host}/{NODE}").pids()
    (rank,) = [pid for pid in node if b"/wherry-ring" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
    return rank


def padding(two: RealInstance, host: str) -> tuple[Path, int]:
    """The memory of the rank, and the address of bytes that it never uses, in a page that CRIU sends: behind what its
    program's file has of data."""
    rank = rank_at(two, host)
    program = os.readlink(f"/proc/{rank}/exe")
    for line in Path(f"/proc/{rank}/maps").read_text().splitlines():
        words = line.split()
        if words[1] == "rw-p" and words[-1] == program:
            return Path(f"/proc/{rank}/mem"), int(words[0].partition("-")[2], 16) - PADDING
    raise AssertionError(f"{program} has no data")


def read_padding(two: RealInstance, host: str) -> bytes:
    memory, at = padding(two, host)
    with memory.open("rb", buffering=0) as file:
        file.seek(at)
        return file.read(PADDING)


def damage_page(two: RealInstance) -> None:
    """Flips one bit of it."""
    memory, at = padding(two, SOURCE)
    with memory.open("r+b", buffering=0) as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


SENDS = "(rounds|transfer): "
"""The first phase that sends memory: rounds if the kernel tracks dirty pages."""
BREAKS = {
    # name: (phase that is paused at its end, action that breaks something, pattern of the error)
    "no room for images": ("prepare", fill_destination, SENDS),
    "no memory": ("prepare", starve_destination, "out of memory"),
    "host lost": ("prepare", lose_destination, SENDS),
    "image corrupted": ("transfer", corrupt_image, "the images cannot be read"),
}


@pytest.mark.parametrize("case", BREAKS)
@pytest.mark.smoke
def test_failure_during_a_move_rolls_back(two: RealInstance, case: str) -> None:
    phase, damage, says = BREAKS[case]

    def broken() -> None:
        try:
            with two.held_move(NODE, DESTINATION, phase) as move:
                damage(two)
                move.release()
                done = two("op", "wait", move.operation)
        finally:
            Cgroup(f"{two.instance.prefix}/{DESTINATION}").limit(None, 4 << 30)
            lose_destination(two, "up")
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert f"error MOVE_FAILED: {NODE} was not moved; it runs on {SOURCE} as before" in done.stderr
        assert re.search(says, done.stderr) and "  next: " in done.stderr, done.stderr
        assert two.assert_one_copy("two")[NODE] == SOURCE

    two.run_under_ring("two", "openmpi", broken, ranks=2, memory=RANK, pause=PAUSE)


def test_page_that_differs_is_sent_again(two: RealInstance) -> None:
    """The destination resumes with the memory that the source had at the commit."""

    def mended() -> None:
        with two.held_move(NODE, DESTINATION, "transfer") as move:
            sent = read_padding(two, SOURCE)
            damage_page(two)
            at_source = read_padding(two, SOURCE)
            assert at_source != sent
        done = two("op", "wait", move.operation)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert read_padding(two, DESTINATION) == at_source
        assert "sent again: the memory of process" in (two.instance.state / "log").read_text()

    two.run_under_ring("two", "openmpi", mended, ranks=2, memory=RANK, pause=PAUSE)


def stands(two: RealInstance) -> bool:
    return Cgroup(f"{two.instance.prefix}/{SOURCE}/{NODE}").frozen()


def dumping(two: RealInstance) -> int:
    """PID of the dumping process, stopped when it has taken over a connection of the frozen node."""
    assert eventually(lambda: stands(two), True, pause=0.01)
    (dump,) = move_processes(two, "--rpc", SOURCE)
    connections = images(two, SOURCE) / "0"
    assert eventually(lambda: any("tcp-stream" in name for name in os.listdir(connections)), True, pause=0.0002)
    os.kill(dump, signal.SIGSTOP)
    return dump


def test_move_rolls_back_when_criu_is_killed_while_it_dumps(two: RealInstance) -> None:
    """One copy resumes. CRIU had thawed it with locked connections, so the job may be damaged, which the error
    states."""
    with two.ring("two", "openmpi", seconds=60, ranks=2, memory=48, pause=PAUSE):
        held = two.directory / "held"
        operation = two.begin_move(NODE, DESTINATION, f"freeze:pause:{held}")
        kill([dumping(two)])
        assert eventually(held.exists, True, pause=0.01)
        held.unlink()
        done = two("op", "wait", operation)
        assert done.returncode == 1 and "could not dump" in done.stderr, done.stderr
        assert "in repair mode, so messages may be lost" in done.stderr, done.stderr
        assert two.assert_one_copy("two")[NODE] == SOURCE
    two.run_under_ring("two", "openmpi", lambda: two.move(NODE, DESTINATION), ranks=2)


def test_move_is_recovered_when_the_daemon_is_killed_while_criu_dumps(two: RealInstance) -> None:
    """The orphaned CRIU would change the node's state at its end, so the next daemon waits for it."""

    def killed() -> None:
        held = two.directory / "held"
        operation = two.begin_move(NODE, DESTINATION, f"freeze:pause:{held}")
        dump = dumping(two)
        two.kill_daemon()
        client = two.start("op", "wait", operation)
        try:
            log = two.instance.state / "log"
            assert eventually(lambda: "rolling back" in log.read_text().split("begins")[-1], True)
        finally:
            os.kill(dump, signal.SIGCONT)
            held.unlink(missing_ok=True)  # the daemon that made it was killed
        _, error = client.communicate(timeout=SECONDS)
        assert client.returncode == 1 and "the daemon was stopped" in error
        assert two.assert_one_copy("two")[NODE] == SOURCE

    two.run_under_ring("two", "openmpi", killed, ranks=2, memory=48, pause=PAUSE)
