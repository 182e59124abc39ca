"""Fault injection into moves under a running job: afterwards one copy runs, nothing is left, the job's result is
correct. Faults (WHERRY_FAULTS, see wherry.move.faults) fail a phase, kill the daemon at its end, or pause it so that
the test can break something."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance

import waiting
from wherry.fabric.cgroup import Cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

BEFORE = ["prepare", "rounds", "freeze", "transfer", "restore"]
AFTER = ["commit", "thaw"]
"""The phases before and after the commit."""
PADDING = 8
NODE, SOURCE, DESTINATION = "four-1", "a2", "b1"
RANK = 16
"""MiB of memory that a rank checks."""
PAUSE = 4
"""Milliseconds that a rank sleeps in each iteration, in tests that do not need messages in flight."""


def where(four: RealInstance) -> str:
    return four.hosts_of("four")[NODE]


def go_home(four: RealInstance) -> None:
    """Moves the node back to its first host if it is elsewhere."""
    if where(four) != SOURCE:
        four.move(NODE, SOURCE)


@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        pytest.param("kill", ("freeze", "restore", "commit"), marks=pytest.mark.smoke),
        ("kill", ("prepare", "rounds", "transfer", "thaw")),
        ("fail", ("prepare", "rounds", "freeze", "transfer", "restore", "commit", "thaw")),
    ],
)
def test_fault_in_each_phase_under_a_job(four: RealInstance, kind: str, phases: tuple[str, ...]) -> None:
    """After `fail` at a phase or `kill` of the daemon the node is at the source before the commit, else at the
    destination."""

    def each_phase() -> None:
        for phase in phases:
            go_home(four)
            operation = four.begin_move(NODE, DESTINATION, f"{phase}:{kind}")
            done = four("op", "wait", operation)
            assert (done.returncode == 0) == (phase in AFTER), (phase, done.stderr)
            at = four.assert_one_copy("four")[NODE]
            assert at == (DESTINATION if phase in AFTER else SOURCE), phase
            if phase in BEFORE:
                assert done.stderr.splitlines()[-3].startswith("error "), done.stderr
                (*_, record) = four.json("node", "show", NODE)["moves"]
                assert record["phase"] == "rolled-back" and record["error"]["code"] == "MOVE_FAILED"

    four.run_under_ring("four", "openmpi", each_phase, ranks=2, memory=RANK, pause=1)


def images(four: RealInstance, host: str) -> Path:
    return four.instance.run / "nodes" / f"{NODE}@{host}" / "images"


def move_processes(four: RealInstance, sign: str, host: str = "") -> list[int]:
    """Processes of the move whose command line contains `sign`, optionally only in a host's network namespace."""
    pids = [pid for pid, words in four.move_processes().items() if sign in words]
    if not host:
        return pids
    network = os.stat(f"/run/netns/{four.instance.prefix}-{host}").st_ino
    return [pid for pid in pids if os.stat(f"/proc/{pid}/ns/net").st_ino == network]


def kill(pids: list[int]) -> None:
    assert pids, "there is nothing to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def fill_destination(four: RealInstance) -> None:
    """Makes the file system of the images full."""
    words = ["mount", "-o", "remount,size=2M", str(images(four, DESTINATION))]
    subprocess.run(words, check=True, timeout=SECONDS)


def starve_destination(four: RealInstance) -> None:
    """Occupies the destination's memory."""
    Cgroup(f"{four.instance.prefix}/{DESTINATION}").limit(None, 8 << 20)


def lose_destination(four: RealInstance, word: str = "down") -> None:
    """Cuts the destination off silently."""
    words = ["ip", "-n", f"{four.instance.prefix}-{DESTINATION}", "link", "set", "up0", word]
    subprocess.run(words, check=True, timeout=SECONDS)


def corrupt_image(four: RealInstance) -> None:
    files = list(images(four, DESTINATION).glob("*/core-*.img"))
    assert files
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))


def rank_at(four: RealInstance, host: str) -> int:
    """PID of the rank on the moving node."""
    node = Cgroup(f"{four.instance.prefix}/{host}/{NODE}").pids()
    (rank,) = [pid for pid in node if b"/wherry-ring" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
    return rank


def padding(four: RealInstance, host: str) -> tuple[Path, int]:
    """The memory of the rank, and the address of bytes that it never uses, in a page that CRIU sends: behind the
    data of its program's file."""
    rank = rank_at(four, host)
    program = os.readlink(f"/proc/{rank}/exe")
    for line in Path(f"/proc/{rank}/maps").read_text().splitlines():
        words = line.split()
        if words[1] == "rw-p" and words[-1] == program:
            return Path(f"/proc/{rank}/mem"), int(words[0].partition("-")[2], 16) - PADDING
    raise AssertionError(f"{program} has no data")


def read_padding(four: RealInstance, host: str) -> bytes:
    memory, at = padding(four, host)
    with memory.open("rb", buffering=0) as file:
        file.seek(at)
        return file.read(PADDING)


def damage_page(four: RealInstance) -> None:
    """Flips one bit of it."""
    memory, at = padding(four, SOURCE)
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
def test_failure_during_a_move_rolls_back(four: RealInstance, case: str) -> None:
    phase, damage, says = BREAKS[case]

    def broken() -> None:
        try:
            with four.held_move(NODE, DESTINATION, phase) as move:
                damage(four)
                move.release()
                done = four("op", "wait", move.operation)
        finally:
            Cgroup(f"{four.instance.prefix}/{DESTINATION}").limit(None, 4 << 30)
            lose_destination(four, "up")
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert f"error MOVE_FAILED: {NODE} was not moved; it runs on {SOURCE} as before" in done.stderr
        assert re.search(says, done.stderr) and "  next: " in done.stderr, done.stderr
        assert four.assert_one_copy("four")[NODE] == SOURCE

    four.run_under_ring("four", "openmpi", broken, ranks=2, memory=RANK, pause=PAUSE)


def test_page_that_differs_is_sent_again(four: RealInstance) -> None:
    """The destination resumes with the memory that the source had at the commit."""

    def mended() -> None:
        with four.held_move(NODE, DESTINATION, "transfer") as move:
            sent = read_padding(four, SOURCE)
            damage_page(four)
            at_source = read_padding(four, SOURCE)
            assert at_source != sent
        done = four("op", "wait", move.operation)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert read_padding(four, DESTINATION) == at_source
        assert "sent again: the memory of process" in (four.instance.state / "log").read_text()

    four.run_under_ring("four", "openmpi", mended, ranks=2, memory=RANK, pause=PAUSE)


def dumping(four: RealInstance) -> list[int]:
    """CRIU, in a move that is held while it has the node's connections."""
    assert list((images(four, SOURCE) / "0").glob("tcp-stream*"))
    return move_processes(four, "--rpc", SOURCE)


def test_move_rolls_back_when_criu_is_killed_while_it_dumps(four: RealInstance) -> None:
    """One copy resumes. CRIU had thawed it with locked connections, so the job may be damaged, which the error
    states."""
    with four.ring("four", "openmpi", seconds=60, ranks=2, memory=48, pause=PAUSE):
        with four.held_move(NODE, DESTINATION, "post-dump") as move:
            kill(dumping(four))
        done = four("op", "wait", move.operation)
        assert done.returncode == 1 and "could not dump" in done.stderr, done.stderr
        assert "in repair mode, so messages may be lost" in done.stderr, done.stderr
        assert four.assert_one_copy("four")[NODE] == SOURCE
    four.run_under_ring("four", "openmpi", lambda: four.move(NODE, DESTINATION), ranks=2)


def test_move_is_recovered_when_the_daemon_is_killed_while_criu_dumps(four: RealInstance) -> None:
    """The orphaned CRIU would change the node's state at its end, so the next daemon waits for it."""

    def killed() -> None:
        with four.held_move(NODE, DESTINATION, "post-dump") as move:
            (dump,) = dumping(four)
            os.kill(dump, signal.SIGSTOP)  # else it ends as soon as nobody answers it
            four.kill_daemon()
            client = four.start("op", "wait", move.operation)
            try:
                log = four.instance.state / "log"
                waiting.until(lambda: "rolling back" in log.read_text().split("begins")[-1], "the next daemon")
            finally:
                os.kill(dump, signal.SIGCONT)
        _, error = client.communicate(timeout=SECONDS)
        assert client.returncode == 1 and "the daemon was stopped" in error
        assert four.assert_one_copy("four")[NODE] == SOURCE

    four.run_under_ring("four", "openmpi", killed, ranks=2, memory=48, pause=PAUSE)
