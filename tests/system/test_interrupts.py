"""Signals to `wherry move` under a job, and the peer's gap in the record of a move."""

from __future__ import annotations

import os
import signal
import time

import pytest
from realworld import SECONDS, RealInstance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

NODE, SOURCE, DESTINATION = "four-1", "a2", "b1"


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.thorough) for one in (signal.SIGTERM, signal.SIGHUP))],
)
@pytest.mark.smoke
def test_signal_rolls_a_move_back_while_the_node_is_frozen(four: RealInstance, number: signal.Signals) -> None:
    """The transfer is slowed down to three times the test's time limit."""
    with four.ring("four", "openmpi", ranks=2, memory=32, pause=1) as ring:
        client = four.start("move", NODE, "--to", DESTINATION, "--bandwidth", "4Mbit/s", "--max-rounds", "0")
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
        assert four.assert_one_copy("four")[NODE] == SOURCE
        assert took < 60, took
        ring.result()


def test_reported_gap_is_the_gap_that_a_peer_measures(four: RealInstance) -> None:
    """The ring's largest gap is that of the move, because a peer waits for the node's message."""
    with four.ring("four", "openmpi", ranks=2) as ring:
        record = four.move(NODE, DESTINATION)
        felt = ring.result()["max_gap_ms"] / 1e3
    assert record["downtime_peer"] is not None
    assert record["downtime"] - 0.01 <= record["downtime_peer"] <= felt + 0.02, (record, felt)
