"""Signals to `wherry move` under a job, and the peer's gap in the record of a move."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from realworld import SECONDS, RealInstance, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

NODE, SOURCE, DESTINATION = "two-1", "a2", "b1"


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    with real_instance("tint") as created:
        created.up("two", 2)
        yield created


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.smoke
def test_signal_rolls_a_move_back_while_the_node_is_frozen(two: RealInstance, number: signal.Signals) -> None:
    """The transfer is slowed down to three times the test's time limit."""
    with two.ring("two", "openmpi", ranks=2, memory=32) as ring:
        client = two.start("move", NODE, "--to", DESTINATION, "--bandwidth", "4Mbit/s", "--max-rounds", "0")
        assert client.stderr
        for line in client.stderr:
            if line.startswith(f"{NODE}: freeze"):
                break
        time.sleep(0.5)
        began = time.monotonic()
        client.send_signal(number)
        client.communicate(timeout=SECONDS)
        took = time.monotonic() - began
        assert client.returncode == 128 + number
        assert two.assert_one_copy("two")[NODE] == SOURCE
        assert took < 60, took
        ring.result()


def test_reported_gap_is_the_gap_that_a_peer_measures(two: RealInstance) -> None:
    """The ring's largest gap is that of the move, because a peer waits for the node's message."""
    with two.ring("two", "openmpi", ranks=2) as ring:
        record = two.move(NODE, DESTINATION)
        felt = ring.result()["max_gap_ms"] / 1e3
    two.move(NODE, SOURCE)
    assert record["downtime_peer"] is not None
    assert record["downtime"] - 0.01 <= record["downtime_peer"] <= felt + 0.02, (record, felt)
