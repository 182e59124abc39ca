"""The report on the machine beside a failed test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from machine import busiest, own_priority


def test_a_process_that_takes_a_processor_is_named() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass  # spins"], stdout=-1
    ) as spinning:
        assert spinning.stdout
        spinning.stdout.readline()
        shown = busiest()
        spinning.kill()
    load, *lines = shown.splitlines()
    assert load.startswith("load ") and " MiB of memory free, " in load
    (line,) = [line for line in lines if f" R {spinning.pid} of " in line]
    assert "while True: pass  # spins" in line and int(line.split()[0]) > 1
    assert len(lines) <= 8 and all(len(line) <= 160 for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself more priority")
def test_priority_is_given_back() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with own_priority():
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself more priority")
@pytest.mark.parametrize("nice", [-14, -13])
def test_no_test_begins_with_the_priority_of_the_last_one(nice: int) -> None:
    assert os.getpriority(os.PRIO_PROCESS, 0) > -13
    os.setpriority(os.PRIO_PROCESS, 0, nice)
