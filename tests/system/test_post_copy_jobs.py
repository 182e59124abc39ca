"""Post-copy under a job: `wherry move --mode post-copy` and `hybrid`. Ranks check their memory and their messages.

A move at a low rate stays for seconds in the state in which the node runs at its destination and needs its source; a
mark in the source's directory tells it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
NODE, SOURCE, DESTINATION = "two-1", "a2", "b1"
SLOW = ("--mode", "post-copy", "--max-rounds", "0", "--bandwidth", "40Mbit/s", "--compress", "off")
MEMORY = 24
"""MiB of memory that a rank checks: seconds at that rate."""
PAUSE = 4


@pytest.fixture
def two() -> Iterator[RealInstance]:
    with real_instance("tpcp", WHERRY_FAULTS="1") as created:
        created.up("two", 2)
        yield created
        assert created("down", "--all", "--yes").returncode == 0


def begin(two: RealInstance, *words: str) -> subprocess.Popen[str]:
    """A slow move, so far that the node runs at its destination."""
    client = two.start("move", NODE, "--to", DESTINATION, *SLOW, *words)
    mark = two.instance.run / "nodes" / f"{NODE}@{SOURCE}" / "retired"
    assert eventually(mark.exists, True, pause=0.02), client.communicate()
    time.sleep(0.5)
    assert senders(two), "all its memory has come already"
    return client


def senders(two: RealInstance) -> list[int]:
    return [pid for pid, words in two.move_processes().items() if "wherry-pager" in words and " send " in f"{words} "]


def state(two: RealInstance) -> tuple[str, str]:
    shown = two.json("node", "show", NODE)
    node = shown.get("node", shown)
    return node["host"], node["state"]


@pytest.mark.smoke
def test_nodes_move_by_post_copy_under_a_job(two: RealInstance) -> None:
    def moves() -> None:
        for number in range(4):
            host = (DESTINATION, SOURCE)[number % 2]
            record = two.json("move", NODE, "--to", host, "--mode", "post-copy", "--max-rounds", str(number % 2))
            fetched = record["fetched"]
            assert record["phase"] == "done" and fetched["demanded"] + fetched["background"] > 0
            assert record["bytes"] > fetched["demanded"] + fetched["background"]
            two.assert_one_copy("two")

    two.run_under_ring("two", "openmpi", moves, ranks=2, memory=MEMORY, pause=PAUSE)
    told = two("move", NODE, "--to", DESTINATION, "--mode", "post-copy")
    assert told.returncode == 0 and "in the background; all was there after" in told.stdout
    record = two.json("move", NODE, "--to", SOURCE, "--mode", "hybrid")
    assert record["fetched"] is None, "it writes little, so it is frozen for the rest"


def test_a_dry_run_tells_what_would_come_later(two: RealInstance) -> None:
    told = two("move", NODE, "--to", DESTINATION, *SLOW, "--dry-run")
    assert told.returncode == 0 and "post-copy, about" in told.stdout and " after it (" in told.stdout


def test_the_next_daemon_waits_until_all_memory_is_there(two: RealInstance) -> None:
    def kill_daemon() -> None:
        client = begin(two)
        two.kill_daemon()
        assert eventually(lambda: two("daemon", "status").returncode, 7) == 7
        assert senders(two), "it goes on alone"
        two.start_daemon()
        client.communicate(timeout=SECONDS)
        assert eventually(lambda: state(two), (DESTINATION, "running")) == (DESTINATION, "running")
        two.assert_one_copy("two")
        assert not senders(two)

    two.run_under_ring("two", "openmpi", kill_daemon, ranks=2, memory=MEMORY, pause=PAUSE)


@pytest.mark.parametrize("daemon_too", [False, True], ids=["daemon lives", "daemon killed"])
def test_without_its_source_the_node_is_lost_and_told(two: RealInstance, daemon_too: bool) -> None:
    with two.ring("two", "openmpi", ranks=2, memory=MEMORY, seconds=120):
        client = begin(two)
        if daemon_too:
            two.kill_daemon()
        for pid in senders(two):
            os.kill(pid, signal.SIGKILL)
        if daemon_too:
            two.start_daemon()
        _, errors = client.communicate(timeout=SECONDS)
        if not daemon_too:
            assert client.returncode != 0
            assert "ended while it was moved" in errors and "before it had all its memory" in errors, errors
        assert eventually(lambda: state(two), (DESTINATION, "lost")) == (DESTINATION, "lost")
    assert not eventually(two.move_processes, {})  # a hold of a killed daemon ends by itself
    assert not (two.instance.run / "nodes" / f"{NODE}@{SOURCE}").exists()
    two.up("two", 2)
    assert two.assert_one_copy("two")


@pytest.mark.parametrize("daemon_too", [False, True], ids=["daemon lives", "daemon killed"])
def test_down_all_leaves_nothing_of_it(two: RealInstance, daemon_too: bool) -> None:
    with two.ring("two", "openmpi", ranks=2, memory=MEMORY, seconds=120):
        client = begin(two)
        if daemon_too:
            two.kill_daemon()
        two.json("down", "--all", "--yes")
        client.communicate(timeout=SECONDS)
    assert not eventually(two.move_processes, {})  # a hold of a killed daemon ends by itself
    assert not any(names for kind, names in two.all_resources().items() if kind != "interfaces")
