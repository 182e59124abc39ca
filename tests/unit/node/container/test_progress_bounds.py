"""When a step of a move is given up: time without progress counts, unless no process could run in it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

import waiting
from wherry.base.errors import Failed
from wherry.node.container import progress_bounds


class Clock:
    """Seconds that pass when a test adds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("wherry.node.container.progress_bounds.time.monotonic", lambda: self.now)


def test_a_step_that_is_slow_is_not_given_up_and_one_that_stands_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    moves = True
    bound = progress_bounds.Bound("it", 1.0, 100.0, lambda: moves)
    for _ in range(50):
        clock.now += 1.0
        bound.look()
    moves = False
    with pytest.raises(Failed, match="no progress for 1.0 s"):
        for _ in range(50):
            clock.now += 0.05
            bound.look()
    assert 51.0 <= clock.now <= 51.1
    moves = True
    with pytest.raises(Failed, match="waited 100 s"):
        while clock.now < 200:
            clock.now += 1.0
            bound.look()


def test_a_machine_that_did_not_run_us_did_not_run_the_step_either(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bound = progress_bounds.Bound("it", 1.0, 100.0, lambda: False)
    clock.now = 30.0
    bound.look()


def test_work_is_seen_and_its_absence_too() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy, subprocess.Popen(["sleep", "60"]) as idle:
        try:
            works, sleeps = progress_bounds.work_of(lambda: [busy.pid]), progress_bounds.work_of(lambda: [idle.pid])
            assert works() and works()
            waiting.until(lambda: not sleeps(), "a program that sleeps, once it has begun")
            os.kill(busy.pid, signal.SIGSTOP)
            waiting.until(lambda: not works(), "a program that is stopped, once it is")
        finally:
            busy.kill()
            idle.kill()


@pytest.mark.parametrize("rate", [None, 9e8, 9e6, 9e5])
def test_a_slow_link_has_time(rate: float | None) -> None:
    """For all of a node at half the rate, and for a piece of it while nothing is acknowledged."""
    memory = 512 << 20
    assert progress_bounds.total(memory, rate) > memory * 8 / ((rate or 320e6) / 2)
    assert progress_bounds.total(memory, rate) >= progress_bounds.total(memory)
    assert progress_bounds.total(memory) < 60, "which no link makes slower"
    assert progress_bounds.stall_sending(rate, 0.1) >= 2.8 + (65536 * 8 / rate if rate else 0)
