"""Post-copy under a job: `wherry move --mode post-copy` and `hybrid`. Ranks check their memory and their messages.

A move at a low rate stays for seconds in the state in which the node runs at its destination and needs its source; a
mark in the source's directory shows it.
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
NODE, SOURCE, DESTINATION = "four-1", "a2", "b1"
SLOW = ("--mode", "post-copy", "--max-rounds", "0", "--bandwidth", "40Mbit/s", "--compress", "off")
MEMORY = 24
"""MiB of memory that a rank checks: seconds at that rate."""
PAUSE = 4


@pytest.fixture
def alone() -> Iterator[RealInstance]:
    """An instance with a cluster that has the node."""
    with real_instance("tpcp") as created:
        created.up("four", 2)
        yield created


def begin(four: RealInstance, *words: str) -> subprocess.Popen[str]:
    """A slow move, so far that the node runs at its destination."""
    client = four.start("move", NODE, "--to", DESTINATION, *SLOW, *words)
    mark = four.instance.run / "nodes" / f"{NODE}@{SOURCE}" / "retired"
    assert eventually(mark.exists, True, pause=0.02), client.communicate()
    time.sleep(0.5)
    assert senders(four), "all its memory has come already"
    return client


def senders(four: RealInstance) -> list[int]:
    return [pid for pid, words in four.move_processes().items() if "wherry-pager" in words and " send " in f"{words} "]


def state(four: RealInstance) -> tuple[str, str]:
    shown = four.json("node", "show", NODE)
    node = shown.get("node", shown)
    return node["host"], node["state"]


@pytest.mark.smoke
def test_nodes_move_by_post_copy_under_a_job(four: RealInstance) -> None:
    def moves() -> None:
        for number in range(2):
            host = (DESTINATION, SOURCE)[number % 2]
            record = four.json("move", NODE, "--to", host, "--mode", "post-copy", "--max-rounds", str(number % 2))
            fetched = record["fetched"]
            assert record["phase"] == "done" and fetched["demanded"] + fetched["background"] > 0
            assert record["bytes"] > fetched["demanded"] + fetched["background"]
            four.assert_one_copy("four")

    four.run_under_ring("four", "openmpi", moves, ranks=2, memory=MEMORY, pause=PAUSE)
    told = four("move", NODE, "--to", DESTINATION, "--mode", "post-copy")
    assert told.returncode == 0 and "in the background; all was there after" in told.stdout
    record = four.json("move", NODE, "--to", SOURCE, "--mode", "hybrid")
    assert record["fetched"] is None, "it writes little, so it is frozen for the rest"


def test_a_dry_run_tells_what_would_come_later(four: RealInstance) -> None:
    told = four("move", NODE, "--to", DESTINATION, *SLOW, "--dry-run")
    assert told.returncode == 0 and "post-copy, about" in told.stdout and " after it (" in told.stdout


def test_the_next_daemon_waits_until_all_memory_is_there(four: RealInstance) -> None:
    def kill_daemon() -> None:
        client = begin(four)
        four.kill_daemon()
        assert eventually(lambda: four("daemon", "status").returncode, 7) == 7
        assert senders(four), "it continues alone"
        four.start_daemon()
        client.communicate(timeout=SECONDS)
        assert eventually(lambda: state(four), (DESTINATION, "running")) == (DESTINATION, "running")
        four.assert_one_copy("four")
        assert not senders(four)

    four.run_under_ring("four", "openmpi", kill_daemon, ranks=2, memory=MEMORY, pause=PAUSE)


@pytest.mark.parametrize("daemon_too", [False, True], ids=["daemon lives", "daemon killed"])
def test_without_its_source_the_node_is_lost_and_told(four: RealInstance, daemon_too: bool) -> None:
    with four.ring("four", "openmpi", ranks=2, memory=MEMORY, seconds=120):
        client = begin(four)
        if daemon_too:
            four.kill_daemon()
        for pid in senders(four):
            os.kill(pid, signal.SIGKILL)
        if daemon_too:
            four.start_daemon()
        _, errors = client.communicate(timeout=SECONDS)
        if not daemon_too:
            assert client.returncode != 0
            assert "ended while it was moved" in errors and "before it had all its memory" in errors, errors
        assert eventually(lambda: state(four), (DESTINATION, "lost")) == (DESTINATION, "lost")
    assert not eventually(four.move_processes, {})  # a hold of a killed daemon ends by itself
    assert not (four.instance.run / "nodes" / f"{NODE}@{SOURCE}").exists()
    four.json("up", "four.yaml")
    assert four.assert_one_copy("four")


@pytest.mark.parametrize("daemon_too", [False, True], ids=["daemon lives", "daemon killed"])
def test_down_all_leaves_nothing_of_it(alone: RealInstance, daemon_too: bool) -> None:
    with alone.ring("four", "openmpi", ranks=2, memory=MEMORY, seconds=120):
        client = begin(alone)
        if daemon_too:
            alone.kill_daemon()
        alone.json("down", "--all", "--yes")
        client.communicate(timeout=SECONDS)
    assert not eventually(alone.move_processes, {})  # a hold of a killed daemon ends by itself
    assert not any(names for kind, names in alone.all_resources().items() if kind != "interfaces")
